"""Entry point of the `khop` command.

A sub-command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`, and a line
in `COMMANDS`. Only the module of the command that is called is imported.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Collection, Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from khop._version import __version__
from khop.cli.termination import Terminated
from khop.errors import KhopError
from khop.log import printable

COMMANDS = {
    "partition": "cut a graph into a partition folder",
    "repartition": "cut a partition folder's graph again, without its original input",
    "convert": "write a partition folder of DistDGL as one of khop, or the other way",
    "propagate": "add sums or means of neighbours' attributes to a partition folder",
    "pack": "write the rows of a loader's next epochs in the order in which they are read",
    "inspect": "summarise a partition folder, as text, JSON or a picture",
    "verify": "check every byte, count and range of a partition folder",
    "keygen": "make the keys of a job whose graph servers stand apart",
    "distribute": "give each host its parts of a partition folder, by ssh",
    "run": "start a job's trainers on this machine, on hosts, or inside a scheduler's step",
    "serve": "serve a partition folder to clients, as a graph server",
    "top": "watch graph servers, their loaders and trainers, live in the terminal",
    "doctor": "report what a bug report should say of this machine",
    "completion": "print a script with which a shell completes commands and options",
}
"""{sub-command, which is also the name of its module: description}."""

_EPILOG = """\
examples:
  khop partition debian parts --num-parts 2
  khop inspect parts --report
  khop verify parts

Exit codes: 0 done; 1 problems found (verify), or a defect of khop; 2 bad input;
130 interrupted; 143 terminated. `khop COMMAND --help` shows a command's options.
"""
_DEFECT, _BAD_INPUT = 1, 2
# Exceptions of bad input. Any other is a defect and shows its traceback.
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
    """Run the `khop` command.

    Args:
        argv: arguments. If None, the process's.

    Returns:
        Exit code: 0, 1 (`verify` found problems, or a defect of khop), 2 (bad input), 130
        (interrupted) or 143 (terminated).
    """
    arguments = _parse(list(sys.argv[1:] if argv is None else argv))
    command = importlib.import_module(f"khop.cli.{arguments.command}")
    try:
        code = int(command.run(arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _ended(command, arguments, "interrupted", 130)
    except Terminated as end:
        return _ended(command, arguments, "terminated", int(end.args[0]))
    except BrokenPipeError:  # the reader has closed the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if arguments.debug or not isinstance(error, _EXPECTED):
            for line in "".join(traceback.format_exception(error)).splitlines():
                print(printable(line), file=sys.stderr)
            return _DEFECT
        print(f"khop {arguments.command}: error: {_one_line(error)}", file=sys.stderr)
        return _BAD_INPUT


def _ended(command: ModuleType, arguments: argparse.Namespace, how: str, code: int) -> int:
    """Print how a command was ended (`how`) and how to resume it. Return the exit code `code`."""
    advice = getattr(command, "advice_when_ended", lambda arguments: "")(arguments)
    text = f"khop {arguments.command}: {how}" + (f": {advice}" if advice else "")
    print(printable(text), file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """Argument parser whose errors have one line, without control characters."""

    def error(self, message: str) -> NoReturn:
        text = printable(message).removeprefix("argument ")
        self.exit(_BAD_INPUT, f"{self.prog}: error: {text} (see {self.prog} --help)\n")

    def refuse(self, problem: str, word: str, known: Iterable[str]) -> NoReturn:
        """Exit with error `problem` about an unknown word. Suggest the most similar of `known`."""
        close = difflib.get_close_matches(word, list(known), n=1)
        self.error(f"{problem} '{word}'" + (f": did you mean '{close[0]}'?" if close else ""))


def parser_of_all() -> argparse.ArgumentParser:
    """Return the parser of all commands with all of their arguments."""
    return _parser_of(COMMANDS)[0]


def _parser_of(called: Collection[str]) -> tuple[_Parser, dict[str, _Parser]]:
    """Return the main parser and {command: parser}. Only commands in `called` have arguments."""
    parser = _Parser(
        prog="khop",
        description="Distributed neighbour loading for PyTorch Geometric.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"khop {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {}
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name in called:
            importlib.import_module(f"khop.cli.{name}").add_arguments(command)
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
        parsers[name] = command
    return parser, parsers


def _parse(argv: list[str]) -> argparse.Namespace:
    called = next((word for word in argv if not word.startswith("-")), None)
    parser, commands = _parser_of([] if called is None else [called])
    if not argv:
        parser.print_help()
        parser.exit()
    if called is None:
        return parser.parse_args(argv)
    if called not in COMMANDS:
        parser.refuse("no such command", called, COMMANDS)
    command = commands[called]
    # Before missing arguments are reported: a mistyped option may be one of them.
    _check_options(command, argv[argv.index(called) + 1 :])
    arguments, further = parser.parse_known_args(argv)
    if further:
        command.error(f"unrecognized arguments: {' '.join(further)}")
    return arguments


def _check_options(command: _Parser, words: Sequence[str]) -> None:
    """Exit with an error if a word is an option that the command does not have."""
    known = [name for name in command._option_string_actions if name.startswith("--")]
    for word in words:
        if word == "--":
            return
        name = word.partition("=")[0]
        # As in argparse: the beginning of a name suffices, and a word with spaces is no option.
        is_option = name.startswith("--") and " " not in word
        if is_option and not any(option.startswith(name) for option in known):
            command.refuse("no such option", name, known)


def _one_line(error: BaseException) -> str:
    # str() of a KeyError is its message in quotes, and an OSError's begins with its number.
    text: Any = error.args[0] if isinstance(error, KeyError) and error.args else error
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.strerror}: '{error.filename}'"
    return printable(" ".join(str(text).split())) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
