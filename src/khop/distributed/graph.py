"""Interface of a partitioned graph for loaders. Runs in trainers.

A trainer that loads a partition reads it from the folder (`khop.distributed.dataset`), a client
requests it from graph servers (`khop.distributed.remote.client.served_graph`).
"""

from __future__ import annotations

import abc

from torch import Tensor

from khop.data.arrays import check_range, to_ids
from khop.data.info import GraphInfo
from khop.distributed.job.context import TrainerContext
from khop.storage.folder import FolderMeta
from khop.typing import EDGE, NODE, ArrayLike, EdgeDir, EdgeType, Int64Array, IntArray, NodeType


class PartitionedGraph(abc.ABC):
    """Interface of a partitioned graph for loaders.

    Attributes:
        node_labels: {node type: [num_nodes, ...]} labels that only the trainer has, by original id.

    Example:
        >>> graph: PartitionedGraph = DistDataset().load(folder, partition_idx=0)
        >>> graph.num_partitions, graph.num_nodes
        (1, 6)
    """

    node_labels: dict[NodeType, Tensor]

    @property
    @abc.abstractmethod
    def meta(self) -> FolderMeta:
        """Description of the partition folder: types, attributes and sizes."""

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """Path or address of the graph, for error messages."""

    @property
    @abc.abstractmethod
    def context(self) -> TrainerContext:
        """Role and rank of this trainer among the trainers that load the graph."""

    @abc.abstractmethod
    def connect(self) -> None:
        """Connect to every partition. All trainers make the first call together."""

    @property
    @abc.abstractmethod
    def homes(self) -> list[int]:
        """The partition that each trainer has loaded, by rank."""

    @abc.abstractmethod
    def owned_edges(self, edge_type: EdgeType = EDGE) -> Int64Array:
        """Return the edges of a type that this trainer trains on, by original ids.

        No edge belongs to two trainers.

        Args:
            edge_type: their edge type.

        Returns:
            [2, n] int64, sources and destinations.

        Raises:
            ValueError: no such edge type.
        """

    @abc.abstractmethod
    def split(self, node_type: NodeType, name: str) -> Int64Array:
        """Return [n] int64 new ids, ascending, of the type's nodes whose attribute `name` is True.

        Raises:
            KeyError: no boolean attribute has this name.
        """

    @abc.abstractmethod
    def times_of(self, node_type: NodeType, new_ids: Int64Array) -> Int64Array | None:
        """Return [n] int64 keys that sort as the times of `new_ids`. None if the type has none."""

    @abc.abstractmethod
    def to_original_ids(self, new_ids: IntArray, node_type: NodeType = NODE) -> Int64Array:
        """Return the original ids, [n] int64, of nodes by their new ids (the folder's numbering).

        Args:
            new_ids: [n] integers.
            node_type: their node type.
        """

    @abc.abstractmethod
    def _new_ids_of(self, original: IntArray, node_type: NodeType) -> Int64Array:
        """Return the new ids (the folder's numbering), [n] int64, of original ids that exist."""

    def to_new_ids(self, ids: ArrayLike, name: str, node_type: NodeType = NODE) -> Int64Array:
        """Return the new ids, [n] int64 of the folder's numbering, of original ids.

        Args:
            ids: [n] original ids.
            name: name of the argument in error messages.
            node_type: their node type.

        Raises:
            IndexError: an id does not exist.
            TypeError, ValueError: ids are not a vector of integers.
        """
        original = to_ids(ids, name)
        check_range(original, self.meta.node_type(node_type).count, name)
        return self._new_ids_of(original, node_type)

    @property
    def info(self) -> GraphInfo:
        """Types, numbers of nodes and edges, times and weights, for checks of users' arguments."""
        meta = self.meta
        time = meta.time_attr
        return GraphInfo(
            {t.name: t.count for t in meta.node_types},
            [t.name for t in meta.edge_types],
            meta.heterogeneous,
            meta.edge_dir,
            None if time is None else [t.name for t in meta.node_types if t.timed],
            time is not None and time.floating,
            [t.weighted for t in meta.edge_types],
        )

    @property
    def num_partitions(self) -> int:
        """Number of partitions that the folder has."""
        return self.meta.num_parts

    @property
    def edge_dir(self) -> EdgeDir:
        """Direction of sampling: 'in' for in-neighbours, 'out' for out-neighbours."""
        return self.meta.edge_dir

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph (all types)."""
        return sum(t.count for t in self.meta.node_types)

    @property
    def num_edges(self) -> int:
        """Number of edges of the whole graph (all types)."""
        return sum(t.count for t in self.meta.edge_types)

    def node_attr(self, name: str, node_type: NodeType = NODE) -> tuple[str, tuple[int, ...]]:
        """Return the dtype's name and the row shape of a node attribute.

        Raises:
            KeyError: there is no such attribute or node type.
        """
        attr = self.meta.node_type(node_type).attrs[name]
        return attr.dtype, attr.shape

    def edge_type_index(self, edge_type: EdgeType) -> int:
        """Return the index of an edge type in the folder, or raise ValueError."""
        names = [t.name for t in self.meta.edge_types]
        if edge_type not in names:
            raise ValueError(f"no edge type {edge_type}: there are {names}")
        return names.index(edge_type)


def described_types(meta: FolderMeta) -> list[tuple[str, str]]:
    """Return (name, size and attributes) of each node and edge type, as text for a table."""
    types = [(t.name, t.count, t.attrs) for t in meta.node_types]
    types += [(" ".join(t.name), t.count, t.attrs) for t in meta.edge_types]
    rows = []
    for name, count, attrs in types:
        described = [f"{a} {[count, *m.shape]} {m.dtype}" for a, m in attrs.items()]
        rows.append((name, "; ".join([f"{count:,}", *described])))
    return rows
