"""Dataclasses as JSON objects, and back with every field checked.

Processes send each other frozen dataclasses, and arrays. The annotations of a dataclass are its
schema, which `from_json` compiles once per class. So a field is defined once, and the receiver
checks it. Numbers have bounds (`Between`), and texts, lists and objects have sizes (`AtMost`, or
else `MAX_TEXT` and `MAX_ENTRIES`). Values are nested no deeper than annotations. Unknown fields are
errors, as are missing fields without a default. Used by any process. Imports no torch.

    @dataclass(frozen=True)
    class Cancel:
        session: Annotated[str, AtMost(256)]
        ids: Annotated[list[Annotated[int, Between(0, 2**63 - 1)]], AtMost(4096)]

    from_json(Cancel, {"session": "a/0", "ids": [1]}, "a request")

Annotations may be:

- bool, int, float, str, `Literal`, `X | None`,
- list[X], tuple[X, ...], tuple[X, Y], dict[str, X], dict[int, X] (with keys as decimal text),
- dataclasses and NamedTuples of these,
- `Any`, for values that the receiver checks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

from khop.errors import ProtocolError

MAX_TEXT = 4096
"""Maximum number of characters of a text whose annotation has no `AtMost`."""

MAX_ENTRIES = 65_536
"""Maximum number of entries of a list or object whose annotation has no `AtMost`."""

INT64 = 2**63 - 1

_T = TypeVar("_T")
_Reader = Callable[[Any], Any]
_SHOWN = 80
# Values that are the same in JSON.
_PLAIN = (str, int, float, types.NoneType)
_PLAIN_TYPES = frozenset((*_PLAIN, bool))


@dataclasses.dataclass(frozen=True)
class Between:
    """Bounds of a number in an annotation, both included. `from_json` checks them."""

    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class AtMost:
    """Maximum length of a text, list or object in an annotation. `from_json` checks it."""

    count: int


@dataclasses.dataclass(frozen=True)
class Distinct:
    """Annotation of a list whose entries must differ from each other. `from_json` checks it."""


Id = Annotated[int, Between(0, INT64)]
"""An int64 that is not negative."""

Word = Annotated[int, Between(0, 2**64 - 1)]
"""An unsigned integer of 64 bits."""

Name = Annotated[str, AtMost(256)]
"""A short text."""


class _Invalid(Exception):
    """Error in a value of JSON. `path` has the names that lead to the value, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def from_json(cls: type[_T], content: object, label: str) -> _T:
    """Convert parsed JSON to a dataclass, and check every field. The sender need not be trusted.

    Args:
        cls: a dataclass.
        content: parsed JSON.
        label: name of the object in error messages, as in 'request "open"'.

    Raises:
        ProtocolError: a field is missing, unknown, of another type or out of bounds. The message
            names the field.

    Example:
        >>> from_json(Between, {"low": 0, "high": 1.5}, "a range")
        Between(low=0.0, high=1.5)
    """
    hashable: Any = cls
    try:
        value: _T = _reader_of(hashable)(content)
        return value
    except _Invalid as error:
        where = "".join(reversed(error.path)).removeprefix(".")
        raise ProtocolError(f"{label}: {where + ' ' if where else ''}{error}") from None


def to_json(value: Any) -> Any:
    """Convert a dataclass, or a value of one of its fields, to new values for a JSON file."""
    if isinstance(value, _PLAIN):
        return value
    if dataclasses.is_dataclass(value):
        cls: Any = type(value)
        fields = {name: getattr(value, name) for name in _field_names(cls)}
        for name, field in fields.items():
            if type(field) is list and _PLAIN_TYPES.issuperset(map(type, field)):
                fields[name] = field.copy()
            elif not isinstance(field, _PLAIN):
                fields[name] = to_json(field)
        return fields
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [v if isinstance(v, _PLAIN) else to_json(v) for v in value]
    raise TypeError(f"a {type(value).__name__} does not travel as JSON")


@functools.cache
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


# Readers: functions, made from an annotation, that check and convert a value -------------------


def _reader(annotation: Any) -> _Reader:
    """Return a function that checks a JSON value of an annotated type, and converts it."""
    bounds: tuple[Any, ...] = ()
    while typing.get_origin(annotation) is Annotated:  # outer bounds override inner
        annotation, *rest = typing.get_args(annotation)
        bounds = (*rest, *bounds)
    most = next((b.count for b in reversed(bounds) if isinstance(b, AtMost)), None)
    span = next((b for b in reversed(bounds) if isinstance(b, Between)), None)
    simple = {bool: _flag, Any: _anything, type(None): _nothing}.get(annotation)
    if simple is not None:
        return simple
    if annotation is int:
        return _integer(span or Between(-INT64 - 1, INT64))
    if annotation is float:
        return _real(span or Between(-math.inf, math.inf))
    if annotation is str:
        return _text(MAX_TEXT if most is None else most)
    return _compound(annotation, bounds, most)


_reader_of = functools.cache(_reader)


def _compound(  # noqa: PLR0911 (a case each)
    annotation: Any, bounds: tuple[Any, ...], most: int | None
) -> _Reader:
    """Return the function that checks a dataclass, `Literal`, `X | None`, list, tuple or dict.

    `annotation` is the type, `bounds` are constraints, such as `Distinct()`. `most` is the largest
    number of entries. If None, `MAX_ENTRIES`.
    """
    if dataclasses.is_dataclass(annotation):
        return _object(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if len(inner) != 1 or len(inner) == len(args):
            raise TypeError(f"no schema: {annotation} is not 'X or None'")
        value_reader = _reader(functools.reduce(_annotated, bounds, inner[0]))
        return lambda value: None if value is None else value_reader(value)
    most = MAX_ENTRIES if most is None else most
    if origin is list or (origin is tuple and args[-1] is Ellipsis):
        is_distinct = any(isinstance(b, Distinct) for b in bounds)
        return _entries(_reader(args[0]), most, origin, is_distinct)
    if origin is tuple:
        return _fixed(tuple(_reader(a) for a in args), tuple)
    if origin is dict:
        return _table(_key_reader(args[0]), _reader(args[1]), most)
    if isinstance(annotation, type) and issubclass(annotation, tuple):  # a NamedTuple
        hints = typing.get_type_hints(annotation, include_extras=True)
        readers = tuple(_reader(hint) for hint in hints.values())
        return _fixed(readers, lambda values: annotation(*values))
    raise TypeError(f"no schema: {annotation}")


def _annotated(annotation: Any, bound: object) -> Any:
    return Annotated[annotation, bound]


def _show(value: Any) -> str:
    """Return a value as text for an error message: short, and on one line."""
    if isinstance(value, str):
        value = value[:_SHOWN]
    elif isinstance(value, (list, dict)):
        return f"a {'list' if isinstance(value, list) else 'table'} of {len(value)}"
    elif isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return ascii(value)


def _anything(value: Any) -> Any:
    return value


def _nothing(value: Any) -> None:
    if value is not None:
        raise _Invalid(f"must be null (got {_show(value)})")


def _flag(value: Any) -> bool:
    if value is not True and value is not False:
        raise _Invalid(f"must be true or false (got {_show(value)})")
    return value


def _integer(span: Between) -> _Reader:
    low, high = span.low, span.high

    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _Invalid(f"must be an integer from {low} to {high} (got {_show(value)})")
        return value

    return read


def _real(span: Between) -> _Reader:
    low, high = span.low, span.high

    def read(value: Any) -> float:
        is_real = type(value) in (int, float)
        # NaN is in no range, and an integer may be too large for a float.
        if not is_real or not low <= value <= high or not -1e308 <= value <= 1e308:
            raise _Invalid(f"must be a finite number from {low:g} to {high:g} (got {_show(value)})")
        return float(value)

    return read


def _text(most: int) -> _Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or len(value) > most:
            got = f"{len(value)} characters" if isinstance(value, str) else _show(value)
            raise _Invalid(f"must be a text of at most {most} characters (got {got})")
        return value

    return read


def _one_of(allowed: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:
        # Types, too: 1 equals True.
        if not any(value == a and type(value) is type(a) for a in allowed):
            raise _Invalid(f"must be one of {list(allowed)} (got {_show(value)})")
        return value

    return read


def _entries(entry: _Reader, most: int, make: Any, is_distinct: bool) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) > most:
            raise _Invalid(f"must be a list of at most {most} entries (got {_show(value)})")
        entries: list[Any] = []
        try:
            for each in value:
                entries.append(entry(each))
        except _Invalid as error:
            error.path.append(f"[{len(entries)}]")
            raise
        if is_distinct and len(set(entries)) < len(entries):
            raise _Invalid("names something twice")
        return entries if make is list else make(entries)

    return read


def _fixed(readers: tuple[_Reader, ...], make: Any) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _Invalid(f"must be a list of {len(readers)} entries (got {_show(value)})")
        entries: list[Any] = []
        try:
            for reader, each in zip(readers, value, strict=True):
                entries.append(reader(each))
        except _Invalid as error:
            error.path.append(f"[{len(entries)}]")
            raise
        return make(entries)

    return read


def _key_reader(annotation: Any) -> _Reader:
    """Return the function that checks keys of an object. Keys of type int are text in JSON."""
    reader = _reader(annotation)
    plain = annotation
    while typing.get_origin(plain) is Annotated:
        plain = typing.get_args(plain)[0]
    if plain is str:
        return reader
    if plain is not int:
        raise TypeError(f"no schema: keys of type {annotation}")

    def read(key: str) -> Any:
        # int() also takes '+1', ' 1', '1_0' and digits of other scripts.
        if len(key) > 20 or not key.isascii() or not key.removeprefix("-").isdecimal():
            raise _Invalid(f"must have integers as keys (got {_show(key)})")
        return reader(int(key))

    return read


def _table(key: _Reader, entry: _Reader, most: int) -> _Reader:
    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict) or len(value) > most:
            raise _Invalid(f"must be an object of at most {most} entries (got {_show(value)})")
        table: dict[Any, Any] = {}
        for name, each in value.items():
            if not isinstance(name, str):
                raise _Invalid(f"must have text as keys (got {_show(name)})")
            parsed = key(name)
            if parsed in table:  # '1' and '01'
                raise _Invalid(f"names {_show(name)} twice")
            try:
                table[parsed] = entry(each)
            except _Invalid as error:
                error.path.append(f"[{_show(name)}]")
                raise
        return table

    return read


def _object(cls: Any) -> _Reader:
    # Annotations are resolved on first use: a class may name one that is defined below it.
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    readers = {field.name: _reader(hints[field.name]) for field in fields}
    required = {
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Invalid(f"must be an object (got {_show(value)})")
        values = {}
        for name, each in value.items():
            reader = readers.get(name)
            if reader is None:
                raise _Invalid(f"has an unknown field {_show(name)}")
            try:
                values[name] = reader(each)
            except _Invalid as error:
                error.path.append(f".{name}")
                raise
        missing = required - values.keys()
        if missing:
            raise _Invalid(f"lacks {sorted(missing)}")
        try:
            return cls(**values)
        except ValueError as error:  # from __post_init__, which checks fields together
            raise _Invalid(str(error)) from None

    return read
