"""The Debian examples: two trainers, two partitions, and something is learned."""

import json
import re

import pytest

# The largest section has 10.5 % of the packages.
CHANCE = 0.105


def accuracy_of(printed):
    return float(re.search(r"test accuracy: ([\d.]+)", printed)[1])


@pytest.fixture(scope="module")
def arguments(debian_parts):
    """Two epochs of eleven batches."""
    sizes = ("--batch-size", 128, "--hidden", 64, "--lr", 0.01)
    return "--parts", debian_parts, "--epochs", 2, *sizes


@pytest.mark.real_exec
def test_sage(run_example, arguments):
    printed = run_example("debian_sage.py", *arguments, trainers=2)
    assert accuracy_of(printed) > 4 * CHANCE


def test_cooperative(run_example, arguments):
    printed = run_example("cooperative.py", *arguments, trainers=2)
    assert accuracy_of(printed) > 4 * CHANCE


def test_rgcn(run_example, hetero_parts, tmp_path):
    pytest.importorskip("matplotlib")
    printed = run_example(
        *("debian_hetero.py", "--parts", hetero_parts, "--epochs", 2, "--batch-size", 128),
        *("--hidden", 32, "--lr", 0.01, "--output", tmp_path),
        trainers=2,
    )
    assert printed.count("seeds/s") == 2
    assert accuracy_of(printed) > 4 * CHANCE
    shares = re.findall(r"([\d.]+)% reused, ([\d.]+)% remote", printed)
    assert len(shares) == 2
    for reused, remote in shares:
        # Of two random parts.
        assert 0 < float(remote) < 60 and 40 < float(reused) + float(remote) < 60
    run = json.loads((tmp_path / "run.json").read_text())
    assert [entry["epoch"] for entry in run["history"]] == [1, 2]
    assert (tmp_path / "run.png").stat().st_size > 0


def test_hgt_without_a_node_type(run_example, hetero_parts):
    """Nothing is drawn of the node type, and there is no table for it."""
    printed = run_example(
        *("debian_hetero.py", "--parts", hetero_parts, "--epochs", 1, "--batch-size", 128),
        *("--hidden", 32, "--lr", 0.02, "--model", "hgt", "--leave-out", "tag"),
        trainers=2,
    )
    assert printed.count("seeds/s") == 1
    assert accuracy_of(printed) > 4 * CHANCE
