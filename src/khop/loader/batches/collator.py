"""Joining of a sampled subgraph with the graph's attributes, exactly as in PyG's loaders.

Runs in the trainer and its worker processes.

The treatment of each attribute is decided once for a graph (`StorePlan`). A batch then only copies
rows and fills the dictionaries of its stores. PyG decides this again for every batch and sets
attributes one by one, which takes longer than sampling and copying a small batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import index_select

from khop.channel.pool import BufferPool
from khop.data import Feature, RowStore
from khop.loader.batches.collate import copy_with, hetero_data_around, is_plain, to_tensor
from khop.loader.batches.padding import blank
from khop.loader.batches.shapes import Sections, Shape
from khop.sampler.pyg.output import Masks, SampledSubgraph
from khop.typing import Array, EdgeType, NodeType

Owner = NodeType | EdgeType | None
"""Node or edge type of a store. None in a homogeneous graph."""


class Collator:
    """Joiner of sampled subgraphs with attributes of a graph in memory, to PyG's batches.

    The loader adds the attributes about seeds afterwards. Several threads may use a joiner. A long
    attribute is copied by `num_threads` threads.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool = BufferPool()
        self._plans: dict[Owner, StorePlan] = {}

    def __reduce__(self) -> tuple[type[Collator], tuple[int]]:
        """Pickle only `num_threads`: another process makes its own memory pool and plans."""
        return Collator, (self._num_threads,)

    def forget(self) -> None:
        """Drop the plans, since the graph's tensors may have been changed in place."""
        self._plans.clear()

    def join_data(
        self, data: Data, drawn: SampledSubgraph, shape: Shape | Masks | None = None
    ) -> Data:
        """Make a batch of a homogeneous graph: the attributes of the sampled nodes and edges.

        `shape` says which nodes and edges are padding, by sections or masks. If None, there is no
        padding.
        """
        nodes, edges = (None, None) if shape is None else (shape.nodes[0], shape.edges[0])
        plan = self._plan(data, data._store, None)
        node, edge_index, edge = drawn.nodes[0], drawn.edge_index[0], drawn.edges[0]
        mapping = plan.template.copy()
        plan.put_nodes(mapping, node, nodes)
        plan.put_edges(mapping, edge_index, edge, (len(node), len(node)), edges)
        # If the sample has none, PyG removes the attributes of the whole graph.
        _put(mapping, "batch", drawn.trees and drawn.trees[0])
        _put(mapping, "num_sampled_nodes", drawn.nodes_per_hop and drawn.nodes_per_hop[0])
        _put(mapping, "num_sampled_edges", drawn.edges_per_hop and drawn.edges_per_hop[0])
        return copy_with(data, mapping)

    def join_hetero_data(
        self, data: HeteroData, drawn: SampledSubgraph, shape: Shape | Masks | None = None
    ) -> HeteroData:
        """Make a batch of a heterogeneous graph, with every node and edge type, also empty ones.

        `shape`: see `join_data`.
        """
        nodes: dict[NodeType, dict[str, Any]] = {}
        edges: dict[EdgeType, dict[str, Any]] = {}
        sizes = {}
        for i, (node_type, store) in enumerate(data._node_store_dict.items()):
            plan = self._plan(data, store, node_type)
            nodes[node_type] = mapping = plan.template.copy()
            plan.put_nodes(mapping, drawn.nodes[i], None if shape is None else shape.nodes[i])
            _put_ith(mapping, "batch", drawn.trees, i)
            _put_ith(mapping, "num_sampled_nodes", drawn.nodes_per_hop, i)
            sizes[node_type] = len(drawn.nodes[i])
        for i, (edge_type, store) in enumerate(data._edge_store_dict.items()):
            plan = self._plan(data, store, edge_type)
            edges[edge_type] = mapping = plan.template.copy()
            size = sizes[edge_type[0]], sizes[edge_type[2]]
            sections = None if shape is None else shape.edges[i]
            plan.put_edges(mapping, drawn.edge_index[i], drawn.edges[i], size, sections)
            _put_ith(mapping, "num_sampled_edges", drawn.edges_per_hop, i)
        return hetero_data_around(data, nodes, edges)

    def _plan(self, data: Data | HeteroData, store: Any, owner: Owner) -> StorePlan:
        plan = self._plans.get(owner)
        if plan is None or not plan.is_for(store):
            plan = StorePlan(data, store, owner, self)
            self._plans[owner] = plan
        return plan

    def feature(
        self, value: RowStore | Tensor | Array, owner: Owner, name: str, of_nodes: bool
    ) -> Any:
        """Return an attribute of the graph in the form that `gather` takes.

        `owner`, `name` and `of_nodes` (or else of edges) identify it, for subclasses.
        """
        return value if isinstance(value, RowStore) else Feature(value)

    def ids(self, index: Tensor) -> Any:
        """Return node or edge ids in the form that `gather` takes."""
        return index.numpy()

    def to_graph_device(self, edge_index: Tensor, like: torch.device) -> Tensor:
        """Return a batch's `edge_index` on `like`, the device of the graph's `edge_index`."""
        return edge_index.to(like)

    def on_host(self, tensor: Tensor | None) -> Tensor | None:
        """Return a tensor on the CPU, for operations that only the CPU has."""
        return tensor

    def use(self, value: Any) -> None:
        """Wait, if needed, until torch may read this value of the graph. Only a GPU needs this."""

    def blank(self, rows: Any, sections: Sections | Tensor, dim: int) -> None:
        """Set the padding of an attribute's rows to zero. `dim` counts nodes or edges."""
        blank(rows, sections, dim)

    def gather(self, feature: Any, index: Any) -> Tensor:
        """Return rows of a feature. Their memory is reused after the returned tensor is freed."""
        if not feature.at_hand:
            return to_tensor(feature.gather(index), feature.dtype)
        out = self._pool.empty((len(index), *feature.row_shape), feature.array.dtype)
        feature.gather(index, out, num_threads=self._num_threads)
        return to_tensor(out, feature.dtype)


class StorePlan:
    """Plan that decides how a batch gets each attribute of one of PyG's stores.

    Valid while the store has the same objects under the same names. This is checked for every
    batch, because users may replace attributes at any time. `owner` is the type of the store, and
    `joiner` gathers rows.

    Attributes:
        template: dictionary that each batch copies. Rows and counts in the copy are then replaced.
    """

    def __init__(self, data: Data | HeteroData, store: Any, owner: Owner, joiner: Collator) -> None:
        self._joiner = joiner
        self.template: dict[str, Any] = dict(store.items())
        self._names = list(self.template)
        self._ids = [id(value) for value in self.template.values()]  # stay valid: objects are kept
        self._node_rows: list[tuple[str, _Rows]] = []
        self._edge_rows: list[tuple[str, _Rows]] = []
        self._ends: torch.device | None = None
        self._adj_t: Any = None
        of_nodes, of_edges = not isinstance(owner, tuple), not isinstance(owner, str)
        for name, value in self.template.items():
            if of_edges and name == "edge_index":
                self._ends = torch.as_tensor(value).device
            elif name == "adj_t":
                self._adj_t = value if of_edges else None
            elif of_nodes and name == "num_nodes":
                pass
            elif isinstance(value, RowStore):
                of_node = _is_of_nodes(value, name, owner, store)
                rows = self._node_rows if of_node else self._edge_rows
                rows.append((name, _Rows(value, 0, joiner, owner, name, of_node)))
            elif of_nodes and store.is_node_attr(name):
                dim = data.__cat_dim__(name, value, store)
                self._node_rows.append((name, _Rows(value, dim, joiner, owner, name, True)))
            elif of_edges and store.is_edge_attr(name):
                dim = data.__cat_dim__(name, value, store)
                self._edge_rows.append((name, _Rows(value, dim, joiner, owner, name, False)))
        self._counts_nodes = of_nodes and "num_nodes" in self.template
        self._gathered = [
            (value, value.data_ptr())
            for value in self.template.values()
            if isinstance(value, Tensor) and is_plain(value)
        ]

    def is_for(self, store: Any) -> bool:
        """Return True if the store still has the attributes for which this plan was made."""
        mapping = store._mapping
        if [*mapping] != self._names or [*map(id, mapping.values())] != self._ids:
            return False
        # Tensors have the same memory, and still require no gradients.
        return all(t.data_ptr() == at and not t.requires_grad for t, at in self._gathered)

    def put_nodes(
        self, mapping: dict[str, Any], node: Tensor, sections: Sections | Tensor | None = None
    ) -> None:
        """Set the attributes of a batch's nodes in `mapping`, a copy of `template`.

        If `sections` is not None, attributes of padded nodes are zero.
        """
        if self._counts_nodes:
            mapping["num_nodes"] = node.numel()
        if self._node_rows:
            ids = self._joiner.ids(node)
            for name, rows in self._node_rows:
                mapping[name] = rows.take(node, ids, sections)
        mapping.setdefault("n_id", node)

    def put_edges(
        self,
        mapping: dict[str, Any],
        edge_index: Tensor,
        edge: Tensor | None,
        size: tuple[int, int],
        sections: Sections | Tensor | None = None,
    ) -> None:
        """Set the attributes of a batch's edges in `mapping`, a new store for the batch.

        If `edge`, the edge ids, is None, the batch gets no attributes of edges. `size` has the
        numbers of source and destination nodes. `sections`: see `put_nodes`.
        """
        if self._ends is not None:
            mapping["edge_index"] = self._joiner.to_graph_device(edge_index, self._ends)
        if self._adj_t is not None:
            self._joiner.use(self._adj_t)
            on_host = self._joiner.on_host
            ends = on_host(edge_index)
            assert ends is not None
            mapping["adj_t"] = _sampled_adjacency(self._adj_t, ends, on_host(edge), size)
        if edge is None:
            for name, _ in self._edge_rows:
                del mapping[name]
            return
        if self._edge_rows:
            ids = self._joiner.ids(edge)
            for name, rows in self._edge_rows:
                mapping[name] = rows.take(edge, ids, sections)
        mapping.setdefault("e_id", edge)


class _Rows:
    """Attribute of a graph of which batches copy rows, by khop's gather or by PyG's code.

    `dim` is the dimension of `value` that counts nodes (`of_nodes`) or edges.
    """

    def __init__(
        self,
        value: Any,
        dim: int,
        joiner: Collator,
        owner: Owner,
        name: str,
        of_nodes: bool,
    ) -> None:
        self._value = value
        self._dim = dim
        self._joiner = joiner
        self._name = f"attribute '{name}'" + ("" if owner is None else f" of {owner!r}")
        self._unit = "node" if of_nodes else "edge"
        plain = isinstance(value, RowStore) or (dim == 0 and is_plain(value))
        self._feature = joiner.feature(value, owner, name, of_nodes) if plain else None

    def _check(self) -> None:
        """Raise TypeError if no rows can be taken from the attribute's value."""
        value, received = self._value, ""
        if isinstance(value, Tensor) and value.layout not in (torch.strided, torch.sparse_coo):
            received = f"a tensor of layout {value.layout}: pass a dense one (`.to_dense()`)"
        elif isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
            received = f"an array of dtype '{value.dtype}': replace what is no number by numbers"
        elif isinstance(value, list | tuple):
            received = f"a {type(value).__name__}: pass a tensor of numbers"
        if received:
            raise TypeError(
                f"{self._name} has an entry for each {self._unit}, of which batches take rows, but "
                f"is {received}, or keep it outside of the graph"
            )

    def take(self, index: Tensor, ids: Any, sections: Sections | Tensor | None = None) -> Any:
        """Return the rows at `index`, with zeros in the padding of `sections`.

        `ids` is the same index in the form of `Collator.ids`.

        Raises:
            IndexError, ValueError: some rows do not exist. The message names the attribute.
            TypeError: no rows can be taken.
        """
        rows = self._taken(index, ids)
        if sections is not None:
            self._joiner.blank(rows, sections, self._dim)
        return rows

    def _taken(self, index: Tensor, ids: Any) -> Any:
        try:
            if self._feature is not None:
                return self._joiner.gather(self._feature, ids)
            self._check()
            self._joiner.use(self._value)
            if isinstance(self._value, Tensor):
                index = index.to(self._value.device)
            return index_select(self._value, index, dim=self._dim)
        except (IndexError, ValueError) as error:
            raise type(error)(
                f"{self._name} must have a row for each {self._unit} of the graph that is sampled, "
                f"but {error}"
            ) from error


def _is_of_nodes(rows: RowStore, name: str, owner: Owner, store: Any) -> bool:
    """Return True if a row store has a row per node, not per edge, by PyG's rule for tensors."""
    nodes = None if isinstance(owner, tuple) else store.num_nodes
    edges = None if isinstance(owner, str) else store.num_edges
    if rows.num_rows == nodes and not (rows.num_rows == edges and "edge" in name):
        return True
    if rows.num_rows == edges:
        return False
    raise ValueError(
        f"the row store '{name}' has {rows.num_rows} rows for {nodes} nodes and {edges} edges: it "
        "must have one for each (set num_nodes if the number of nodes is not known)"
    )


def _put(mapping: dict[str, Any], name: str, value: Any) -> None:
    """Set `mapping[name] = value`. If `value` is None, remove the entry, as PyG does."""
    if value is None:
        mapping.pop(name, None)
    else:
        mapping[name] = value


def _put_ith(mapping: dict[str, Any], name: str, values: list[Any] | None, i: int) -> None:
    if values is not None and values[i] is not None:
        mapping[name] = values[i]


def _sampled_adjacency(
    adj_t: Any, edge_index: Tensor, edge: Tensor | None, size: tuple[int, int]
) -> Any:
    """Return the adjacency matrix of a batch, [num_dst, num_src], of the same type as the graph's.

    Entries are ordered by row and column. Edge ids index the entries of `adj_t`. Without edge ids,
    a `SparseTensor` has no values (as with PyG), and other matrices have values of 1. An edge that
    was drawn twice has two entries. In a coordinate (COO) matrix, torch first adds up these two,
    so means are wrong. In the other types of matrices, means are right.
    """
    col, row = edge_index
    size = (size[1], size[0])
    sparse_tensor = torch_geometric.typing.SparseTensor
    if isinstance(adj_t, sparse_tensor):
        device = adj_t.device()
        value = adj_t.storage.value()
        return sparse_tensor(
            row=row.to(device),
            col=col.to(device),
            value=None if value is None else _select(value, edge),
            sparse_sizes=size,
            is_sorted=False,
            trust_data=True,
        )
    is_csr = adj_t.layout == torch.sparse_csr
    all_values = adj_t.values() if is_csr else adj_t._values()
    values = _select(all_values, edge)
    if values is None:
        values = all_values.new_ones((row.numel(), *all_values.shape[1:]))
    row, col = row.to(adj_t.device), col.to(adj_t.device)
    order = torch.argsort(row * max(size[1], 1) + col, stable=True)
    row, col, values = row[order], col[order], values[order]
    shape = (*size, *all_values.shape[1:])
    if is_csr:
        pointers = row.new_zeros(size[0] + 1)
        torch.cumsum(torch.bincount(row, minlength=size[0]), 0, out=pointers[1:])
        return torch.sparse_csr_tensor(pointers, col, values, shape, device=adj_t.device)
    return torch.sparse_coo_tensor(torch.stack([row, col]), values, shape, device=adj_t.device)


def _select(values: Tensor, edge: Tensor | None) -> Tensor | None:
    return None if edge is None else values[edge.to(values.device)]
