"""The largest messages that a schema allows: one collection as long as possible, others short."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union

from khop.codec import MAX_ENTRIES, MAX_TEXT, AtMost, Between, Distinct

# More values than that no header may have.
_MOST = 120_000


def largest(kind: type) -> Iterator[Any]:
    """Yield messages of a class: one for each of its collections, and each way to nest them."""
    counter = _Counter()
    made = _make(kind, counter)
    yield made
    for place in range(counter.count):
        yield _make(kind, counter := _Counter(place))
        if counter.is_nested:
            yield _make(kind, _Counter(place, wide=False))


class _Counter:
    """Counter of a schema's collections, which chooses the length of each."""

    def __init__(self, long: int = -1, wide: bool = True) -> None:
        self.count = 0
        self.room = _MOST
        self._long = long
        self._wide = wide
        self.is_nested = False

    def length(self, most: int, is_inner: bool) -> int:
        """Return the length of the next collection."""
        place, self.count = self.count, self.count + 1
        if place == self._long:
            self.is_nested = is_inner
            return min(most, self.room)
        # Those around a long one: many, each with a part of what there is room for.
        return min(most, 1024) if place == self._long - 1 and self._wide and not is_inner else 1


def _make(annotation: Any, counter: _Counter, number: int = 0, is_inner: bool = False) -> Any:
    bounds: tuple[Any, ...] = ()
    while typing.get_origin(annotation) is Annotated:
        annotation, *rest = typing.get_args(annotation)
        bounds = (*rest, *bounds)
    most = next((b.count for b in reversed(bounds) if isinstance(b, AtMost)), None)
    span = next((b for b in reversed(bounds) if isinstance(b, Between)), Between(-1, 2**63 - 1))
    distinct = any(isinstance(b, Distinct) for b in bounds)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is bool:
        return True
    if annotation in (int, float):
        return annotation(min(span.low + number, span.high))
    if annotation is str:
        return f"{number}"[: MAX_TEXT if most is None else most]
    if annotation in (Any, type(None)):
        return None
    if origin is Literal:
        return args[number % len(args)]
    if origin in (Union, types.UnionType):
        inner = next(a for a in args if a is not type(None))
        return _make(_bounded(inner, bounds), counter, number, is_inner)
    if dataclasses.is_dataclass(annotation):
        return _object(annotation, counter, number)
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return annotation(*(_make(h, counter, number) for h in hints.values()))
    if origin is tuple and args[-1] is not Ellipsis:
        return tuple(_make(a, counter, number) for a in args)
    length = counter.length(MAX_ENTRIES if most is None else most, is_inner)
    entry = args[-1] if origin is dict else args[0]
    if distinct and typing.get_origin(entry) is Literal:
        length = min(length, len(typing.get_args(entry)))
    before = counter.count
    made, counter.room = [], max(1, counter.room // max(length, 1))
    for i in range(length):
        counter.count = before  # entries have the same collections
        made.append(_make(entry, counter, i, True))
    counter.room *= max(length, 1)
    if origin is dict:
        return {_make(args[0], counter, i): value for i, value in enumerate(made)}
    return tuple(made) if origin is tuple else made


def _bounded(annotation: Any, bounds: tuple[Any, ...]) -> Any:
    for bound in bounds:
        annotation = Annotated[annotation, bound]
    return annotation


def _object(cls: Any, counter: _Counter, number: int) -> Any:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}
    known = _TEXTS.get(cls.__name__, {})
    made = {n: known[n] if n in known else _make(h, counter, number) for n, h in fields.items()}
    if "worker_devices" in made:
        made["num_workers"] = len(made["worker_devices"])
    return cls(**made)


# Texts that mean something.
_TEXTS = {
    "Addresses": {"tcp": "tcp://h:1", "ipc": None},
    "MethodSpec": {"name": "neighbor", "program": None},
}
