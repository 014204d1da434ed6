"""Reader of OGB-LSC's MAG240M: arrays by type below processed/, mapped.

    processed/author___writes___paper/edge_index.npy    [2, E], and so on for each relation
    processed/paper/node_feat.npy, node_label.npy, node_year.npy
    meta.pt         {node type: number of nodes, "num_classes": ...}
    split_dict.pt   {"train", "valid", "test...": ids of papers}

Papers have x (float16), y and year, train_mask, val_mask and test_mask (all lists whose names begin
with 'test'). Other node types have x if there is a node_feat.npy in their folder.
Any process; imports torch for the two files of torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from khop.data.files import load_npy
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import attribute, edge_type_of, edges_of, flat_labels, mask_of
from khop.sources.scratch import Scratch, identity
from khop.sources.torch_files import load_numbers
from khop.typing import EdgeType

_FOLDER = "mag240m_kddcup2021"

_LABELLED = "paper"
_ATTRS = {"node_feat": "x", "node_year": "year"}


class Mag240m(Source):
    """OGB-LSC's MAG240M, by name or as a folder."""

    names = ("ogb:mag240m",)
    paths = "its folder"
    about = (
        "OGB-LSC's MAG240M, in `--root`: types, features in float16, `year`, labels, masks; masks "
        "come from its split"
    )
    unpacked = "labels, masks"

    def matches(self, spec: str) -> bool:
        """Return True for the data set's name, and for its folder."""
        return spec in self.names or is_mag240m(Path(spec))

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """See `read_mag240m`."""
        return read_mag240m(root / _FOLDER if spec in self.names else Path(spec), scratch)


def is_mag240m(folder: Path) -> bool:
    """Return True if a folder has MAG240M's layout."""
    return (folder / "meta.pt").exists() and any((folder / "processed").glob("*___*___*"))


def read_mag240m(folder: Path, scratch: Scratch) -> GraphSource:
    """Read the graph.

    Args:
        folder: with meta.pt, split_dict.pt and processed/.
        scratch: where labels and masks are written.

    Raises:
        FileNotFoundError: a file of the layout is missing.
        ValueError, TypeError, IndexError: a file has wrong content; the message names it.
    """
    if not is_mag240m(folder):
        raise FileNotFoundError(f"'{folder}' is not MAG240M: meta.pt or processed/ is missing")
    meta = load_numbers(folder / "meta.pt")
    if not isinstance(meta, dict):
        raise ValueError(f"'{folder / 'meta.pt'}' holds no numbers of nodes by type")
    edges: dict[EdgeType, EdgeSource] = {}
    for path in sorted((folder / "processed").glob("*___*___*")):
        file = path / "edge_index.npy"
        edge_type = edge_type_of(path.name, "___", f"'{path.parent}'")
        edges[edge_type] = edges_of(load_npy(file, "r"), f"'{file}'", by_rows=False)
    names = dict.fromkeys(name for edge_type in edges for name in edge_type[::2])
    missing = [name for name in names if name not in meta]
    if missing:
        raise ValueError(f"'{folder / 'meta.pt'}' lacks the number of nodes of {missing}")
    nodes = {name: _nodes(folder / "processed" / name, meta[name], scratch) for name in names}
    if _LABELLED in nodes:
        _add_masks(folder / "split_dict.pt", nodes[_LABELLED], scratch)
    return GraphSource(nodes, edges, heterogeneous=True)


def _nodes(folder: Path, count: Any, scratch: Scratch) -> NodeSource:
    node = NodeSource(count)
    for name, attr in _ATTRS.items():
        file = folder / f"{name}.npy"
        if file.exists():
            node.attrs[attr] = attribute(load_npy(file, "r"), f"'{file}'")
    labels = folder / "node_label.npy"
    if labels.exists():
        found = flat_labels(load_npy(labels, "r"), identity(labels), scratch)
        node.attrs["y"] = attribute(found, f"'{labels}'")
    return node


def _add_masks(file: Path, papers: NodeSource, scratch: Scratch) -> None:
    splits = load_numbers(file)
    if not isinstance(splits, dict) or not {"train", "valid"} <= set(splits):
        raise ValueError(f"'{file}' holds no lists of papers called train, valid and test")
    tests = [np.asarray(ids) for name, ids in splits.items() if str(name).startswith("test")]
    ids_of = {
        "train_mask": [np.asarray(splits["train"])],
        "val_mask": [np.asarray(splits["valid"])],
    }
    for name, lists in {**ids_of, "test_mask": tests}.items():
        ids = np.concatenate([np.empty(0, np.int64), *lists])
        mask = mask_of(ids, papers.count, [identity(file), name], scratch, f"'{file}'")
        papers.attrs[name] = attribute(mask, f"'{file}'")
