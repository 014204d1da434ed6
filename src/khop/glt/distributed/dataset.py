"""GLT's `DistDataset`: a part of a khop folder, or of arrays in memory."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from khop.distributed.dataset import DistDataset as Partition
from khop.glt.data import Dataset, Feature, Graph
from khop.glt.partition.books import owners_of
from khop.glt.partition.part_writer import WEIGHTS, EdgePart, GraphPart, NodePart
from khop.glt.partition.parts import EDGE_FEATURES, FEATURES
from khop.glt.typing import EdgeType, NodeType
from khop.typing import EDGE, NODE, EdgeDir


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
        self._labels_given = whole_node_labels
        self._split = Dataset(node_split=node_split)
        self._asked_dir: EdgeDir = edge_dir
        if graph_partition is None:
            return
        if node_pb is None or edge_pb is None:
            raise ValueError(
                "a part of arrays needs the books of nodes and edges: node_pb, edge_pb"
            )
        place = (partition_idx, num_partitions)
        features = node_feature_partition, edge_feature_partition
        part = _graph_part(place, graph_partition, features, (node_pb, edge_pb))
        folder = tempfile.mkdtemp(prefix="khop-glt-")
        self._removed = weakref.finalize(self, _remove, folder, os.getpid())
        part.write(folder)
        self.load(folder, partition_idx)
        if whole_node_labels is not None:
            given = whole_node_labels
            by_type = given if isinstance(given, Mapping) else {NODE: given}
            self.node_labels = {t: torch.as_tensor(y).squeeze() for t, y in by_type.items()}

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
        return self.node_labels.get(NODE if ntype is None else ntype)


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
