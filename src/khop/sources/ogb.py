"""Reader of OGB's node property prediction data sets.

It reads downloaded files. OGB's package is needed for downloads, and reads a data set as a whole.

A data set is a folder with raw/ and split/NAME/. raw/ has one of four layouts:

- data.npz and node-label.npz: one graph (papers100M, and data sets of `ogb.io.DatasetSaver`)
- edge.csv.gz, node-feat.csv.gz, node-label.csv.gz, num-node-list.csv.gz, ...: one graph
- edge_index_dict.npz, num_nodes_dict.npz, node_feat_dict.npz, ...: a heterogeneous graph
- relations/SRC___REL___DST/edge.csv.gz, node-feat/TYPE/, node-label/TYPE/: a heterogeneous graph.

The result equals the result of OGB's loader for PyG: attributes x, edge_attr, y, and others by
OGB's names. train_mask, val_mask and test_mask are made from the split.
Imports torch for OGB's package, and for a split in a file of torch.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from khop.data import RowStore
from khop.data.files import check_regular, load_torch
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.safe_versions import check_torch
from khop.sources.base import Source
from khop.sources.columns import (
    attribute,
    edge_type_of,
    edges_of,
    ids_of,
    label_attribute,
    mask_attribute,
)
from khop.sources.npz import Npz
from khop.sources.scratch import Scratch
from khop.sources.tables import read_columns, read_rows
from khop.sources.torch_files import (
    INSTEAD,
    containers_admitted,
    load_numbers,
    reason_of,
    refusing_code,
)
from khop.typing import EDGE, NODE, Array, EdgeType, NodeType

# Data sets whose files have one direction. OGB's loader adds the reverse of every edge.
_ONE_DIRECTION = ("products", "proteins")
_NAMES = {"node_feat": "x", "edge_feat": "edge_attr", "species": "node_species"}
_SPLITS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
# One file for each layout, by which it is recognised.
_MARKS = ("data.npz", "edge.csv.gz", "edge_index_dict.npz", "num-node-dict.csv.gz")
_GZ = ".csv.gz"


class Ogb(Source):
    """Reader of OGB's node property prediction data sets, by name or as folders."""

    names = ("ogb:NAME",)
    paths = "the folder of a data set"
    about = (
        "an OGB node property prediction data set, such as `ogb:ogbn-arxiv` or `ogb:ogbn-mag`, as "
        "it is downloaded (`raw/`, `split/`); masks come from its split. `--root` is the folder "
        "that holds it, or will: without a download OGB's package makes one; for a data set of "
        "your own, made with `ogb.io.DatasetSaver`, the folder with its `meta_dict.pt`"
    )
    unpacked = "text (`.csv.gz`) and deflated arrays"

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is 'ogb:NAME', or the folder of a data set."""
        return spec.startswith("ogb:") or _is_ogb(Path(spec))

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read a data set. OGB's package downloads a named data set that is not in `root`."""
        folder = Path(spec)
        if spec.startswith("ogb:"):
            name = spec.removeprefix("ogb:")
            is_own = (root / "meta_dict.pt").exists()  # `DatasetSaver` wrote it
            folder = root / ("_".join(name.split("-")[1:]) if is_own else name.replace("-", "_"))
            if not _is_ogb(folder):
                return GraphSource.from_data(read_with_ogb(name, root))
        raw, graph = folder / "raw", _Graph(folder, scratch)
        if (raw / "data.npz").exists():
            _read_npz(raw, graph)
        elif (raw / "edge_index_dict.npz").exists():
            _read_npz_by_type(raw, graph)
        elif (raw / "edge.csv.gz").exists():
            _read_csv(raw, graph, folder.name.removeprefix("ogbn_") in _ONE_DIRECTION)
        else:
            _read_csv_by_type(raw, graph)
        return graph.with_masks()


def _is_ogb(folder: Path) -> bool:
    return any((folder / "raw" / mark).exists() for mark in _MARKS)


class _Graph:
    """Graph that `Ogb.read` is reading: the nodes, edges and attributes so far."""

    def __init__(self, folder: Path, scratch: Scratch) -> None:
        self.folder, self.scratch = folder, scratch
        self.nodes: dict[NodeType, NodeSource] = {}
        self.edges: dict[EdgeType, EdgeSource] = {}

    def add_nodes(self, node_type: NodeType, counts: Array, title: str) -> None:
        """Add a node type. `counts` is its number of nodes in each graph of the file.

        Raises:
            ValueError: there are several graphs. The message begins with `title`.
        """
        self.nodes[node_type] = NodeSource(_only(counts, title))

    def add_edges(
        self, edge_type: EdgeType, edges: EdgeSource, counts: Array | None, title: str
    ) -> None:
        """Add an edge type. `counts`, its number of edges, is checked if not None."""
        if counts is not None and _only(counts, title) != edges.num_edges:
            raise ValueError(f"{title} has {edges.num_edges} edges, not {_only(counts, title)}")
        self.edges[edge_type] = edges

    def add_attr(self, holder: NodeType | EdgeType, name: str, values: RowStore, of: str) -> None:
        """Add an attribute to a node or edge type. `of` is its name in errors."""
        holders: Mapping[Any, NodeSource | EdgeSource] = {**self.nodes, **self.edges}
        if holder not in holders:
            raise ValueError(f"{of} is of {holder!r}, of which there are neither nodes nor edges")
        holders[holder].attrs[_NAMES.get(name, name)] = values

    def add_labels(self, node_type: NodeType, values: Array, file: Path) -> None:
        """Add labels as attribute `y` of a node type. `file` is named in errors."""
        labels = label_attribute(values, file, self.scratch, node_type)
        self.add_attr(node_type, "y", labels, f"'{file}'")

    def with_masks(self) -> GraphSource:
        """Return the graph with masks of its training, validation and test nodes."""
        heterogeneous = [*self.edges] != [EDGE]
        for split, file, of_types in _splits(self.folder, self.scratch, heterogeneous):
            for node_type, ids in of_types.items():
                if node_type not in self.nodes:
                    raise ValueError(f"'{file}' is a split of '{node_type}', which has no nodes")
                node, key = self.nodes[node_type], [split, node_type]
                mask = mask_attribute(ids, node.count, file, key, self.scratch)
                node.attrs[_SPLITS[split]] = mask
        return GraphSource(self.nodes, self.edges, heterogeneous)


def _only(counts: Array, title: str) -> int:
    """Return the only entry of `counts`, a list with one entry per graph.

    Raises:
        ValueError: there are several graphs.
    """
    counts = ids_of(counts.reshape(-1), title)
    if len(counts) != 1:
        raise ValueError(f"{title} has {len(counts)} graphs: khop partitions one")
    return int(counts[0])


# One graph.


def _read_npz(raw: Path, graph: _Graph) -> None:
    path = raw / "data.npz"
    arrays = Npz(path, graph.scratch)
    for name in ("edge_index", "num_nodes_list"):
        if name not in arrays:
            raise ValueError(f"'{path}' holds no '{name}' (got {sorted(arrays)[:10]})")
    graph.add_nodes(NODE, arrays["num_nodes_list"], f"'num_nodes_list' of '{path}'")
    edges = edges_of(arrays["edge_index"], f"'edge_index' of '{path}'", by_rows=False)
    graph.add_edges(EDGE, edges, arrays.get("num_edges_list"), f"'{path}'")
    for name in sorted(set(arrays) - {"edge_index", "num_nodes_list", "num_edges_list"}):
        holders: dict[str, NodeType | EdgeType] = {"node": NODE, "edge": EDGE}
        holder = holders.get(name[:4])
        if holder is None:
            raise ValueError(f"array '{name}' of '{path}' is neither of nodes nor of edges")
        title = f"'{name}' of '{path}'"
        graph.add_attr(holder, name, attribute(arrays[name], title), title)
    labels = raw / "node-label.npz"
    if labels.exists():
        graph.add_labels(NODE, Npz(labels, graph.scratch)["node_label"], labels)


def _read_csv(raw: Path, graph: _Graph, one_direction: bool) -> None:
    counts = raw / "num-node-list.csv.gz"
    graph.add_nodes(NODE, read_rows([counts], graph.scratch), f"'{counts}'")
    _add_csv_edges(raw, EDGE, graph, one_direction)
    for file in [raw / f"node-feat{_GZ}", raw / f"species{_GZ}", *sorted(raw.glob(f"node_*{_GZ}"))]:
        if file.exists():
            _add_csv(file, NODE, graph)
    labels = raw / f"node-label{_GZ}"
    if labels.exists():
        graph.add_labels(NODE, read_rows([labels], graph.scratch), labels)


def _add_csv_edges(raw: Path, edge_type: EdgeType, graph: _Graph, one_direction: bool) -> None:
    file, counts = raw / f"edge{_GZ}", raw / f"num-edge-list{_GZ}"
    both = ("edges", "rows") if one_direction else ("", "")
    rows = read_rows([file], graph.scratch, both_ways=both[0])
    numbers = read_rows([counts], graph.scratch) * (2 if one_direction else 1)
    graph.add_edges(edge_type, edges_of(rows, f"'{file}'", by_rows=True), numbers, f"'{file}'")
    for attr in [raw / f"edge-feat{_GZ}", *sorted(raw.glob(f"edge_*{_GZ}"))]:
        if attr.exists():
            _add_csv(attr, edge_type, graph, both[1])


def _add_csv(file: Path, holder: Any, graph: _Graph, both_ways: str = "") -> None:
    name = file.name.removesuffix(_GZ).replace("-", "_")
    rows = read_rows([file], graph.scratch, both_ways=both_ways, narrow=True)
    graph.add_attr(holder, name, attribute(rows, f"'{file}'"), f"'{file}'")


# Graphs with several types.


def _read_npz_by_type(raw: Path, graph: _Graph) -> None:
    counts = Npz(raw / "num_nodes_dict.npz", graph.scratch)
    for node_type in sorted(counts):
        graph.add_nodes(node_type, counts[node_type], f"'{counts.path}'")
    edges, numbers = (
        Npz(raw / f"{name}.npz", graph.scratch) for name in ("edge_index_dict", "num_edges_dict")
    )
    for edge_type, key in sorted((_edge_type(key, edges.path), key) for key in edges):
        title = f"'{key}' of '{edges.path}'"
        pairs = edges_of(edges[key], title, by_rows=False)
        graph.add_edges(edge_type, pairs, numbers.get(key), title)
    for file in sorted([*raw.glob("node_*.npz"), *raw.glob("edge_*.npz")]):
        if file == edges.path:
            continue
        of_edges = file.name.startswith("edge_")
        for key, values in Npz(file, graph.scratch).items():
            holder: NodeType | EdgeType = _edge_type(key, file) if of_edges else key
            title = f"'{key}' of '{file}'"
            name = file.stem.removesuffix("_dict")
            graph.add_attr(holder, name, attribute(values, title), title)
    labels = raw / "node-label.npz"
    if labels.exists():
        for node_type, values in Npz(labels, graph.scratch).items():
            graph.add_labels(node_type, values, labels)


def _read_csv_by_type(raw: Path, graph: _Graph) -> None:
    counts = raw / f"num-node-dict{_GZ}"
    for node_type, numbers in sorted(read_columns([counts], graph.scratch).items()):
        graph.add_nodes(node_type, numbers, f"'{counts}'")
    relations = raw / "relations"
    for edge_type, folder in sorted(
        (_edge_type(p.name, relations), p) for p in relations.iterdir()
    ):
        _add_csv_edges(folder, edge_type, graph, False)
    for node_type in graph.nodes:
        folder = raw / "node-feat" / node_type
        for file in [folder / f"node-feat{_GZ}", *sorted(folder.glob(f"node_*{_GZ}"))]:
            if file.exists():
                _add_csv(file, node_type, graph)
        labels = raw / "node-label" / node_type / f"node-label{_GZ}"
        if labels.exists():
            graph.add_labels(node_type, read_rows([labels], graph.scratch), labels)


def _edge_type(name: str, path: Path) -> EdgeType:
    return edge_type_of(name, "___", f"'{path}'")


# Splits.


def _splits(
    folder: Path, scratch: Scratch, heterogeneous: bool
) -> list[tuple[str, Path, dict[NodeType, Array]]]:
    """Return (name, file, {node type: ids of its nodes}) of 'train', 'valid' and 'test'."""
    folders = [path for path in (folder / "split").glob("*") if path.is_dir()]
    if len(folders) > 1:
        raise ValueError(f"'{folder / 'split'}' holds {len(folders)} splits: keep one of them")
    if not folders:
        return []
    stored = folders[0] / "split_dict.pt"
    if stored.exists():
        splits = load_numbers(stored)
        return [(name, stored, _by_type(splits, name, stored)) for name in _SPLITS]
    types = [p for p in folders[0].iterdir() if p.is_dir()] if heterogeneous else folders
    return [
        (name, path / f"{name}{_GZ}", {path.name if heterogeneous else NODE: ids})
        for path in sorted(types)
        for name in _SPLITS
        for ids in [read_rows([check_regular(path / f"{name}{_GZ}")], scratch)]
    ]


def _by_type(splits: Any, name: str, file: Path) -> dict[NodeType, Array]:
    ids = splits.get(name) if isinstance(splits, dict) else None
    by_type = ids if isinstance(ids, dict) else {NODE: ids}
    if not all(isinstance(key, str) and hasattr(ids, "__len__") for key, ids in by_type.items()):
        raise ValueError(f"'{file}' holds no lists of nodes called {', '.join(_SPLITS)}")
    return {node_type: np.asarray(ids) for node_type, ids in by_type.items()}


# OGB's package.


def read_with_ogb(name: str, root: Path) -> Any:
    """Read a data set as a PyG object, with masks made of its split.

    Args:
        name: 'ogbn-products' for example.
        root: folder of OGB's data sets, or of a data set that `DatasetSaver` wrote.

    Raises:
        SecurityError: torch is older than 2.10.
        FileNotFoundError, ValueError: the data set is missing, or damaged.
        ModuleNotFoundError: OGB's package is not installed.
    """
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"OGB data sets need package ogb: pip install ogb ({error})"
        ) from None
    stored = root if (root / "meta_dict.pt").exists() else root / name.replace("-", "_")
    check_torch(stored, INSTEAD)
    for file in stored.rglob("*"):
        if not file.is_dir():
            check_regular(file)  # OGB does not check
    try:
        # OGB prints, asks before large downloads, and calls exit().
        with contextlib.redirect_stdout(sys.stderr), containers_admitted(), refusing_code():
            dataset = PygNodePropPredDataset(name, str(root), meta_dict=_ogb_meta(name, root))
            data, splits = dataset[0], dataset.get_idx_split()
    except (EOFError, SystemExit):
        raise FileNotFoundError(
            f"data set '{name}' is not in '{root}' and was not downloaded"
        ) from None
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"the stored copy of '{name}' in '{root}' holds more than a graph, or is damaged: "
            f"remove its 'processed' folder ({reason_of(error)})"
        ) from None
    if dataset.is_hetero:
        return _hetero_of_ogb(data, splits)
    _add_labels_and_masks(data, data.y, splits)
    return data


def _ogb_meta(name: str, root: Path) -> dict[str, Any] | None:
    """Read the description of a data set that OGB's `DatasetSaver` wrote."""
    file = root / "meta_dict.pt"
    if not file.is_file():
        return None
    try:
        meta: dict[str, Any] = load_torch(file, INSTEAD)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(f"'{file}' is damaged: {reason_of(error)}") from None
    folder = root / Path(str(meta["dir_path"])).name  # it may have been moved
    if folder.name != "_".join(name.split("-")[1:]):
        raise FileNotFoundError(f"'{root}' holds data set '{folder.name}', not '{name}'")
    return {**meta, "dir_path": str(folder)}


def _hetero_of_ogb(data: Any, splits: dict[str, Any]) -> Any:
    """Convert OGB's object, with dictionaries by type, and its splits to a `HeteroData`."""
    from torch_geometric.data import HeteroData

    graph = HeteroData()
    for node_type, count in data.num_nodes_dict.items():
        graph[node_type].num_nodes = int(count)
    for name, values in data.to_dict().items():
        if isinstance(values, dict) and name not in ("num_nodes_dict", "y_dict"):
            for of_type, value in values.items():
                graph[of_type][name.removesuffix("_dict")] = value
    for node_type, labels in data.y_dict.items():
        split = {part: ids[node_type] for part, ids in splits.items()}
        _add_labels_and_masks(graph[node_type], labels, split)
    return graph


def _add_labels_and_masks(store: Any, labels: Any, splits: dict[str, Any]) -> None:
    """Store labels in a PyG store, as [N], and a mask for the node ids of each split."""
    import torch

    for name, split in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        store[name] = torch.zeros(int(store.num_nodes), dtype=torch.bool)
        store[name][torch.from_numpy(np.asarray(splits[split]))] = True
    if labels is not None:
        store.y = labels.flatten() if labels.dim() == 2 and labels.size(1) == 1 else labels
