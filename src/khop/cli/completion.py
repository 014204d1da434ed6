"""`khop completion`: a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "tcsh")

_EPILOG = """\
bash:  khop completion bash > ~/.local/share/bash-completion/completions/khop
zsh:   khop completion zsh > _khop, in a folder of $fpath
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop completion` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print the script of the shell that the arguments name."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise ModuleNotFoundError("completion needs package shtab: pip install shtab") from None
    from khop.cli.main import parser_of_all

    print(shtab.complete(parser_of_all(), arguments.shell))
    return 0
