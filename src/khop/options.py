"""Keyword options that are declared once, for signatures, documentation and checks of names.

A group of options is a `TypedDict` whose entries are `Annotated[type, Option(...)]`.
`takes_options` puts a group into the signature and the documentation of a class or function.
`resolved` checks names and fills in defaults. Any process, no torch.
"""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from khop.renames import RENAMED, with_new_names

_T = TypeVar("_T", bound=Callable[..., Any])


class Option(NamedTuple):
    """Declaration of a keyword option: default value, description and type."""

    default: Any
    doc: str
    annotation: Any = None


@cache
def options_of(group: Any) -> dict[str, Option]:
    """Return the options of a group, a `TypedDict`, by name, in the order of declaration."""
    options = {}
    for name, annotated in get_type_hints(group, include_extras=True).items():
        annotation, option = get_args(annotated)
        options[name] = option._replace(annotation=annotation)
    return options


def resolved(group: Any, owner: object, arguments: Mapping[str, Any]) -> Any:
    """Return the value of every option of a group: the user's argument, or the default.

    Args:
        group: the group, a `TypedDict`.
        owner: an instance of the class that takes the options, or the name of a function.
        arguments: the user's keyword arguments.

    Raises:
        TypeError: an unknown option. The message suggests a known one.
    """
    chosen, further = split_options(group, owner, arguments)
    refuse_unknown(_name_of(owner), further, chosen)
    return chosen


def split_options(
    group: Any, owner: object, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the value of every option of a group, and the arguments that are no options of it.

    Old names of options are accepted, with a warning.

    Args:
        group: the group, a `TypedDict`.
        owner: an instance of the class that takes the options, or the name of a function.
        arguments: the user's keyword arguments.
    """
    named = with_new_names(_name_of(owner), arguments)
    chosen = {name: named.pop(name, option.default) for name, option in options_of(group).items()}
    return chosen, named


def refuse_unknown(owner: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of a user's keyword arguments.

    Args:
        owner: name of the class or function, for the message.
        names: names of the arguments.
        known: names that the class or function has.

    Raises:
        TypeError: a name is not known. The message suggests a similar known name, or lists all.
    """
    known = list(known)
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean '{close[0]}'?" if close else f"; it has {', '.join(known)}"
            raise TypeError(f"{owner} has no option '{name}'{hint}")


def takes_options(group: Any, further: bool = False) -> Callable[[_T], _T]:
    """Return a decorator for a class, or a function, that takes `**options` of a group.

    The signature and the documentation get an entry for each option, so that `help` has them all.

    Args:
        group: the group, a `TypedDict`.
        further: True if `**options` may also hold subclasses' options. The signature and the
            documentation then keep their entry of `**options`.
    """

    def decorate(taker: _T) -> _T:
        function: Any = vars(taker)["__init__"] if isinstance(taker, type) else taker
        signature, options = inspect.signature(function), options_of(group)
        own = list(signature.parameters.values())
        rest = [p for p in own if p.kind is p.VAR_KEYWORD]
        of_options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=o.default,
                              annotation=o.annotation)
            for name, o in options.items() if name not in signature.parameters
        ]  # fmt: skip
        parameters = [*own[: len(own) - len(rest)], *of_options, *(rest if further else ())]
        function.__signature__ = signature.replace(parameters=parameters)
        line = re.search(r"^( +)\*\*options: .*\n", taker.__doc__ or "", re.MULTILINE)
        if line is not None:
            entries = _entries(options, line[1]) + (line[0] if further else "")
            taker.__doc__ = line.string[: line.start()] + entries + line.string[line.end() :]
        return taker

    return decorate


def _entries(options: Mapping[str, Option], indent: str) -> str:
    return "".join(
        textwrap.fill(
            f"{name}: {option.doc}", 100, initial_indent=indent, subsequent_indent=f"{indent}    "
        )
        + "\n"
        for name, option in options.items()
    )


def _name_of(owner: object) -> str:
    """Return the name of a class or function in the table of renamed options (`RENAMED`)."""
    if isinstance(owner, str):
        return owner
    return next((c.__name__ for c in type(owner).__mro__ if c.__name__ in RENAMED), "")
