"""`pyg_examples` and `pyg_tests`, as far as they need no checkout of PyG."""

import importlib
import runpy
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # where their programs have themselves

from pyg_examples.__main__ import _judged  # noqa: E402
from pyg_examples.examples import EXAMPLES, LEFT_OUT, Example  # noqa: E402
from pyg_examples.rewrite import edited, with_khop  # noqa: E402

SCRIPT = """
import torch
from torch_geometric.loader import (
    DataLoader,
    NeighborLoader,
)
from torch_geometric.data.lightning import LightningNodeData as Nodes
"""


def test_imports_are_divided_between_khop_and_pyg():
    changed = with_khop(SCRIPT).strip().splitlines()
    assert changed == [
        "import torch",
        "from khop.loader import NeighborLoader",
        "from torch_geometric.loader import DataLoader",
        "from khop.lightning import LightningNodeData as Nodes",
    ]
    with pytest.raises(ValueError, match="imports nothing that khop has"):
        with_khop("from torch_geometric.loader import DataLoader")


def test_an_edit_without_effect_is_an_error():
    assert edited("epochs=20", [(r"epochs=\d+", "epochs=2")]) == "epochs=2"
    with pytest.raises(ValueError, match="nothing that matches 'batch_size'"):
        edited("epochs=20", [("batch_size", "size")])


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [
        (0, "Test: 0.10\nTest: 0.90", "passed: 0.9 (at least 0.5)"),
        (0, "Test: 0.90\nTest: 0.10", "FAILED: 0.1 (at least 0.5)"),
        (0, "Train: 0.90", "FAILED: it printed no figure"),
        (1, "Test: 0.90\nKeyError: 'x'\n", "FAILED: 1: KeyError: 'x'"),
    ],
)
def test_a_run_is_judged_by_its_last_figure(status, output, outcome):
    example = Example("a.py", r"Test: (\d\.\d+)", at_least=0.5)
    assert _judged(example, status, output) == outcome


def test_each_example_asserts_something():
    assert all((e.at_least > 0) != (e.at_most < float("inf")) for e in EXAMPLES)
    assert not {e.script for e in EXAMPLES} & set(LEFT_OUT)


@pytest.mark.parametrize("program", ["pyg_examples", "pyg_tests"])
def test_a_folder_that_is_no_checkout_is_an_error(program, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [program, "--checkout", str(tmp_path)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(HERE / program), run_name="__main__")  # as Python runs a folder
    assert ended.value.code == 2
    assert "name a working tree of PyG" in capsys.readouterr().err


def test_names_that_stand_for_khop_are_pygs():
    """PyG's tests would go on with PyG's own loaders if a name had changed."""
    pytest.importorskip("lightning")
    pytest.importorskip("ogb")
    swap = importlib.import_module("pyg_tests.swap")
    for swapped in ("loaders", "samplers"):
        for path in swap.replacements(swapped):
            module, name = f"torch_geometric.{path}".rsplit(".", 1)
            assert hasattr(sys.modules[module], name)
