"""Random loaders against the CPU: a difference is found, and told by the loader's number."""

from __future__ import annotations

import json

import pytest
import torch
from torch_geometric.data import Data

from khop_bench.gpu import random_loaders

pytestmark = pytest.mark.filterwarnings("ignore:.* reverse:UserWarning")


@pytest.mark.parametrize("number", range(6))
def test_devices_give_the_cpus_batches(number):
    assert random_loaders.compare(number, "emulated") is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.tensor([1.0, 3.0])}, "'x' is not the CPU's"),
        ({"x": torch.tensor([1, 2])}, "'x' is not the CPU's"),
        ({"batch_size": 3}, "'batch_size' is 3, not 2"),
        ({"more": torch.tensor([1])}, "attributes "),
        ({}, None),
    ],
)
def test_differences(changed, message):
    given = {"x": torch.tensor([1.0, 2.0]), "batch_size": 2}
    found = random_loaders.difference(Data(**{**given, **changed}), Data(**given))
    assert found is None if message is None else message in found


def test_loaders_that_differ_or_fail_are_written_with_their_numbers(monkeypatch, tmp_path, capsys):
    def compare(number, device):
        if number == 8:
            raise RuntimeError("CUDA error")
        return "batch 0: 'x' is not the CPU's" if number == 7 else None

    clock = iter(range(100))
    monkeypatch.setattr(random_loaders, "compare", compare)
    monkeypatch.setattr(random_loaders.time, "monotonic", lambda: next(clock))
    output = tmp_path / "found.json"
    words = ["x", "--device", "emulated", "--seconds", "4", "--first", "5"]
    monkeypatch.setattr("sys.argv", [*words, "--output", str(output)])
    assert random_loaders.main() == 1
    found = json.loads(output.read_text())
    assert found["tried"] == 5
    assert list(found["different"]) == ["7", "8"]
    assert "RuntimeError: CUDA error" in found["different"]["8"]
    assert "5 loaders, 2 of them different" in capsys.readouterr().out
