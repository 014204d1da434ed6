"""GLT's `DistDataset`: a part of a khop folder, or of arrays in memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from khop.data import Feature as Rows
from khop.distributed.dataset import DistDataset as Partition
from khop.glt.data import Dataset, Feature, Graph, Topology
from khop.glt.partition.books import owners_of
from khop.glt.partition.part_writer import WEIGHTS, EdgePart, GraphPart, NodePart, add_masks
from khop.glt.partition.parts import EDGE_FEATURES, FEATURES, LABELS, load_edges
from khop.glt.typing import EdgeType, NodeType
from khop.glt.utils import id2idx
from khop.loader.batches.collate import to_tensor
from khop.storage.folder import edge_array, edge_attr_path
from khop.typing import EDGE, NODE, EdgeDir, IntArray

SPLITS = ("train_mask", "val_mask", "test_mask")
"""Boolean attributes that splits are served as, in the order of `init_node_split`."""


class DistDataset(Partition):
    """A part of a partitioned graph, with access to the others; see `khop.distributed.DistDataset`.

    Made of arrays, the part is written as a khop folder into the machine's temporary directory, and
    removed with the data set: khop's processes map files and share no memory. Sizes of other parts
    come from the books, so these are needed.

    Args:
        num_partitions: number of parts.
        partition_idx: the part.
        graph_partition: its edges by original id, `Graph` or {edge type: `Graph`}; all edges whose
            source ('out') or destination ('in') the part owns.
        node_feature_partition: `Feature` with rows for its nodes, or {node type: `Feature`}.
        edge_feature_partition: `Feature` with rows for its edges, or {edge type: `Feature`}.
        whole_node_labels: [num_nodes] labels of the whole graph, or {node type: labels}.
        node_pb: part of each node, or {node type: such}; a tensor or a `RangePartitionBook`.
        edge_pb: part of each edge, likewise.
        node_feat_pb, edge_feat_pb, graph_caching, id_filter, id_select: accepted, not needed.
        edge_dir: direction of the draws; the topologies'.
        node_split: ids of training, validation and test nodes.

    Raises:
        ValueError, IndexError: arrays that do not fit one another or the books.

    Example:
        >>> graph = Graph(Topology(torch.tensor([[0, 1, 2], [1, 2, 0]])), "CPU")
        >>> books = torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.long)
        >>> dataset = DistDataset(1, 0, graph, node_pb=books[0], edge_pb=books[1])
        >>> dataset.num_partitions, dataset.edge_dir
        (1, 'out')
    """

    def __init__(
        self,
        num_partitions: int = 1,
        partition_idx: int = 0,
        graph_partition: Graph | Mapping[EdgeType, Graph] | None = None,
        node_feature_partition: Any = None,
        edge_feature_partition: Any = None,
        whole_node_labels: Any = None,
        node_pb: Any = None,
        edge_pb: Any = None,
        node_feat_pb: Any = None,
        edge_feat_pb: Any = None,
        edge_dir: Literal["in", "out"] = "out",
        graph_caching: bool = False,
        node_split: Any = None,
        id_filter: Any = None,
        id_select: Any = None,
    ) -> None:
        del node_feat_pb, edge_feat_pb, graph_caching, id_filter, id_select
        super().__init__()
        self.node_pb, self.edge_pb = node_pb, edge_pb
        self._split = Dataset(node_split=node_split)
        self._labels: dict[NodeType, Tensor] = {}
        self._asked_dir: EdgeDir = edge_dir
        self._of_arrays = graph_partition is not None
        if graph_partition is None:
            return
        if node_pb is None or edge_pb is None:
            raise ValueError(
                "a part of arrays needs the books of nodes and edges: node_pb, edge_pb"
            )
        place = (partition_idx, num_partitions)
        features = node_feature_partition, edge_feature_partition
        part = _graph_part(place, graph_partition, features, (node_pb, edge_pb))
        for node_type, labels in _by_type(whole_node_labels, NODE).items():
            self._labels[node_type] = torch.as_tensor(labels).squeeze()
            owned = part.nodes[node_type].owners == partition_idx
            part.nodes[node_type].attrs[LABELS] = self._labels[node_type][torch.from_numpy(owned)]
        folder = tempfile.mkdtemp(prefix="khop-glt-")
        self._removed = weakref.finalize(self, _remove, folder, os.getpid())
        part.write(folder)
        self.load(folder, partition_idx)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, which does not own the folder."""
        state = super().__getstate__()
        state.pop("_removed", None)
        return state

    @property
    def edge_dir(self) -> EdgeDir:
        """Direction of the draws: the folder's."""
        return self._asked_dir if self.folder is None else self.meta.edge_dir

    @property
    def train_idx(self) -> Any:
        """Ids of training nodes, or {node type: ids}, or None."""
        return self._split.train_idx

    @property
    def val_idx(self) -> Any:
        """Ids of validation nodes, likewise."""
        return self._split.val_idx

    @property
    def test_idx(self) -> Any:
        """Ids of test nodes, likewise."""
        return self._split.test_idx

    def init_node_split(self, node_split: Any = None) -> None:
        """Take the ids of training, validation and test nodes."""
        self._split.init_node_split(node_split)

    def random_node_split(self, num_val: float, num_test: float) -> None:
        """Split this part's nodes at random; arguments as `khop.glt.data.Dataset`'s."""
        from khop.glt.data import random_split

        splits = {}
        for node_type in [t.name for t in self.meta.node_types]:
            own = self.local_nodes(node_type)
            splits[node_type] = [own[ids] for ids in random_split(len(own), num_val, num_test)]
        if self.meta.heterogeneous:
            given: Any = tuple({t: ids[i] for t, ids in splits.items()} for i in range(3))
        else:
            given = splits[NODE]
        self.init_node_split(tuple(given))

    def get_node_types(self) -> list[NodeType] | None:
        """Return the node types of a heterogeneous graph, else None."""
        return [t.name for t in self.meta.node_types] if self.meta.heterogeneous else None

    def get_edge_types(self) -> list[EdgeType] | None:
        """Return the edge types of a heterogeneous graph, else None."""
        return [t.name for t in self.meta.edge_types] if self.meta.heterogeneous else None

    def get_node_label(self, ntype: NodeType | None = None) -> Tensor | None:
        """Return the labels of the whole graph that were given, of a node type."""
        return {**self._labels, **self.node_labels}.get(NODE if ntype is None else ntype)

    def get_node_feature(self, ntype: NodeType | None = None) -> Feature | None:
        """Return the part's rows of a node type by original id; None if it has no features."""
        described = self.meta.node_type(NODE if ntype is None else ntype)
        if FEATURES not in described.attrs:
            return None
        rows = self.opened.node_feature(self.partition_idx, described.name, FEATURES)
        first, last = described.bounds[self.partition_idx : self.partition_idx + 2]
        return _feature(rows, _PlacesInPart(self.opened.id_map(described.name), first, last))

    def get_edge_feature(self, etype: EdgeType | None = None) -> Feature | None:
        """Return the part's rows of an edge type by edge id; None if it has no features."""
        name, part = EDGE if etype is None else etype, self.partition_idx
        described = next(t for t in self.meta.edge_types if t.name == name)
        if EDGE_FEATURES not in described.attrs:
            return None
        ids = np.asarray(edge_array(self.opened, part, name, "edge_id"))
        path = edge_attr_path(part, name, EDGE_FEATURES)
        rows = self.opened.open_attr(path, described.attrs[EDGE_FEATURES], len(ids))
        return _feature(rows, id2idx(torch.from_numpy(ids.astype(np.int64))))

    def get_graph(self, etype: EdgeType | None = None) -> Graph:
        """Return the part's edges of an edge type by original ids, in memory."""
        name = EDGE if etype is None else etype
        edges = load_edges(self.opened, self.partition_idx, name, torch.device("cpu"))
        layout: Literal["CSR", "CSC"] = "CSR" if self.edge_dir == "out" else "CSC"
        topology = Topology(edges.edge_index, edges.eids, edges.weights, layout=layout)
        return Graph(topology, "CPU")

    @property
    def node_features(self) -> Any:
        """`get_node_feature`; of a heterogeneous graph {node type: such}, or None if empty."""
        if not self.meta.heterogeneous:
            return self.get_node_feature()
        known = {t.name: self.get_node_feature(t.name) for t in self.meta.node_types}
        return {t: rows for t, rows in known.items() if rows is not None} or None

    @property
    def edge_features(self) -> Any:
        """`get_edge_feature`; of a heterogeneous graph {edge type: such}, or None if empty."""
        if not self.meta.heterogeneous:
            return self.get_edge_feature()
        known = {t.name: self.get_edge_feature(t.name) for t in self.meta.edge_types}
        return {t: rows for t, rows in known.items() if rows is not None} or None

    @property
    def graph(self) -> Any:
        """`get_graph`; of a heterogeneous graph {edge type: such}."""
        if not self.meta.heterogeneous:
            return self.get_graph()
        return {t.name: self.get_graph(t.name) for t in self.meta.edge_types}

    def serve_splits(self) -> None:
        """Add the splits to a folder of arrays as boolean attributes, for graph servers.

        Raises:
            ValueError: a split has nodes that are another part's.
        """
        splits = (self.train_idx, self.val_idx, self.test_idx)
        if splits[0] is None or not self._of_arrays:
            return
        masks: dict[NodeType, dict[str, Tensor]] = {}
        for name, split in zip(SPLITS, splits, strict=True):
            for node_type, ids in _by_type(split, NODE).items():
                own = self.local_nodes(node_type)
                mask = torch.isin(own, torch.as_tensor(ids))
                if not bool(torch.isin(torch.as_tensor(ids), own).all()):
                    raise ValueError(
                        f"the split of part {self.partition_idx} has nodes of type '{node_type}' "
                        "that are other parts': servers serve splits of their own nodes"
                    )
                masks.setdefault(node_type, {})[name] = mask
        folder = self.opened.root
        add_masks(folder, self.partition_idx, masks)
        self.load(folder, self.partition_idx, self.graph_mode)


class _PlacesInPart:
    """Row of each original id in a part; -1 for other parts' ids."""

    def __init__(self, id_map: IntArray, first: int, last: int) -> None:
        self._id_map, self._first, self._count = id_map, first, last - first

    def __getitem__(self, ids: Tensor) -> Tensor:
        rows = torch.from_numpy(self._id_map[ids.numpy()].astype(np.int64)) - self._first
        return torch.where((rows >= 0) & (rows < self._count), rows, -1)


def _feature(rows: Rows, places: Any) -> Feature:
    """Return mapped rows as GLT's feature."""
    with warnings.catch_warnings():  # mapped files cannot be written, and nobody writes them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return Feature(to_tensor(rows.array, rows.dtype), places, with_gpu=False)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a fork of the process that made it
        shutil.rmtree(folder, ignore_errors=True)


def _by_type(values: Any, single: Any) -> dict[Any, Any]:
    if values is None:
        return {}
    return dict(values) if isinstance(values, Mapping) else {single: values}


def _graph_part(
    place: tuple[int, int],
    graphs: Graph | Mapping[EdgeType, Graph],
    features: tuple[Any, Any],
    books: tuple[Any, Any],
) -> GraphPart:
    part, num_parts = place
    owners = {t: owners_of(book).numpy() for t, book in _by_type(books[0], NODE).items()}
    edge_owners = {t: owners_of(book).numpy() for t, book in _by_type(books[1], EDGE).items()}
    by_type = _by_type(graphs, EDGE)
    layouts = {graph.topo.layout for graph in by_type.values()}
    if len(layouts) != 1:
        raise ValueError(f"the topologies of a part must have one layout (got {sorted(layouts)})")
    nodes = {t: NodePart(known) for t, known in owners.items()}
    for node_type, feature in _by_type(features[0], NODE).items():
        ids = torch.from_numpy(np.flatnonzero(owners[node_type] == part))
        nodes[node_type].attrs[FEATURES] = _rows(feature, ids)
    edge_features = _by_type(features[1], EDGE)
    edges = {}
    for edge_type, graph in by_type.items():
        src, dst, ids, weights = graph.topo.to_coo()
        attrs = {}
        if edge_type in edge_features:
            attrs[EDGE_FEATURES] = _rows(edge_features[edge_type], ids)
        if weights is not None:
            attrs[WEIGHTS] = weights
        if edge_type not in edge_owners:
            raise ValueError(f"edge_pb has no book of edge type {edge_type}")
        counts = np.bincount(edge_owners[edge_type], minlength=num_parts).tolist()
        edges[edge_type] = EdgePart(src.numpy(), dst.numpy(), ids.numpy(), counts, attrs)
    direction: Literal["in", "out"] = "out" if layouts == {"CSR"} else "in"
    return GraphPart(part, num_parts, direction, isinstance(graphs, Mapping), nodes, edges)


def _rows(feature: Any, ids: Tensor) -> Tensor:
    rows: Tensor = feature.cpu_get(ids) if isinstance(feature, Feature) else feature[ids]
    return rows
