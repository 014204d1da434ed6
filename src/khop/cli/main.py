"""Entry point of the `khop` command.

A sub-command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`, and a line
in `COMMANDS`; only the module of the command that is called is imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from khop._version import __version__
from khop.errors import KhopError

COMMANDS = {
    "partition": "cut a graph into a partition folder",
    "inspect": "summarise a partition folder, as text, JSON or a picture",
    "verify": "check every byte, count and range of a partition folder",
    "keygen": "make the keys of a job whose graph servers stand apart",
    "serve": "serve a partition folder to clients, as a graph server",
    "top": "watch graph servers, their loaders and trainers, live in the terminal",
    "bench": "measure khop, a floor and its peers on this machine",
    "doctor": "report what a bug report should say of this machine",
}
"""Sub-command (and its module) -> what it does."""

_BAD_INPUT = 2
# What bad input raises; anything else is a defect and shows its traceback.
_EXPECTED = (
    KhopError,
    ValueError,
    TypeError,
    LookupError,
    OSError,
    NotImplementedError,
    ModuleNotFoundError,
    MemoryError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: arguments; default: those of the process.

    Returns:
        Exit code: 0, 1 (`verify` found problems), 2 (bad input) or 130 (interrupted).
    """
    arguments = _parse(list(sys.argv[1:] if argv is None else argv))
    command = importlib.import_module(f"khop.cli.{arguments.command}")
    try:
        code = int(command.run(arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"khop {arguments.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _EXPECTED as error:
        if arguments.debug:
            raise
        print(f"khop {arguments.command}: error: {_one_line(error)}", file=sys.stderr)
        return _BAD_INPUT


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="khop", description="Distributed neighbour loading for PyTorch Geometric."
    )
    parser.add_argument("--version", action="version", version=f"khop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
        if name in argv:
            importlib.import_module(f"khop.cli.{name}").add_arguments(command)
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    return parser.parse_args(argv)


def _one_line(error: BaseException) -> str:
    # str() of a KeyError is its message in quotes.
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(text).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
