"""Scripts in `benchmarks` and `examples` import names that there are: most run by hand alone."""

import ast
import contextlib
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")])
PACKAGES = {"khop", "khop_bench", "soak", "support", "fake_cuda"}


def imported(script):
    """Yield (module, name) of each name that a script imports from the project."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in PACKAGES:
            yield from ((node.module, alias.name) for alias in node.names)


def exists(module, name):
    """Return True if a module has a name, or is a package that has a module of this name."""
    if hasattr(importlib.import_module(module), name):
        return True
    with contextlib.suppress(ImportError):
        importlib.import_module(f"{module}.{name}")
        return True
    return False


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_names_that_scripts_import(script):
    assert [f"{m}.{n}" for m, n in imported(script) if not exists(m, n)] == []
