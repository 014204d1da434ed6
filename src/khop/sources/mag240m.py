"""Reader of OGB-LSC's MAG240M, whose arrays are mapped.

    processed/author___writes___paper/edge_index.npy    [2, E], and so on for each relation
    processed/paper/node_feat.npy, node_label.npy, node_year.npy
    meta.pt         {node type: number of nodes, "num_classes": ...}
    split_dict.pt   {"train", "valid", "test...": ids of papers}

Papers have x (float16), y, year, train_mask, val_mask and test_mask, which joins all lists whose
names begin with 'test'. Other node types have x if there is a node_feat.npy in their folder.
Imports torch for meta.pt and split_dict.pt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from khop.data.files import load_npy
from khop.partition.source import GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import attribute, edges_by_folder, label_attribute, mask_attribute
from khop.sources.scratch import Scratch
from khop.sources.torch_files import load_numbers

_FOLDER = "mag240m_kddcup2021"

_RELATIONS, _LABELLED = "*___*___*", "paper"
_ATTRS = {"node_feat": "x", "node_year": "year"}


class Mag240m(Source):
    """Reader of OGB-LSC's MAG240M, by name or as a folder."""

    names = ("ogb:mag240m",)
    paths = "its folder"
    about = (
        "OGB-LSC's MAG240M, in `--root`: types, features in float16, `year`, labels, masks; masks "
        "come from its split"
    )
    unpacked = "labels, masks"

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is the data set's name, or its folder."""
        return spec in self.names or _is_mag240m(Path(spec))

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph of a folder with meta.pt, split_dict.pt and processed/."""
        folder = root / _FOLDER if spec in self.names else Path(spec)
        if not _is_mag240m(folder):
            raise FileNotFoundError(f"'{folder}' is not MAG240M: meta.pt or processed/ is missing")
        meta, processed = load_numbers(folder / "meta.pt"), folder / "processed"
        if not isinstance(meta, dict):
            raise ValueError(f"'{folder / 'meta.pt'}' holds no numbers of nodes by type")
        edges = edges_by_folder(processed, _RELATIONS, "___", by_rows=False)
        names = dict.fromkeys(name for edge_type in edges for name in edge_type[::2])
        missing = [name for name in names if name not in meta]
        if missing:
            raise ValueError(f"'{folder / 'meta.pt'}' lacks the number of nodes of {missing}")
        nodes = {}
        for name in names:
            node = nodes[name] = NodeSource(meta[name])
            for stem, attr in _ATTRS.items():
                file = processed / name / f"{stem}.npy"
                if file.exists():
                    node.attrs[attr] = attribute(load_npy(file, "r"), f"'{file}'")
            labels = processed / name / "node_label.npy"
            if labels.exists():
                node.attrs["y"] = label_attribute(load_npy(labels, "r"), labels, scratch)
        if _LABELLED in nodes:
            _add_masks(folder / "split_dict.pt", nodes[_LABELLED], scratch)
        return GraphSource(nodes, edges, heterogeneous=True)


def _is_mag240m(folder: Path) -> bool:
    return (folder / "meta.pt").exists() and any((folder / "processed").glob(_RELATIONS))


def _add_masks(file: Path, papers: NodeSource, scratch: Scratch) -> None:
    splits = load_numbers(file)
    if not isinstance(splits, dict) or not {"train", "valid"} <= set(splits):
        raise ValueError(f"'{file}' holds no lists of papers called train, valid and test")
    tests = [np.asarray(ids) for name, ids in splits.items() if str(name).startswith("test")]
    for name, ids in (
        ("train_mask", np.asarray(splits["train"])),
        ("val_mask", np.asarray(splits["valid"])),
        ("test_mask", np.concatenate([np.empty(0, np.int64), *tests])),
    ):
        papers.attrs[name] = mask_attribute(ids, papers.count, file, [name], scratch)
