"""Programs of `scripts`, as modules: their files have no ending that Python would import."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load(name):
    """Return the module of a script. Skip the test where khop is tested without its repository."""
    path = SCRIPTS / name
    if not path.exists():
        pytest.skip("khop is tested without its repository")
    loader = importlib.machinery.SourceFileLoader(f"khop_{name}", str(path))
    module = importlib.util.module_from_spec(
        importlib.util.spec_from_loader(f"khop_{name}", loader)
    )
    sys.modules[f"khop_{name}"] = module  # dataclasses look for theirs
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module
