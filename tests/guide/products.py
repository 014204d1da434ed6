"""A small ogbn-products, in the files that OGB unpacks what it downloads into."""

import importlib.util
from pathlib import Path

import numpy as np

NUM_NODES, NUM_CLASSES, NUM_FEATURES = 5000, 47, 100
NUM_LINKS = 8000  # OGB adds the reverse of each
NUM_TRAIN, NUM_TEST = 4120, 400


def save(root, seed=0):
    """Writes the data set below `root`, where OGB's loader finds it by its name.

    Products of a class buy one another; features tell the class through noise. Some are bought
    with nothing.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(NUM_CLASSES, size=NUM_NODES)
    bought = rng.integers(NUM_NODES * 49 // 50, size=(NUM_LINKS, 2))
    by_class = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[by_class], np.arange(NUM_CLASSES + 1))
    of = labels[bought[:, 0]]
    peers = by_class[rng.integers(bounds[of], bounds[of + 1])]
    alike = rng.random(NUM_LINKS) < 0.8
    bought[alike, 1] = peers[alike]
    features = rng.normal(size=(NUM_NODES, NUM_FEATURES)).astype(np.float32)
    features[np.arange(NUM_NODES), labels] += 1.0
    folder = Path(root) / "ogbn_products"
    _write(folder / "raw/edge", bought)
    _write(folder / "raw/node-feat", features)
    _write(folder / "raw/node-label", labels)
    _write(folder / "raw/num-node-list", [NUM_NODES])
    _write(folder / "raw/num-edge-list", [NUM_LINKS])
    order = rng.permutation(NUM_NODES)
    parts = np.split(order, [NUM_TRAIN, NUM_NODES - NUM_TEST])
    for name, ids in zip(("train", "valid", "test"), parts, strict=True):
        _write(folder / "split/sales_ranking" / name, ids)
    (folder / "RELEASE_v1.txt").write_text("")


def _write(path, rows):
    import pandas as pd

    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(f"{path}.csv.gz", header=False, index=False)


def let_ogb_read_its_files():
    """Since torch 2.6 OGB's calls of `torch.load` admit no classes; the examples name them."""
    file = Path(__file__).parents[2] / "examples" / "ogb_data.py"
    spec = importlib.util.spec_from_file_location("ogb_data", file)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
