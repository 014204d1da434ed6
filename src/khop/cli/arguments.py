"""Types of arguments that several commands have."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PICTURES = (".png", ".svg", ".pdf")
"""Ends of the names of pictures that commands write."""


def whole_number(text: str) -> int:
    """Parse an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number (got '{text}')") from None


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number (got '{text}')") from None


def byte_size(text: str) -> int:
    """Parse a number of bytes above 0, such as '8GB': of 1024 MB, as `khop partition --memory`."""
    from khop.data.hot_rows import parse_bytes

    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size == 0:
        raise argparse.ArgumentTypeError(f"must be more than 0 bytes (got '{text}')")
    return size


def named_value(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; values that are no JSON are text."""
    name, separator, value = text.partition("=")
    name = name.replace("-", "_")
    if not separator or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE (got '{text}')")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def find_modules_here(names: Iterable[str | None]) -> None:
    """Have modules that arguments name found in the working directory, too.

    It comes last, so that no file there takes the place of another module.

    Args:
        names: the arguments, 'package:Class' for example; nothing is done without one.
    """
    folder = str(Path.cwd())
    if any(names) and folder not in sys.path:
        sys.path.append(folder)


def check_writable(path: str) -> None:
    """Raise OSError if a file or folder cannot be made at a path, before work is done for it.

    Folders above it that do not exist are made later.
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
    """Raise ValueError or OSError if a picture cannot be written to a path."""
    if Path(path).suffix not in PICTURES:
        raise ValueError(f"the name of a picture must end with .png, .svg or .pdf (got '{path}')")
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"cannot write '{path}': no folder '{folder}'")
    check_writable(path)


def fanouts(text: str) -> list[int]:
    """Parse fan-outs with commas between."""
    try:
        found = [int(k) for k in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < -1:
        raise argparse.ArgumentTypeError(
            f"must be integers of -1 or more with commas between, such as 15,10,5 (got '{text}')"
        )
    return found
