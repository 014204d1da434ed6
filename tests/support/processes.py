"""Programs of tests that run in processes of their own.

A program is a module that is run with `python -m`: it finds `support`, whatever starts it.
"""

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
"""Folder that `support` is imported from."""


def environment(**variables):
    """Environment of a child that imports what this process does, and modules of tests.

    Args:
        **variables: set in addition.
    """
    path = [str(TESTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables}


def command(program, *arguments):
    """Command line of a program, given as the name of its module."""
    return [sys.executable, "-m", program, *map(str, arguments)]
