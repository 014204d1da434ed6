"""The examples of sampling methods and of seeds by their gradients: they learn."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from khop.datasets import PowerLaw

SCRIPT = Path(__file__).parents[2] / "examples" / "methods.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("khop_example_methods", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data():
    data = PowerLaw(1500, 10_000, undirected=True).data()
    torch.manual_seed(0)
    data.x, data.y = torch.randn(data.num_nodes, 8), torch.arange(data.num_nodes) % 3
    data.train_mask = torch.arange(data.num_nodes) % 2 == 0
    data.test_mask = ~data.train_mask
    return data


def test_every_method_has_batches_that_train(example, data):
    for name, make in example.METHODS.items():
        args = example.parse_arguments(["--method", name, "--batch-size", "100", "--hidden", "8"])
        model, optimizer = example.make_model(data, args)
        before = [p.clone() for p in model.parameters()]
        batch = next(iter(make(data, args)))
        loss = example.batch_loss(model, batch)
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss), name
        assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert 0 <= example.accuracy(model, data, data.test_mask, name) <= 1, name


def test_weights_keep_means(example, data):
    method = ["--method", "labor-1", "--batch-size", "100"]
    args = example.parse_arguments(method)
    batch = next(iter(example.METHODS["labor-1"](data, args)))
    (edge_index, weight, _), _ = example.steps_of(batch)
    rows = edge_index[1]
    sums = torch.zeros(batch.num_nodes).index_add_(0, rows, weight)
    assert torch.allclose(sums, torch.bincount(rows, minlength=batch.num_nodes).float(), atol=1e-3)


@pytest.mark.real_exec
def test_the_script_learns(run_example):
    printed = run_example("methods.py", "--method", "ladies", "--epochs", 1, "--lr", 0.01)
    assert float(re.search(r"test accuracy: ([\d.]+)", printed)[1]) > 0.7
