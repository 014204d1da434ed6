"""Start of the tests' programs in separate processes.

A program is a module that is run with `python -m`. It can import `support`.
"""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
"""Folder that `support` is imported from."""


def environment(**variables):
    """Return the environment of a child that imports what this process does, and tests' modules.

    Args:
        **variables: variables that are set in addition.
    """
    path = [str(TESTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables}


def command(program, *arguments):
    """Return the command line of a program, which is the name of its module."""
    return [sys.executable, "-m", program, *map(str, arguments)]
