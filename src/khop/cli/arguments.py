"""Declaration of the arguments of khop's commands, with types and checks that they share."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of pictures that commands write."""

_HEAD = re.compile(r"(\S+)(?: (\S.*?)(?: ([!*?]))?)?(?: {2,}(.*))?")


class Summary(Protocol):
    """Description of the work of a command, as text and as a dictionary for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content."""


def declare(parser: argparse._ActionsContainer, table: str, **defaults: object) -> None:
    """Declare a command's arguments by a table in the form of its help.

    A line has a name, the placeholder of its value, two spaces and the help, which goes on in
    indented lines. An option without a placeholder is a flag. Placeholders say the type of a value:
    `(in|out)` is one of these words, `N` an integer (see `_READERS`), any other is text. A mark can
    follow: `!` if the option is required, `*` if it can be repeated (its value is a list), `?` if a
    positional argument is optional. A line with a colon at its end is the title of a group.

    Args:
        parser: the parser, or a group of mutually exclusive options.
        table: the arguments.
        defaults: {name: value without the option}. Other options are None without it.
    """
    container = parser
    for entry in re.split(r"\n(?! )", table.strip("\n")):
        head, *further = entry.split("\n")
        if head.endswith(":") and "  " not in head:
            container = parser.add_argument_group(head[:-1])
            continue
        match = _HEAD.fullmatch(head)
        assert match is not None, head
        name, placeholder, mark, text = match.groups()
        options: dict[str, Any] = {"help": " ".join([text or "", *map(str.strip, further)]).strip()}
        default = defaults.pop(name.lstrip("-").replace("-", "_"), None)
        if placeholder is None:
            options["action"] = "store_true"
        elif placeholder.startswith("("):
            options |= {"choices": placeholder.strip("()").split("|"), "default": default}
        else:
            read = _READERS.get(placeholder, str)
            options |= {"metavar": placeholder, "type": read, "default": default}
        if mark == "!":
            options["required"] = True
        elif mark == "*":
            options |= {"action": "append", "default": []}
        elif mark == "?":
            options["nargs"] = "?"
        container.add_argument(name, **options)
    assert not defaults, defaults


def chosen(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return parsed arguments by name, as keyword arguments of a function."""
    return {name: getattr(arguments, name) for name in names}


def print_summary(arguments: argparse.Namespace, summary: Summary) -> None:
    """Print what a command has done: as JSON with `--json`, nothing with `--quiet`, else text."""
    if arguments.json:
        print(json.dumps(summary.to_dict()))
    elif not arguments.quiet:
        print(summary)


def name_list(text: str) -> list[str]:
    """Parse names that are separated by commas, the text of an option, to a list."""
    return text.split(",")


def whole_number(text: str) -> int:
    """Parse an integer. For other text raise ArgumentTypeError, which argparse reports."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number (got '{text}')") from None


def real_number(text: str) -> float:
    """Parse a number. For other text raise ArgumentTypeError, which argparse reports."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number (got '{text}')") from None


def byte_size(text: str) -> int:
    """Parse a number of bytes above 0, such as '8GB'. 1 GB has 1024 MB, as in `--memory`."""
    from khop.data.hot_rows import parse_bytes

    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size == 0:
        raise argparse.ArgumentTypeError(f"must be more than 0 bytes (got '{text}')")
    return size


def named_value(text: str) -> tuple[str, object]:
    """Parse text NAME=VALUE to (name, value). VALUE is JSON. If it is no JSON, it is text."""
    name, separator, value = text.partition("=")
    name = name.replace("-", "_")
    if not separator or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE (got '{text}')")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def find_modules_here(modules: Iterable[object]) -> None:
    """Make modules in the working directory importable, if an argument names a module.

    The directory is searched last, so that no file in it shadows another module.

    Args:
        modules: arguments that can name modules, 'package:Class' for example.
    """
    folder = str(Path.cwd())
    if any(modules) and folder not in sys.path:
        sys.path.append(folder)


def check_writable(path: str) -> None:
    """Raise OSError if a file or folder cannot be made at a path. Commands call it before work.

    Missing parent folders are no error: they are made later.
    """
    above = Path(path).absolute().parent
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"cannot write '{path}': '{above}' is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise PermissionError(
            errno.EACCES, f"cannot write '{path}': there is no permission to write in '{above}'"
        )


def check_picture(path: str) -> None:
    """Raise an error if a picture cannot be written to a path.

    Raises:
        ValueError: matplotlib does not support the format.
        OSError: the file cannot be made.
    """
    if Path(path).suffix not in PICTURES:
        raise ValueError(f"the name of a picture must end with .png, .svg or .pdf (got '{path}')")
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"cannot write '{path}': no folder '{folder}'")
    check_writable(path)


def fanouts(text: str) -> list[int]:
    """Parse fan-outs, integers that are separated by commas, to a list."""
    try:
        counts = [int(count) for count in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < -1:
        raise argparse.ArgumentTypeError(
            f"must be integers of -1 or more with commas between, such as 15,10,5 (got '{text}')"
        )
    return counts


def feature_dtype(text: str) -> tuple[str, str]:
    """Parse NAME=DTYPE or TYPE.NAME=DTYPE."""
    name, _, dtype = text.rpartition("=")
    if not name or not dtype:
        raise argparse.ArgumentTypeError(f"must be NAME=DTYPE (got '{text}')")
    return name, dtype


def interval(text: str) -> float:
    """Parse the seconds between two polls."""
    seconds = real_number(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"0.1 to 3600 seconds (got {text})")
    return seconds


_READERS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("J", "K", "M", "N", "P", "S", "PORT", "RANK"), whole_number),
    **dict.fromkeys(("R", "SECONDS", "SHARE"), real_number),
    **dict.fromkeys(("METHOD,...", "NAME,..."), name_list),
    "INTERVAL": interval,
    "K,K,...": fanouts,
    "NAME=DTYPE": feature_dtype,
    "NAME=VALUE": named_value,
    "SIZE": byte_size,
}
"""{placeholder of a value: function that reads it}."""
