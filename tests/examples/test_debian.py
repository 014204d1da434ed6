"""The Debian examples: two trainers, two partitions, and something is learned."""

import json
import re

import pytest
import torch

from khop.datasets import DebianPackages, DebianPackagesHetero
from khop.partition import RandomPartitioner

# The largest section has 10.5 % of the packages.
CHANCE = 0.105


def thinned(packages):
    """A seventh of the training packages, and some for validation and test: enough to learn."""
    number = torch.arange(packages.num_nodes)
    packages.train_mask &= number % 7 == 0
    packages.val_mask &= number % 20 == 0
    packages.test_mask &= number % 20 == 0


def accuracy_of(printed):
    return float(re.search(r"test accuracy: ([\d.]+)", printed)[1])


def test_sage(run_example, tmp_path):
    data = DebianPackages(undirected=True)[0]
    thinned(data)
    RandomPartitioner.from_data(data, tmp_path / "parts", 2).partition()
    arguments = ("--parts", tmp_path / "parts", "--epochs", 2, "--batch-size", 128)
    printed = run_example("debian_sage.py", *arguments, trainers=2)
    assert accuracy_of(printed) > 4 * CHANCE
    printed = run_example("cooperative.py", *arguments, trainers=2)
    assert accuracy_of(printed) > 4 * CHANCE


@pytest.fixture(scope="module")
def hetero_parts(tmp_path_factory):
    data = DebianPackagesHetero(undirected=True)[0]
    thinned(data["package"])
    root = tmp_path_factory.mktemp("hetero") / "parts"
    RandomPartitioner.from_data(data, root, 2).partition()
    return root


@pytest.mark.parametrize("options", [["rgcn"], ["hgt", "--leave-out", "tag"]])
def test_hetero(run_example, hetero_parts, tmp_path, options):
    """Also without a node type: nothing is drawn of it, and there is no table for it."""
    pytest.importorskip("matplotlib")
    printed = run_example(
        *("debian_hetero.py", "--parts", hetero_parts, "--epochs", 2, "--batch-size", 128),
        *("--hidden", 32, "--output", tmp_path, "--model", *options),
        trainers=2,
    )
    assert printed.count("seeds/s") == 2
    assert accuracy_of(printed) > 4 * CHANCE
    shares = [float(share) for share in re.findall(r"([\d.]+)% remote", printed)]
    assert len(shares) == 2
    assert all(40 < share < 60 for share in shares)  # of two random parts
    run = json.loads((tmp_path / "run.json").read_text())
    assert [entry["epoch"] for entry in run["history"]] == [1, 2]
    assert (tmp_path / "run.png").stat().st_size > 0
