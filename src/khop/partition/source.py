"""Input of a partitioner: number of nodes, edge lists and attributes of each type.

Users make it from arrays or PyG's `Data`, and `khop.sources` from files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from khop.data import Feature, RowStore
from khop.data.arrays import check_count, to_ids
from khop.data.files import PicklableByPath, release_pages
from khop.storage.folder import attr_metas
from khop.storage.folder.paths import RESERVED_NAMES
from khop.typing import EDGE, NODE, Array, ArrayLike, EdgeType, IntArray, NodeType

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

_MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass
class NodeSource:
    """Nodes of one type in a `GraphSource`: their number `count` and attributes `attrs`.

    Each attribute has one row per node. `left_out` names attributes without a row per node, with a
    description: 'has shape [7, 7]'.

    Example:
        >>> NodeSource(6, {"x": data.x}).count
        6
    """

    count: int
    attrs: dict[str, RowStore] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass
class EdgeSource(PicklableByPath):
    """Edges of one type in a `GraphSource`: sources, destinations and attributes.

    `src` and `dst` are [num_edges] node ids. Attributes `attrs` have one row per edge. `left_out`
    names attributes without a row per edge, with a description. Subclasses may read edges piece by
    piece from other storage: they override `num_edges`, `piece`, `content` and `check`. Their
    properties `src` and `dst` read all edges, for methods that need the whole graph.

    Example:
        >>> edges = EdgeSource(np.array([0, 1]), np.array([1, 2]), {})
        >>> edges.num_edges
        2
    """

    src: IntArray
    dst: IntArray
    attrs: dict[str, RowStore] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.src)

    def piece(self, first: int, count: int) -> tuple[IntArray, IntArray]:
        """Return the sources and destinations of `count` edges, from index `first` on.

        They are contiguous, both int32 or both int64. Partitioning in bounded memory reads edges
        only by this method, in two passes or more. Several threads read different pieces at once.
        """
        return _as_kernels_take(self.src[first : first + count], self.dst[first : first + count])

    def check(self, name: str) -> None:
        """Raise ValueError, which names edge type `name`, if `src` and `dst` differ in length."""
        if len(self.src) != len(self.dst):
            raise ValueError(f"{name} has {len(self.src)} sources but {len(self.dst)} destinations")

    def content(self) -> tuple[Array, ...]:
        """Return the arrays by whose content, or file, a resumed run recognises the same edges."""
        return self.src, self.dst

    def release(self) -> None:
        """Release the memory of mapped files that `piece` has read."""
        for array in self.content():
            release_pages(array)

    def endpoints(self) -> tuple[IntArray, IntArray]:
        """Return all sources and destinations, [num_edges], both int32 or both int64."""
        return _as_kernels_take(self.src, self.dst)


def _as_kernels_take(src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
    if src.dtype != dst.dtype or src.dtype not in (np.int32, np.int64):
        src, dst = src.astype(np.int64), dst.astype(np.int64)
    # Arrays of mapped files are copied if they have strides or odd addresses.
    return np.require(src, None, ["C", "A"]), np.require(dst, None, ["C", "A"])


def no_progress(step: str, done: int, total: int) -> None:
    """Do nothing: the default function for option `progress`."""


def bad_edge(edge_type: EdgeType, error: IndexError) -> IndexError:
    """Return an IndexError with a remedy, for an edge that names a node that does not exist."""
    return IndexError(
        f"edge_index of edge type {edge_type}: {error}. Ids run from 0; the number of nodes is "
        "num_nodes, or that of the rows of their attributes"
    )


def feature_bytes(attrs: Mapping[str, RowStore]) -> int:
    """Return the bytes that one row takes in all attributes together."""
    return sum(attr.row_bytes for attr in attr_metas(attrs).values())


@dataclass
class GraphSource:
    """A graph to be partitioned.

    Homogeneous graphs have the one node type `khop.typing.NODE` and edge type `khop.typing.EDGE`.

    Attributes:
        nodes: {node type: number of nodes, and their attributes}.
        edges: {edge type: [num_edges] sources and destinations, and attributes}.
        heterogeneous: True for named types. If False (default), one node type and one edge type.
        of_graph: {attribute of the graph as a whole: description}, which folders do not hold.

    Raises:
        ValueError: an attribute has a wrong number of rows, sources and destinations have different
            lengths, or an edge type names an unknown node type.

    Example:
        >>> source = GraphSource.from_arrays(6, data.edge_index, {"x": data.x})
        >>> source.nodes["node"].count, list(source.nodes["node"].attrs)
        (6, ['x'])
    """

    nodes: dict[NodeType, NodeSource]
    edges: dict[EdgeType, EdgeSource]
    heterogeneous: bool = False
    of_graph: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node_type, node in self.nodes.items():
            node.count = check_count(node.count, f"num_nodes of node type '{node_type}'")
        if not self.heterogeneous and (len(self.nodes), len(self.edges)) != (1, 1):
            raise ValueError(
                f"a homogeneous graph has one node type and one edge type (got {list(self.nodes)} "
                f"and {list(self.edges)}): pass heterogeneous=True"
            )
        for edge_type in self.edges:
            for node_type in (edge_type[0], edge_type[2]):
                if node_type not in self.nodes:
                    raise ValueError(
                        f"edge type {edge_type} joins node type '{node_type}', whose number of "
                        f"nodes is not given (got {list(self.nodes)})"
                    )
        for node_type, node in self.nodes.items():
            _check_attrs(node.attrs, node.count, f"node type '{node_type}'", "nodes")
        for edge_type, edge in self.edges.items():
            edge.check(f"edge type {edge_type}")
            _check_attrs(edge.attrs, edge.num_edges, f"edge type {edge_type}", "edges")

    @classmethod
    def from_arrays(
        cls,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: ArrayLike | Mapping[EdgeType, ArrayLike],
        node_attrs: Mapping[str, ArrayLike | Mapping[NodeType, ArrayLike]] | None = None,
        edge_attrs: Mapping[str, ArrayLike | Mapping[EdgeType, ArrayLike]] | None = None,
    ) -> GraphSource:
        """Create a source from arrays.

        Args:
            num_nodes: number of nodes, or {node type: number of nodes}.
            edge_index: [2, num_edges] sources and destinations, or {edge type: [2, num_edges]}.
            node_attrs: name -> [num_nodes, ...], or name -> {node type: array}.
            edge_attrs: name -> [num_edges, ...], or name -> {edge type: array}.
        """
        heterogeneous = isinstance(edge_index, Mapping)
        if heterogeneous != isinstance(num_nodes, Mapping):
            raise TypeError("num_nodes and edge_index must both be dictionaries, or neither")
        counts = num_nodes if isinstance(num_nodes, Mapping) else {NODE: num_nodes}
        lists = edge_index if isinstance(edge_index, Mapping) else {EDGE: edge_index}
        nodes = {t: NodeSource(n) for t, n in counts.items()}
        edges = {}
        for edge_type, pair in lists.items():
            if len(pair) != 2:
                raise ValueError(f"edge_index must have two rows (got {len(pair)})")
            src, dst = (to_ids(ends, "edge_index") for ends in pair)
            edges[edge_type] = EdgeSource(src, dst)
        groups: list[tuple[Mapping[Any, NodeSource | EdgeSource], Mapping[str, Any] | None, Any]]
        groups = [(nodes, node_attrs, NODE), (edges, edge_attrs, EDGE)]
        for holders, attrs, single in groups:
            for name, values in (attrs or {}).items():
                for key, value in _by_type(values, single).items():
                    holders[key].attrs[name] = Feature(value, label=f"attribute '{name}'")
        return cls(nodes, edges, heterogeneous)

    @classmethod
    def from_data(cls, data: Data | HeteroData) -> GraphSource:
        """Create a source from a PyG `Data` or `HeteroData`, with all tensors of nodes and edges.

        Such a tensor has one row for each node, or edge. `left_out` lists all other attributes.

        Raises:
            TypeError: `data` has another type, or an attribute is no tensor of a supported dtype.
            ValueError: an edge type has no `edge_index`.
        """
        from torch_geometric.data import Data, HeteroData

        if isinstance(data, Data):
            node = NodeSource(_count(data, NODE), _attrs_of(data, data._store, True))
            edge = _edge_source(data, data._store, EDGE)
            node.left_out = _left_out(data._store, {*node.attrs, *edge.attrs})
            return cls({NODE: node}, {EDGE: edge}, False)
        if isinstance(data, HeteroData):
            nodes = {
                t: NodeSource(_count(data[t], t), _attrs_of(data, data[t], True))
                for t in data.node_types
            }
            edges = {t: _edge_source(data, data[t], t) for t in data.edge_types}
            sources: dict[NodeType | EdgeType, NodeSource | EdgeSource] = {**nodes, **edges}
            for name, source in sources.items():
                source.left_out = _left_out(data[name], source.attrs)
            return cls(nodes, edges, True, _left_out(data._global_store, ()))
        raise TypeError(
            f"expected a PyG Data or HeteroData object (got '{type(data)}'): of a data set pass "
            "its graph, dataset[0]; files are read by the command `khop partition`"
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(node.count for node in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all types."""
        return sum(edge.num_edges for edge in self.edges.values())

    @property
    def left_out(self) -> dict[str, str]:
        """Attributes that the folder will not hold: {'NAME' or 'NAME of TYPE': reason}.

        Example:
            >>> from torch_geometric.data import Data
            >>> graph = Data(edge_index=data.edge_index, num_nodes=6, classes=3)
            >>> GraphSource.from_data(graph).left_out
            {'classes': 'is an int, not a row for each of 6 nodes or of 12 edges'}
        """
        reasons = {
            name: f"{described}, not rows of a node or edge type"
            for name, described in self.of_graph.items()
        }
        holders: list[tuple[str, str, dict[str, str]]] = [
            *((t, f"{node.count:,} nodes", node.left_out) for t, node in self.nodes.items()),
            *((" ".join(t), f"{e.num_edges:,} edges", e.left_out) for t, e in self.edges.items()),
        ]
        both = " or of ".join(count for _, count, _ in holders)
        for holder, count, left_out in holders:
            for name, described in left_out.items():
                key, of = (f"{name} of {holder}", count) if self.heterogeneous else (name, both)
                reasons[key] = f"{described}, not a row for each of {of}"
        return reasons


def check_masks(source: GraphSource) -> None:
    """Raise TypeError if `train_mask` or another mask is not boolean: loaders would ignore it."""
    for node_type, node in source.nodes.items():
        for name in _MASKS:
            mask = node.attrs.get(name)
            if mask is not None and mask.row_shape == () and mask.dtype != "bool":
                raise TypeError(
                    f"attribute '{name}' of node type '{node_type}' must be boolean (got "
                    f"'{mask.dtype}'), as a mask of 0 and 1 could also be ids: convert it, "
                    f"data.{name}.bool() of a tensor, array.astype(bool) before a file is saved"
                )


def _count(store: Any, node_type: NodeType) -> int:
    if store.num_nodes is None:
        raise ValueError(
            f"the number of nodes of type '{node_type}' is not known: set its 'num_nodes'"
        )
    count: int = store.num_nodes  # checked by `GraphSource`
    return count


def _by_type(values: Any, single: Any) -> Mapping[Any, Any]:
    return values if isinstance(values, Mapping) else {single: values}


def _check_attrs(attrs: Mapping[str, RowStore], count: int, holder: str, unit: str) -> None:
    for name, feature in attrs.items():
        if name in RESERVED_NAMES:
            raise ValueError(f"attribute '{name}' of {holder} has a reserved name: rename it")
        if feature.num_rows != count:
            raise ValueError(
                f"attribute '{name}' of {holder} has {feature.num_rows} rows for {count} {unit}"
            )


def _attrs_of(data: Any, store: Any, of_nodes: bool) -> dict[str, RowStore]:
    attrs: dict[str, RowStore] = {}
    for name, value in store.items():
        level = store.is_node_attr(name) if of_nodes else store.is_edge_attr(name)
        if name in ("edge_index", "adj_t", "num_nodes") or not level:
            continue
        if not (hasattr(value, "detach") or isinstance(value, np.ndarray)):
            raise TypeError(
                f"attribute '{name}' is a '{type(value).__name__}': folders hold tensors only; "
                "remove it or turn it into a tensor"
            )
        if data.__cat_dim__(name, value, store) != 0:
            raise TypeError(f"attribute '{name}' is not laid out with a row per node or edge")
        attrs[name] = Feature(value, label=f"attribute '{name}'")
    return attrs


def _left_out(store: Any, kept: Collection[str]) -> dict[str, str]:
    """Return {attribute: why it is not kept} for the attributes of a PyG store not in `kept`."""
    return {
        name: _described(value)
        for name, value in store.items()
        if name not in {*kept, "edge_index", "adj_t", "num_nodes"} and value is not None
    }


def _described(value: object) -> str:
    if hasattr(value, "shape"):
        return f"has shape {list(value.shape)}"
    name = type(value).__name__
    return f"is a{'n' if name[0] in 'aeiou' else ''} {name}"


def _edge_source(data: Any, store: Any, edge_type: EdgeType) -> EdgeSource:
    edge_index = store.get("edge_index")
    if edge_index is None:
        raise ValueError(
            f"edge type {edge_type} has no 'edge_index': convert other layouts to an edge list"
        )
    shape = tuple(getattr(edge_index, "shape", ()))
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"'edge_index' of edge type {edge_type} must have shape [2, num_edges] (got a "
            f"'{type(edge_index).__name__}' of shape {list(shape)})"
        )
    src, dst = (to_ids(edge_index[i], "edge_index") for i in (0, 1))
    return EdgeSource(src, dst, _attrs_of(data, store, False))
