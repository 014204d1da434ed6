"""GLT's `DistDataset`: a part of a khop folder, or of arrays in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from khop.data import RowStore
from khop.distributed.dataset import DistDataset as Partition
from khop.glt.arguments import by_type
from khop.glt.data import Dataset, Feature, Graph, Topology, random_split
from khop.glt.partition.books import Book, owners_of
from khop.glt.partition.part_writer import WEIGHTS, EdgePart, GraphPart, NodePart, add_masks
from khop.glt.partition.parts import EDGE_FEATURES, FEATURES, LABELS, load_edges
from khop.glt.typing import EdgeType, NodeIndex, NodeLabel, NodeType
from khop.glt.utils import id2idx
from khop.loader.batches.collate import to_tensor
from khop.storage.folder import EdgeTypeMeta, edge_array, edge_rows
from khop.typing import EDGE, NODE, EdgeDir, IntArray

_K = TypeVar("_K")
_V = TypeVar("_V")

SPLITS = ("train_mask", "val_mask", "test_mask")
"""Names of the boolean attributes for splits, in the order of `init_node_split`."""


class DistDataset(Partition):
    """Part of a partitioned graph, with access to other parts, see `khop.distributed.DistDataset`.

    A part that is given as arrays is written to a khop folder, because khop's processes map files
    and share no memory. The folder is temporary, and is removed with the data set. Sizes of other
    parts come from the partition books `node_pb` and `edge_pb`, which are then needed.

    Args:
        num_partitions: number of parts.
        partition_idx: index of this part.
        graph_partition: `Graph` or {edge type: `Graph`} with the part's edges by original id: all
            edges whose source ('out') or destination ('in') the part owns.
        node_feature_partition: `Feature` with rows for the part's nodes, or {node type: `Feature`}.
        edge_feature_partition: `Feature` with rows for the part's edges, or {edge type: `Feature`}.
        whole_node_labels: [num_nodes] labels of the whole graph, or {node type: labels}.
        node_pb: part of each node, as a tensor or `RangePartitionBook`, or {node type: book}.
        edge_pb: part of each edge, in the same form, or {edge type: book}.
        node_feat_pb, edge_feat_pb, graph_caching, id_filter, id_select: accepted, not needed.
        edge_dir: direction of draws, until a graph is loaded.
        node_split: ids of training, validation and test nodes.

    Raises:
        ValueError, IndexError: arrays do not fit one another or the books.

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
        node_feature_partition: Feature | Mapping[NodeType, Feature] | None = None,
        edge_feature_partition: Feature | Mapping[EdgeType, Feature] | None = None,
        whole_node_labels: NodeLabel | None = None,
        node_pb: Book | Mapping[NodeType, Book] | None = None,
        edge_pb: Book | Mapping[EdgeType, Book] | None = None,
        node_feat_pb: object = None,
        edge_feat_pb: object = None,
        edge_dir: Literal["in", "out"] = "out",
        graph_caching: bool = False,
        node_split: tuple[NodeIndex, NodeIndex, NodeIndex] | None = None,
        id_filter: object = None,
        id_select: object = None,
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
        features = node_feature_partition, edge_feature_partition
        books = node_pb, edge_pb
        part = _graph_part(partition_idx, num_partitions, graph_partition, features, books)
        for node_type, labels in by_type(whole_node_labels, NODE).items():
            self._labels[node_type] = torch.as_tensor(labels).squeeze()
            owned = part.nodes[node_type].owners == partition_idx
            part.nodes[node_type].attrs[LABELS] = self._labels[node_type][torch.from_numpy(owned)]
        self.load(part.write_temporary(self), partition_idx)

    @property
    def edge_dir(self) -> EdgeDir:
        """Direction of draws: the folder's, or without a folder the argument."""
        return self._asked_dir if self.folder is None else self.meta.edge_dir

    @property
    def train_idx(self) -> Tensor | dict[NodeType, Tensor] | None:
        """Ids of training nodes, or {node type: ids}, or None."""
        return self._split.train_idx

    @property
    def val_idx(self) -> Tensor | dict[NodeType, Tensor] | None:
        """Ids of validation nodes, or {node type: ids}, or None."""
        return self._split.val_idx

    @property
    def test_idx(self) -> Tensor | dict[NodeType, Tensor] | None:
        """Ids of test nodes, or {node type: ids}, or None."""
        return self._split.test_idx

    def init_node_split(
        self, node_split: tuple[NodeIndex, NodeIndex, NodeIndex] | None = None
    ) -> None:
        """Set the ids of training, validation and test nodes, a tuple of three. None: keep them."""
        self._split.init_node_split(node_split)

    def random_node_split(self, num_val: float, num_test: float) -> None:
        """Split this part's nodes at random for training, validation and test.

        `num_val` and `num_test` are numbers of nodes of each type, or shares if they are floats.
        """
        splits: list[dict[NodeType, Tensor]] = [{}, {}, {}]
        for node_type in self.meta.node_types:
            own = self.local_nodes(node_type.name)
            for split, ids in zip(splits, random_split(len(own), num_val, num_test), strict=True):
                split[node_type.name] = own[ids]
        train, val, test = splits
        if self.meta.heterogeneous:
            self.init_node_split((train, val, test))
        else:
            self.init_node_split((train[NODE], val[NODE], test[NODE]))

    def get_node_types(self) -> list[NodeType] | None:
        """Return the node types of a heterogeneous graph, else None."""
        return [t.name for t in self.meta.node_types] if self.meta.heterogeneous else None

    def get_edge_types(self) -> list[EdgeType] | None:
        """Return the edge types of a heterogeneous graph, else None."""
        return [t.name for t in self.meta.edge_types] if self.meta.heterogeneous else None

    def get_node_label(self, ntype: NodeType | None = None) -> Tensor | None:
        """Return the whole graph's labels of a node type, or None."""
        return {**self._labels, **self.node_labels}.get(NODE if ntype is None else ntype)

    def get_node_feature(self, ntype: NodeType | None = None) -> Feature | None:
        """Return the part's features of a node type, by original id, or None without features."""
        described = self.meta.node_type(NODE if ntype is None else ntype)
        if FEATURES not in described.attrs:
            return None
        rows = self.opened.node_feature(self.partition_idx, described.name, FEATURES)
        first, last = described.bounds[self.partition_idx : self.partition_idx + 2]
        return _feature(rows, _RowsInPart(self.opened.id_map(described.name), first, last))

    def get_edge_feature(self, etype: EdgeType | None = None) -> Feature | None:
        """Return the part's features of an edge type, by edge id, or None without features."""
        described, part = self._edge_type(etype), self.partition_idx
        if EDGE_FEATURES not in described.attrs:
            return None
        ids = np.asarray(edge_array(self.opened, part, described.name, "edge_id"))
        rows = edge_rows(self.opened, part, described, EDGE_FEATURES)
        return _feature(rows, id2idx(torch.from_numpy(ids.astype(np.int64))))

    def get_graph(self, etype: EdgeType | None = None) -> Graph:
        """Return the part's edges (of an edge type) in memory, by original ids of nodes."""
        described = self._edge_type(etype)
        edges = load_edges(self.opened, self.partition_idx, described, torch.device("cpu"))
        layout: Literal["CSR", "CSC"] = "CSR" if self.edge_dir == "out" else "CSC"
        topology = Topology(edges.edge_index, edges.eids, edges.weights, layout=layout)
        return Graph(topology, "CPU")

    @property
    def node_features(self) -> Feature | dict[NodeType, Feature] | None:
        """Features of nodes, {node type: features} in a heterogeneous graph, or None."""
        return self._of_types({t.name: self.get_node_feature(t.name) for t in self.meta.node_types})

    @property
    def edge_features(self) -> Feature | dict[EdgeType, Feature] | None:
        """Features of edges, {edge type: features} in a heterogeneous graph, or None."""
        return self._of_types({t.name: self.get_edge_feature(t.name) for t in self.meta.edge_types})

    @property
    def graph(self) -> Graph | dict[EdgeType, Graph] | None:
        """Edges of the part, or {edge type: edges} in a heterogeneous graph."""
        return self._of_types({t.name: self.get_graph(t.name) for t in self.meta.edge_types})

    def _edge_type(self, etype: EdgeType | None) -> EdgeTypeMeta:
        name = EDGE if etype is None else etype
        return next(t for t in self.meta.edge_types if t.name == name)

    def _of_types(self, values: Mapping[_K, _V | None]) -> _V | dict[_K, _V] | None:
        """Return values by type in a heterogeneous graph, else the only value."""
        if not self.meta.heterogeneous:
            return next(iter(values.values()))
        return {t: value for t, value in values.items() if value is not None} or None

    def serve_splits(self) -> None:
        """Write the splits of nodes to the folder, as boolean attributes that a graph server reads.

        The folder is the temporary one of a part that was made of arrays.

        Raises:
            ValueError: a split has nodes of another part.
        """
        splits = (self.train_idx, self.val_idx, self.test_idx)
        if splits[0] is None or not self._of_arrays:
            return
        masks: dict[NodeType, dict[str, Tensor]] = {}
        for name, split in zip(SPLITS, splits, strict=True):
            for node_type, ids in by_type(split, NODE).items():
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


class _RowsInPart:
    """Map, by `[]`, from original ids to rows of a part: new ids `first` to `last` - 1. Else -1."""

    def __init__(self, id_map: IntArray, first: int, last: int) -> None:
        self._id_map, self._first, self._count = id_map, first, last - first

    def __getitem__(self, ids: Tensor) -> Tensor:
        rows = torch.from_numpy(self._id_map[ids.numpy()].astype(np.int64)) - self._first
        return torch.where((rows >= 0) & (rows < self._count), rows, -1)


def _feature(rows: RowStore, id2index: Any) -> Feature:
    """Return mapped rows as GLT's `Feature`, in memory if encoded. `id2index` maps ids to rows."""
    with warnings.catch_warnings():  # mapped files cannot be written, and nothing writes them
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return Feature(to_tensor(rows.array, rows.dtype), id2index, with_gpu=False)


def _graph_part(
    part: int,
    num_parts: int,
    graphs: Graph | Mapping[EdgeType, Graph],
    features: tuple[Any, Any],
    books: tuple[Any, Any],
) -> GraphPart:
    owners = {t: owners_of(book).numpy() for t, book in by_type(books[0], NODE).items()}
    edge_owners = {t: owners_of(book).numpy() for t, book in by_type(books[1], EDGE).items()}
    typed: dict[EdgeType, Graph] = by_type(graphs, EDGE)
    layouts = {graph.topo.layout for graph in typed.values()}
    if len(layouts) != 1:
        raise ValueError(f"the topologies of a part must have one layout (got {sorted(layouts)})")
    nodes = {t: NodePart(known) for t, known in owners.items()}
    for node_type, feature in by_type(features[0], NODE).items():
        ids = torch.from_numpy(np.flatnonzero(owners[node_type] == part))
        nodes[node_type].attrs[FEATURES] = _rows(feature, ids)
    edge_features = by_type(features[1], EDGE)
    edges = {}
    for edge_type, graph in typed.items():
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


def _rows(feature: Feature | Tensor, ids: Tensor) -> Tensor:
    rows: Tensor = feature.cpu_get(ids) if isinstance(feature, Feature) else feature[ids]
    return rows
