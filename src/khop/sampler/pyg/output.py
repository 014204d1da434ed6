"""Subgraphs as tensors: drawn from seeds or links, and converted to PyG's form."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop import _native
from khop.channel.pool import BufferPool
from khop.data import Graph
from khop.data.info import GraphInfo
from khop.data.steps import run
from khop.sampler.drawing.batch_draw import BatchDraw
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.link import Links, LinkSampler, LinkSeeds, link_of_tree
from khop.sampler.drawing.view import GraphView
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingSpec
from khop.typing import Int64Array, IntArray

_INT64 = np.dtype(np.int64)
_K = TypeVar("_K")
_V = TypeVar("_V")


class Masks(NamedTuple):
    """Masks of a padded subgraph: False for padding. An entry for each node or edge type.

    Attributes:
        nodes: [num_nodes] bool each.
        edges: [num_edges] bool each.
    """

    nodes: list[Tensor]
    edges: list[Tensor]


class SampledSubgraph(NamedTuple):
    """A batch's subgraph as tensors, before it is converted to PyG's form.

    Lists have an entry for each node or edge type, in the graph's order.

    Attributes:
        nodes: [num_nodes] ids.
        edge_index: [2, num_edges] numbers of sources and destinations in `nodes`.
        edges: [num_edges] the user's edge ids, or None for a type without.
        trees: [num_nodes] the tree of each node, if the batch is disjoint.
        nodes_per_hop: number of seeds, then of the nodes that each hop added. None where hops are
            not separable.
        edges_per_hop: number of edges that each hop added, or None as above.
        values: the sampling method's values, by name: 'e0.edge_norm' is [num_edges] float32 of edge
            type 0, 'n0.node_norm' [num_nodes] of node type 0. Names without a type are of the whole
            batch: 'layer_wise'.
        written: event after which a device has written the tensors, for
            `khop.sampler.pyg.device.wait_and_record_stream`. If None, they are written.
        padding: masks of a subgraph that a device has padded. If None, it has no padding.
    """

    nodes: list[Tensor]
    edge_index: list[Tensor]
    edges: list[Tensor | None]
    trees: list[Tensor] | None
    nodes_per_hop: list[list[int]] | None
    edges_per_hop: list[list[int]] | None
    values: Mapping[str, Any] = MappingProxyType({})
    written: torch.cuda.Event | None = None
    padding: Masks | None = None


class OutputMetadata(tuple[Any, ...]):
    """Metadata of a sampler's output, a tuple as PyG's loaders read it, with `values` beside it.

    Attributes:
        values: the sampling method's values by name, see `SampledSubgraph`.
    """

    values: Mapping[str, Any]

    def __new__(cls, entries: Iterable[Any], values: Mapping[str, Any]) -> OutputMetadata:
        made = super().__new__(cls, entries)
        made.values = values
        return made

    def __getnewargs__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(self), dict(self.values)

    def __getstate__(self) -> None:
        """Return None: `__getnewargs__` has all that pickling needs."""


def values_of(out: SamplerOutput | HeteroSamplerOutput) -> Mapping[str, Any]:
    """Return the sampling method's values in a sampler's output. Empty if khop did not make it."""
    metadata = out.metadata
    return metadata.values if isinstance(metadata, OutputMetadata) else {}


class SubgraphWriter:
    """Writer that converts the engine's subgraphs to new tensors.

    Args:
        edge_ids: the user's id of the edge at each position, for each edge type. If None, the ids
            of a type are positions.
        spec: how subgraphs are drawn.
        backward: neighbours are out-neighbours, so that rows and columns are exchanged.
    """

    def __init__(
        self, edge_ids: list[IntArray | None], spec: SamplingSpec, backward: bool = False
    ) -> None:
        self._spec = spec
        self._marks = spec.method.marks
        self._pool = BufferPool()
        self._has_ids = [spec.records_edge(r) for r in range(len(edge_ids))]
        self._output = _native.SubgraphOutput(edge_ids, backward)

    def write(self, subgraph: _native.Subgraph) -> SampledSubgraph:
        """Return the engine's subgraph as tensors."""
        num_nodes, num_edges, node_hops, edge_hops = self._output.sizes(subgraph)
        nodes = [self._empty(n) for n in num_nodes]
        ends = [self._empty(2, n) for n in num_edges]
        with_ids = zip(num_edges, self._has_ids, strict=True)
        edges = [self._empty(n) if has_ids else None for n, has_ids in with_ids]
        trees = [self._empty(n) for n in num_nodes] if self._spec.disjoint else None
        self._output.write(subgraph, nodes, ends, edges, trees)
        wrap, counts_hops = torch.from_numpy, self._spec.counts_hops
        return SampledSubgraph(
            [wrap(n) for n in nodes],
            [wrap(e) for e in ends],
            [None if e is None else wrap(e) for e in edges],
            None if trees is None else [wrap(t) for t in trees],
            node_hops if counts_hops else None,
            edge_hops if counts_hops else None,
            {**self._marks, **{name: wrap(array) for name, array in subgraph.values.items()}},
        )

    def _empty(self, *shape: int) -> Int64Array:
        return self._pool.empty(shape, _INT64)


def number_by_link(drawn: SampledSubgraph, num_links: int) -> None:
    """Number the trees of a disjoint batch of `num_links` links by link, in place.

    Before, each end of a link has a tree of its own.
    """
    for of_type, tree in enumerate(drawn.trees or ()):
        tree.copy_(link_of_tree(tree, num_links))
        if drawn.padding is not None:  # a further tree
            tree.masked_fill_(~drawn.padding.nodes[of_type], num_links)


class SubgraphSampler:
    """Sampler of a graph in memory, on the CPU. Safe to use from several threads.

    Args:
        graph: the graph.
        spec: how neighbours are drawn.
        backward: out-neighbours are drawn, not in-neighbours.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec, backward: bool) -> None:
        self.spec = spec
        self.view = GraphView.of_graph(graph)
        self._engine = Engine(self.view, spec)
        edge_ids = [t.edge_ids for t in graph.topologies.values()]
        self._writer = SubgraphWriter(edge_ids, spec, backward)

    def draw_nodes(self, seeds: Sequence[SeedSet], run_key: int, batch: int) -> SampledSubgraph:
        """Draw the neighbourhood of seeds (a set per node type) by the key (`run_key`, `batch`)."""
        return self._written(self._engine.sample_local(seeds, run_key, batch))

    def access(self, run_key: int, batch: int) -> BatchDraw:
        """Return the graph as a program (sampling method in Python) sees it, for draws of a batch.

        `run_key` (the epoch's) and `batch` determine the random numbers.
        """
        subgraph = _native.Subgraph(self.view.num_nodes, self.view.relations, False)
        return BatchDraw(self._engine.rows, subgraph, (), (), (run_key, batch), False)

    def draw_links(
        self, sampler: LinkSampler, links: Links, run_key: int, batch: int
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """Draw the neighbourhood of links, and return the positions of their ends in it, too."""
        subgraph, seeds = run(sampler.sample(self._engine, links, run_key, batch))
        drawn = self._written(subgraph)
        number_by_link(drawn, seeds.num_links)
        return drawn, seeds

    def _written(self, subgraph: Any) -> SampledSubgraph:
        """Convert a drawn subgraph to tensors, and keep its buffers for the next one."""
        drawn = self._writer.write(subgraph)
        self._engine.release(subgraph)
        return drawn


def to_pyg(
    drawn: SampledSubgraph,
    info: GraphInfo,
    metadata: tuple[Any, ...],
    forms: tuple[type[SamplerOutput], type[HeteroSamplerOutput]],
) -> SamplerOutput | HeteroSamplerOutput:
    """Convert a subgraph to PyG's sampler output, with every type of a heterogeneous graph.

    Args:
        drawn: the subgraph.
        info: the graph that it was drawn from.
        metadata: metadata of the output, for a loader. The method's values are added.
        forms: classes of homogeneous and of heterogeneous outputs.
    """
    nodes, _, edges, trees, node_hops, edge_hops, *_ = drawn
    if drawn.values:
        metadata = OutputMetadata(metadata, drawn.values)
    # Halves of one tensor, which loaders need not stack again.
    ends = [edge_index.unbind() for edge_index in drawn.edge_index]
    rows, cols = [row for row, _ in ends], [col for _, col in ends]
    if not info.heterogeneous:
        return forms[0](
            nodes[0],
            rows[0],
            cols[0],
            edges[0],
            trees and trees[0],
            node_hops and node_hops[0],
            edge_hops and edge_hops[0],
            metadata=metadata,
        )
    node_types, edge_types = info.node_types, list(info.edge_types)
    return forms[1](
        node=_by_type(node_types, nodes),
        row=_by_type(edge_types, rows),
        col=_by_type(edge_types, cols),
        edge=_by_type(edge_types, edges),
        batch=_by_type(node_types, trees),
        num_sampled_nodes=_by_type(node_types, node_hops),
        num_sampled_edges=_by_type(edge_types, edge_hops),
        metadata=metadata,
    )


def _by_type(types: list[_K], values: list[_V] | None) -> dict[_K, _V] | None:
    return None if values is None else dict(zip(types, values, strict=True))


def output_on_host(
    out: SamplerOutput | HeteroSamplerOutput,
) -> SamplerOutput | HeteroSamplerOutput:
    """Return a sampler's output, in PyG's form, with its tensors on the CPU."""
    fields = {field.name: _on_host(getattr(out, field.name)) for field in dataclasses.fields(out)}
    return dataclasses.replace(out, **fields)


def _on_host(value: object) -> object:
    if isinstance(value, dict):
        return {key: _on_host(entry) for key, entry in value.items()}
    if isinstance(value, OutputMetadata):
        return OutputMetadata(map(_on_host, value), value.values)
    if type(value) is tuple:
        return tuple(map(_on_host, value))
    return value.cpu() if isinstance(value, Tensor) else value
