"""Data sets in OGB's format, written by OGB's tool for contributors."""

import contextlib
import os
from pathlib import Path

import numpy as np


def save(folder, name, graph, labels, split, num_classes):
    """Save a graph as the OGB data set `name`. Return OGB's root folder for it.

    `labels` [N] and the three lists of `split` are of a homogeneous graph, or dictionaries by node
    type. A folder of mappings, which OGB requires, is made up.
    """
    from ogb.io import DatasetSaver

    hetero = isinstance(labels, dict)
    with _working_in(folder):
        saver = DatasetSaver(dataset_name=name, is_hetero=hetero, version=1)
        saver.save_graph_list([graph])
        column = {t: y[:, None] for t, y in labels.items()} if hetero else labels[:, None]
        saver.save_target_labels(column)
        saver.save_split(split, split_name="random")
        Path("mapping").mkdir()
        Path("mapping/README.md").write_text("none")
        saver.copy_mapping_dir("mapping")
        saver.save_task_info("classification", eval_metric="acc", num_classes=num_classes)
        saver.get_meta_dict()
    root = Path(folder) / "elsewhere"
    (Path(folder) / f"submission_{name.replace('-', '_')}").rename(root)
    return root


@contextlib.contextmanager
def _working_in(folder):
    """Work in a folder: OGB writes below the working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def thirds(count, seed=0):
    """Split `count` nodes at random into three lists."""
    parts = np.array_split(np.random.default_rng(seed).permutation(count), 3)
    return dict(zip(("train", "valid", "test"), parts, strict=True))
