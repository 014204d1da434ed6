"""The OGB examples, through OGB's own code, on small data sets in OGB's format.

Of both data sets the labels cannot be read off a node's features: what a model gets right beyond
chance it has from neighbours, hence from the loader.
"""

import importlib.util
import re

import numpy as np
import pytest

from support.formats import ogb_saved

pytest.importorskip("ogb")

PYG_CAN_SAMPLE = any(map(importlib.util.find_spec, ("pyg_lib", "torch_sparse")))
LOADERS = [
    "khop",
    pytest.param(
        "pyg", marks=pytest.mark.skipif(not PYG_CAN_SAMPLE, reason="no pyg-lib, no torch-sparse")
    ),
]
NUM_CLASSES = 4


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """A ring of 800 products in four arcs; features tell the arc no better than a whisper does.

    0 0 0 ... 1 1 1 ... 2 2 2 ... 3 3 3 ...      each next to six to both sides
    """
    rng, count = np.random.default_rng(0), 800
    y = np.arange(count) * NUM_CLASSES // count
    steps = np.concatenate([np.arange(1, 7), -np.arange(1, 7)])
    source = np.repeat(np.arange(count), len(steps))
    edge_index = np.stack([source, (source + np.tile(steps, count)) % count])
    x = rng.normal(size=(count, 16)) + 0.8 * np.eye(16)[y]
    graph = {
        "num_nodes": count,
        "edge_index": edge_index,
        "node_feat": x.astype(np.float32),
        "edge_feat": None,
    }
    split = ogb_saved.thirds(count)
    folder = tmp_path_factory.mktemp("products")
    return ogb_saved.save(folder, "ogbn-ring", graph, y, split, NUM_CLASSES)


@pytest.fixture(scope="module")
def mag(tmp_path_factory):
    """Papers with noise for features, whose topics, 40 in four groups, are their venue's.

    institution <- author -> paper -> field_of_study, paper -> paper
    """
    rng = np.random.default_rng(0)
    counts = {"author": 150, "field_of_study": 40, "institution": 10, "paper": 900}
    y = rng.integers(NUM_CLASSES, size=counts["paper"])
    papers = np.arange(counts["paper"])

    def some(of, to, each):
        ends = rng.integers(counts[to], size=each * counts[of])
        return np.stack([np.repeat(np.arange(counts[of]), each), ends])

    topics = [rng.integers(10, size=counts["paper"]) * NUM_CLASSES + y for _ in range(3)]
    graph = {
        "num_nodes_dict": counts,
        "edge_index_dict": {
            ("author", "affiliated_with", "institution"): some("author", "institution", 1),
            ("author", "writes", "paper"): some("author", "paper", 12),
            ("paper", "cites", "paper"): some("paper", "paper", 2),
            ("paper", "has_topic", "field_of_study"): np.stack(
                [np.tile(papers, 3), np.concatenate(topics)]
            ),
        },
        "node_feat_dict": {"paper": rng.normal(size=(len(y), 16)).astype(np.float32)},
    }
    split = {part: {"paper": ids} for part, ids in ogb_saved.thirds(len(y)).items()}
    folder = tmp_path_factory.mktemp("mag")
    return ogb_saved.save(folder, "ogbn-tinymag", graph, {"paper": y}, split, NUM_CLASSES)


def accuracy_of(printed):
    return float(re.findall(r"test accuracy: ([\d.]+)", printed)[-1])


@pytest.mark.parametrize("loader", LOADERS)
def test_ogbn_products(run_example, products, loader):
    printed = run_example(
        *("ogbn_products.py", "--root", products, "--name", "ogbn-ring", "--loader", loader),
        *("--epochs", 3, "--batch-size", 32, "--hidden", 32, "--lr", 0.006, "--eval-every", 2),
    )
    assert printed.count("seeds/s") == 3
    assert printed.count("validation accuracy") == 2
    assert accuracy_of(printed) > 0.8


@pytest.mark.parametrize("loader", LOADERS)
def test_ogbn_mag(run_example, mag, loader):
    printed = run_example(
        *("ogbn_mag.py", "--root", mag, "--name", "ogbn-tinymag", "--loader", loader),
        *("--epochs", 4, "--batch-size", 32, "--hidden", 16, "--num-workers", 0),
    )
    assert printed.count("seeds/s") == 4
    assert accuracy_of(printed) > 0.8
