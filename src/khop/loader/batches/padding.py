"""Padding of batches to a bounded set of shapes (`pad=`). Runs in trainers and torch's workers.

`Padder.pad` pads a sampled subgraph before its attributes are gathered, so that rows of attributes
are written once. `Padder.pad_batch` pads a complete batch by a copy. Loaders of graphs in memory
use the first, batches of sampler processes and of PyG's stores the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from khop.channel.pool import BufferPool
from khop.loader.batches.collate import put
from khop.loader.batches.shapes import Counts, Sections, Shape, Shapes
from khop.sampler.pyg.output import Masks, SampledSubgraph
from khop.sampler.pyg.padded import PadSizes
from khop.typing import Array, EdgeType, NodeType, Pad

TRIALS = 32
"""Batches that loaders in memory draw without attributes to find the sizes of 'auto'."""


class Rows(NamedTuple):
    """Attribute of a batch with a row per node, or per edge, of one type.

    Attributes:
        store: name of its store in a `HeteroData`. None in a `Data`.
        name: name of the attribute.
        is_edge: True if it has a row per edge.
        of_type: index of the node or edge type.
    """

    store: Any
    name: str
    is_edge: bool
    of_type: int


class Padder:
    """Padder of a loader's batches. Safe to use from several threads.

    Args:
        pad: the loader's argument `pad`.
        node_types, edge_types: types of batches.
        heterogeneous: True if batches are `HeteroData`.
        num_seeds: seeds per batch.
        seed_type: see `Shapes`.

    Raises:
        TypeError, ValueError: `pad` is malformed.
    """

    def __init__(
        self,
        pad: Pad,
        node_types: list[NodeType],
        edge_types: list[EdgeType],
        heterogeneous: bool,
        num_seeds: int,
        seed_type: NodeType | None,
    ) -> None:
        self._node_types, self._edge_types = node_types, edge_types
        self.shapes = Shapes(pad, node_types, edge_types, heterogeneous, num_seeds, seed_type)
        self._pool = BufferPool()

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the memory pool: another process makes its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_pool"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _pool=BufferPool())

    def prepare(self, trials: Iterable[Any]) -> None:
        """Find the sizes of 'auto', unless they are known, from subgraphs that are drawn for it.

        Outputs in PyG's form are not counted.
        """
        if self.shapes.is_auto and self.shapes.sizes is None:
            counts = [_counts_of(d) for d in trials if isinstance(d, SampledSubgraph)]
            self.shapes.begin(counts)

    def sizes_for(self, num_hops: int) -> PadSizes | None:
        """Return sizes that a device can pad to while it draws, or None. See `Shapes.sections`."""
        sections = self.shapes.sections(num_hops)
        return None if sections is None else PadSizes(*sections, not self.shapes.is_auto)

    def pad(self, drawn: SampledSubgraph) -> tuple[SampledSubgraph, Shape]:
        """Return a subgraph with padding, and its sections. Padded nodes and edges have id 0."""
        hops, edge_hops = drawn.nodes_per_hop, drawn.edges_per_hop
        shape = self.shapes.fit(*_counts_of(drawn))
        nodes, edges = shape
        values = {name: self._padded_value(v, name, shape) for name, v in drawn.values.items()}
        padded = SampledSubgraph(
            [self._rows(node, of) for node, of in zip(drawn.nodes, nodes, strict=True)],
            [self._ends(ends, i, shape) for i, ends in enumerate(drawn.edge_index)],
            [
                e if e is None else self._rows(e, of)
                for e, of in zip(drawn.edges, edges, strict=True)
            ],
            drawn.trees and self._trees(drawn.trees, nodes),
            hops and [of.sizes for of in nodes],
            edge_hops and [of.sizes for of in edges],
            values,
            drawn.written,
        )
        return padded, shape

    def pad_batch(self, batch: Any, rows: Iterable[Rows]) -> Any:
        """Pad a batch in place, and return it. `rows` are all attributes with rows but masks."""
        stores = [*_stores(batch, self._node_types)], [*_stores(batch, self._edge_types)]
        counts, edge_counts = (
            [_counts(store, name, length) for store, length in zip(of, lengths, strict=True)]
            for of, name, lengths in (
                (stores[0], "num_sampled_nodes", [len(s["n_id"]) for s in stores[0]]),
                (stores[1], "num_sampled_edges", [s["edge_index"].size(1) for s in stores[1]]),
            )
        )
        shape = self.shapes.fit(counts, edge_counts)
        trees = [store["batch"] for store in stores[0] if "batch" in store]
        of_nodes, of_edges = shape
        for owner, name, is_edge, of_type in rows:
            store = batch._store if owner is None else batch[owner]
            if name == "batch" and not is_edge:
                continue
            sections = of_edges[of_type] if is_edge else of_nodes[of_type]
            put(store, name, self._rows(store[name], sections))
        if trees:
            for store, padded in zip(stores[0], self._trees(trees, of_nodes), strict=True):
                put(store, "batch", padded)
        for i, store in enumerate(stores[1]):
            put(store, "edge_index", self._ends(store["edge_index"], i, shape))
            if "num_sampled_edges" in store:
                put(store, "num_sampled_edges", of_edges[i].sizes)
        for sections, store in zip(of_nodes, stores[0], strict=True):
            if "num_nodes" in store._mapping:
                put(store, "num_nodes", sections.num_rows)
            if "num_sampled_nodes" in store:
                put(store, "num_sampled_nodes", sections.sizes)
        self.add_masks(batch, shape)
        return batch

    def add_masks(self, batch: Any, shape: Shape | Masks) -> None:
        """Add PyG's masks of padding: `pad_node_mask` and `pad_edge_mask`, False for padding.

        `shape` has the sections from which they are made, or the masks of a device.
        """
        masks: list[tuple[list[Any], str, list[Any]]] = [
            (self._node_types, "pad_node_mask", [*shape.nodes]),
            (self._edge_types, "pad_edge_mask", [*shape.edges]),
        ]
        for types, name, of in masks:
            for store, sections in zip(_stores(batch, types), of, strict=True):
                if isinstance(sections, Tensor):
                    put(store, name, sections)
                    continue
                like = store["n_id" if name == "pad_node_mask" else "edge_index"]
                mask = np.ones(sections.num_rows, np.bool_)
                blank(mask, sections)
                put(store, name, torch.from_numpy(mask).to(like.device))

    def _padded_value(self, value: Any, name: str, shape: Shape) -> Any:
        owner = name.rpartition(".")[0]
        if not owner:
            return value
        sections = (shape.nodes if owner[0] == "n" else shape.edges)[int(owner[1:])]
        return self._rows(value, sections)

    def _empty(self, like: Tensor, *shape: int) -> Tensor:
        nbytes = math.prod(shape) * like.element_size()
        if like.device.type != "cpu" or nbytes == 0:
            return like.new_empty(shape)
        raw = self._pool.empty((nbytes,), np.dtype(np.uint8))
        return torch.from_numpy(raw).view(like.dtype).view(shape)

    def _rows(self, rows: Tensor, sections: Sections) -> Tensor:
        """Return a copy of a tensor's rows, with rows of zeros as padding."""
        out = self._empty(rows, sections.num_rows, *rows.shape[1:])
        source, target = _raw(rows), _raw(out)
        begin = 0
        for part in sections.drawn:
            count = part.stop - part.start
            target[part] = source[begin : begin + count]
            begin += count
        blank(out, sections)
        return out

    def _trees(self, trees: list[Tensor], nodes: list[Sections]) -> list[Tensor]:
        """Return the trees of nodes. Padded nodes are one further tree, the last."""
        last = torch.stack([tree.max() for tree in trees if tree.numel()] or [trees[0].sum() - 1])
        padded = [self._rows(tree, of) for tree, of in zip(trees, nodes, strict=True)]
        for tree, of in zip(padded, nodes, strict=True):
            for part in of.padding:
                tree[part] = last.max() + 1
        return padded

    def _ends(self, edge_index: Tensor, of_type: int, shape: Shape) -> Tensor:
        """Return `edge_index` in the numbers of padded nodes, with edges among padded nodes.

        Padded edges are spread over the padded nodes of a section, so that no node has all of them.
        They are sorted, so that edges that are sorted by destination stay so.
        """
        sections, edge_type = shape.edges[of_type], self._edge_types[of_type]
        out = self._empty(edge_index, 2, sections.num_rows)
        for side, node_type in enumerate((edge_type[0], edge_type[2])):
            nodes = shape.nodes[self._node_types.index(node_type)]
            numbers = _numbers(nodes, out.device)
            begin = 0
            for hop, part in enumerate(sections.drawn):
                end = begin + part.stop - part.start
                _take(numbers, edge_index[side, begin:end], out[side, part])
                begin = end
                padding = sections.padding[hop]
                if (count := padding.stop - padding.start) > 0:
                    among = nodes.padding[nodes.at(hop + 1 - side)]
                    spread = np.arange(count) * (among.stop - among.start) // count + among.start
                    _raw(out)[side, padding] = _on(out.device, spread)
        return out


def _numbers(nodes: Sections, device: torch.device) -> Any:
    """Return the number of each drawn node among the padded nodes."""
    numbers = np.concatenate([np.arange(part.start, part.stop) for part in nodes.drawn])
    return _on(device, numbers)


def _on(device: torch.device, array: Array) -> Any:
    """Return an array as a tensor on a device. On the CPU it stays an array."""
    return array if device.type == "cpu" else torch.from_numpy(array).to(device)


def _take(values: Any, index: Tensor, out: Tensor) -> None:
    """Write `values[index]` to `out`. `values` is from `_on`."""
    if isinstance(values, Tensor):
        torch.index_select(values, 0, index, out=out)
    else:
        np.take(values, index.numpy(), out=out.numpy(), mode="clip")


def _raw(rows: Tensor) -> Any:
    """Return a CPU tensor as an array that NumPy copies. Other tensors stay as they are.

    Torch's threads wait for each other. On cores that also draw, a copy of 1 MB took 7 ms.
    """
    if rows.device.type != "cpu" or rows.requires_grad or rows.layout is not torch.strided:
        return rows
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    dtype = same_size.get(rows.element_size())
    return rows if dtype is None else rows.view(dtype).numpy()


def blank(rows: Any, sections: Sections | Tensor, dim: int = 0) -> None:
    """Set the padding of an attribute's rows to zero. A tensor is a mask: False for padding."""
    if isinstance(sections, Tensor):
        if isinstance(rows, Tensor) and rows.layout is torch.strided:
            shape = [1] * rows.dim()
            shape[dim] = -1
            rows.masked_fill_(~sections.to(rows.device).view(shape), 0)
        return
    if isinstance(rows, Tensor) and rows.layout is torch.strided:
        rows = _raw(rows)
    if isinstance(rows, np.ndarray | Tensor):
        for part in sections.padding:
            rows[(slice(None),) * dim + (part,)] = 0


def _counts_of(drawn: SampledSubgraph) -> Counts:
    """Return the numbers of nodes and edges by type and hop."""
    return (
        drawn.nodes_per_hop or [[len(node)] for node in drawn.nodes],
        drawn.edges_per_hop or [[ends.size(1)] for ends in drawn.edge_index],
    )


def _stores(batch: Any, types: Iterable[Any]) -> Iterable[Any]:
    if hasattr(batch, "_store"):
        return (batch._store for _ in types)
    return (batch[owner] for owner in types)


def _counts(store: Any, name: str, length: int) -> list[int]:
    known = store.get(name)
    return [length] if known is None else [*known]
