"""The link-prediction examples rank held-out links well above chance."""

import contextlib
import importlib.util
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

PYG_CAN_SAMPLE = any(map(importlib.util.find_spec, ("pyg_lib", "torch_sparse")))


def test_debian_links(run_example, tmp_path):
    """Few of the training links, one epoch: better than popularity, which ranking starts from."""
    printed = run_example(
        *("debian_links.py", "--parts", tmp_path / "parts", "--epochs", 1, "--batch-size", 256),
        *("--hidden", 32, "--fanout", 4, 2, "--negatives", 4, "--lr", 0.005),
        *("--max-links", 6000, "--max-test", 300),
        trainers=2,
    )
    found = dict(re.findall(r"(\w+): test MRR ([\d.]+)", printed))
    assert set(found) == {"model", "popularity", "chance"}
    found = {name: float(mrr) for name, mrr in found.items()}
    assert found["chance"] < 0.001
    assert found["popularity"] > 100 * found["chance"]
    assert found["model"] > found["popularity"] + 0.01


def test_ranks_are_filtered_and_ties_count_half():
    """Who is named is no rival, nor is the source; of three equal ones the middle rank is taken.

    scores of source 0:   0: 9   1: 8 (named)   2: 5 (target)   3: 5   4: 5   5: 1
    Candidates are 2, 3, 4, 5: the target shares the first three ranks, so its rank is 2. Of two
    sources each has its own.
    """
    example = module_of("debian_links")
    named = example.Named(torch.tensor([[0, 0, 3, 3], [1, 2, 0, 5]]), 6)
    scores = torch.tensor([[9.0, 8, 5, 5, 5, 1], [0, 1, 2, 3, 4, 3]])
    ranks = example.ranks_of(scores, torch.tensor([0, 3]), torch.tensor([2, 5]), named)
    assert ranks.tolist() == [2, 2]
    mrr, _ = example.chance(torch.tensor([[0], [2]]), named)  # among four
    assert mrr == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


@pytest.fixture(scope="module")
def collab(tmp_path_factory):
    """Authors in 20 groups of 30, each linked to 8 of the group; features whisper the group.

    Held-out links join authors of a group, negatives any two authors.
    """
    saver_of = pytest.importorskip("ogb.io").DatasetSaver
    rng, groups, size = np.random.default_rng(0), 20, 30
    count = groups * size

    def inside(each):
        source = np.repeat(np.arange(count), each)
        step = rng.integers(1, size, len(source))
        return np.stack([source, source // size * size + (source % size + step) % size])

    train, held_out = inside(8), inside(1).T
    graph = {
        "num_nodes": count,
        "edge_index": np.concatenate([train, train[::-1]], 1),
        "node_feat": (
            rng.normal(size=(count, 32)) + 0.4 * rng.normal(size=(groups, 32)).repeat(size, 0)
        ).astype(np.float32),
        "edge_weight": np.ones((2 * train.shape[1], 1), np.int64),
    }
    split = {"train": {"edge": train.T, "weight": np.ones(train.shape[1])}}
    for part, edges in (("valid", held_out[::2]), ("test", held_out[1::2])):
        split[part] = {"edge": edges, "edge_neg": rng.integers(count, size=(1000, 2))}
    folder = tmp_path_factory.mktemp("collab")
    with in_folder(folder):
        saver = saver_of(dataset_name="ogbl-collab", is_hetero=False, version=1)
        saver.save_graph_list([graph])
        saver.save_split(split, split_name="time")
        Path("mapping").mkdir()
        Path("mapping/README.md").write_text("none")
        saver.copy_mapping_dir("mapping")
        saver.save_task_info("link prediction", eval_metric="hits@50")
        saver.get_meta_dict()
    root = (folder / "submission_ogbl_collab").rename(folder / "elsewhere")
    as_numpy_1_saved(next(root.rglob("split_dict.pt")))
    return root


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        ("khop", []),
        ("khop", ["--exclude-seed-edges"]),
        pytest.param(
            *("pyg", []),
            marks=pytest.mark.skipif(not PYG_CAN_SAMPLE, reason="no pyg-lib, no torch-sparse"),
        ),
    ],
)
def test_ogbl_collab(run_example, collab, loader, options):
    """Chance is 0.05, the share of negatives that may score higher; so is a model of noise.

    Features alone, without neighbours, reach 0.3.
    """
    printed = run_example(
        *("link_prediction.py", "--root", collab, "--loader", loader, *options),
        *("--epochs", 3, "--batch-size", 128, "--hidden", 32, "--lr", 0.004, "--eval-every", 2),
    )
    assert printed.count("links/s") == 3
    found = re.findall(r"valid hits@50: ([\d.]+), test hits@50: ([\d.]+)", printed)
    assert len(found) == 2
    assert float(found[-1][1]) > 0.5


@contextlib.contextmanager
def in_folder(folder):
    """contextlib.chdir of Python 3.11."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def as_numpy_1_saved(file):
    """Rewrites a file of torch.save with the names that NumPy's modules had before NumPy 2."""
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data.replace(b"numpy._core.", b"numpy.core."))


def module_of(name):
    file = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
