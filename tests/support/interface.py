"""Public interface of khop as text: names, arguments, members and command-line options.

`python tests/support/interface.py --write` writes `public_interface.txt`, which
`tests/architecture/test_public_interface.py` compares with the code. A change of the interface
thereby shows in the file's difference.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from khop.cli.main import parser_of_all

FILE = Path(__file__).with_name("public_interface.txt")
PACKAGES = (
    *("data", "datasets", "distributed", "errors", "lightning", "loader", "log", "metrics"),
    *("numa", "partition", "plot", "sampler", "sources", "stats", "trace", "typing"),
)


def signature(obj: object) -> str:
    """Return arguments and result as in the source, without memory addresses of defaults."""
    makers = (vars(base).get("__init__") for base in getattr(obj, "__mro__", ()))
    maker = next((maker for maker in makers if maker is not None), None)
    if inspect.isclass(obj) and not getattr(maker, "__module__", "").startswith("khop"):
        return ""  # other projects' arguments differ by version
    try:
        text = str(inspect.signature(obj))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    return re.sub(r"<(\S+).*? at 0x\w+>", r"<\1>", text).replace("'", "")


def members(owner: type, public: set[type]) -> Iterator[str]:
    """Yield the public members of a class and of its private bases, with their arguments."""
    if issubclass(owner, enum.Enum):
        yield from (f".{name}" for name in owner.__members__)
        return
    seen = set()
    for base in owner.__mro__:
        if not base.__module__.startswith("khop") or (base in public and base is not owner):
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            function = getattr(value, "__func__", value)
            yield f".{name}{signature(function) if inspect.isfunction(function) else ''}"


def exported(module: ModuleType) -> list[str]:
    """Return the names of `__all__`, or without it the public names that a module defines."""
    defined = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    return sorted(getattr(module, "__all__", defined))


def interface() -> list[str]:
    """Return all lines of the interface, sorted within each package."""
    lines = []
    names = [
        (f"khop.{package}.{name}", getattr(module, name))
        for package in PACKAGES
        for module in [importlib.import_module(f"khop.{package}")]
        for name in exported(module)
    ]
    public = {value for _, value in names if inspect.isclass(value)}
    for name, value in names:
        lines.append(name + (signature(value) if callable(value) else ""))
        if inspect.isclass(value):
            lines += [name + member for member in sorted(members(value, public))]
    (commands,) = (
        action
        for action in parser_of_all()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for name, command in sorted(commands.choices.items()):
        options = {text for action in command._actions for text in action.option_strings}
        lines.append(f"khop {name} {' '.join(sorted(options))}")
    return lines


if __name__ == "__main__":
    if "--write" in sys.argv:
        FILE.write_text("\n".join(interface()) + "\n")
    else:
        print("\n".join(interface()))
