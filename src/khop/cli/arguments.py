"""Declaration of the arguments of khop's commands, with types and checks that they share."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of pictures that commands write."""


class Arguments:
    """Declaration of a command's arguments, over `argparse`. `text` is the help of an argument.

    Args:
        parser: the parser, or a group of mutually exclusive options.
        title: title of a group in the command's help. If None, the arguments have no group.
    """

    def __init__(self, parser: argparse._ActionsContainer, title: str | None = None) -> None:
        self._container = parser if title is None else parser.add_argument_group(title)

    def word(self, name: str, metavar: str, text: str, optional: bool = False) -> None:
        """Declare a positional argument, `optional` or required. `metavar` names it in the help."""
        nargs = "?" if optional else None
        self._container.add_argument(name, metavar=metavar, nargs=nargs, help=text)

    def flag(self, name: str, text: str) -> None:
        """Declare an option without a value, False by default. `text` is its help."""
        self._container.add_argument(name, action="store_true", help=text)

    def value(
        self,
        name: str,
        metavar: str | None,
        text: str | None,
        read: Callable[[str], object] = str,
        default: object = None,
        choices: Sequence[str] | None = None,
        required: bool = False,
    ) -> None:
        """Declare an option with a value.

        Args:
            name: the option, '--jobs'.
            metavar: placeholder of the value in the help. If None, the choices or the name.
            text: the help.
            read: function that converts the text to the value.
            default: value without the option.
            choices: values that are accepted. If None, all.
            required: True if the command needs the option.
        """
        self._container.add_argument(
            name,
            metavar=metavar,
            help=text,
            type=read,
            default=default,
            choices=choices,
            required=required,
        )

    def values(
        self, name: str, metavar: str, text: str, read: Callable[[str], object] = str
    ) -> None:
        """Declare an option that can be repeated. Its value is a list.

        Args:
            name: the option, '--label' for example.
            metavar: placeholder of a value in the help.
            text: the help.
            read: function that converts the text of a value.
        """
        self._container.add_argument(
            name, metavar=metavar, help=text, type=read, default=[], action="append"
        )


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
