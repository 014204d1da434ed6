"""Sampler from seeds or links to tensors: an engine, and a writer of what it draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from khop import _native
from khop.data import Graph
from khop.data.steps import run
from khop.sampler.drawing.batch_draw import BatchDraw
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.link import Links, LinkSampler, LinkSeeds
from khop.sampler.drawing.view import GraphView
from khop.sampler.pyg.output import SampledSubgraph, SubgraphWriter, number_by_link
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingSpec


class SubgraphSampler:
    """Sampler of a graph in memory, on the CPU. Safe to use from several threads.

    Args:
        graph: the graph.
        spec: how neighbours are drawn.
        backward: neighbours are drawn along the edges.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec, backward: bool) -> None:
        self.spec = spec
        self.view = GraphView.of_graph(graph)
        self._engine = Engine(self.view, spec)
        edge_ids = [t.edge_ids for t in graph.topologies.values()]
        self._writer: Any = SubgraphWriter(edge_ids, spec, backward)

    def draw_nodes(self, seeds: Sequence[SeedSet], run_key: int, batch: int) -> SampledSubgraph:
        """Draw the neighbourhood of seeds, of each node type once."""
        return self._written(self._engine.sample_local(seeds, run_key, batch))

    def access(self, run_key: int, batch: int) -> BatchDraw:
        """Return the graph as programs see it, for draws with the key of a batch."""
        subgraph = _native.Subgraph(self.view.num_nodes, self.view.relations, False)
        return BatchDraw(self._engine.rows, subgraph, (), (), (run_key, batch), False)

    def draw_links(
        self, sampler: LinkSampler, links: Links, run_key: int, batch: int
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """Draw the neighbourhood of links. Return the positions of the links' ends in it, too."""
        subgraph, seeds = run(sampler.sample(self._engine, links, run_key, batch))
        drawn = self._written(subgraph)
        if drawn.trees is not None:
            self._wait_for_tensors()
        number_by_link(drawn, seeds.num_links)
        return drawn, seeds

    def _wait_for_tensors(self) -> None:
        """Wait until torch can read the tensors. On the CPU they are written already."""

    def _written(self, subgraph: Any) -> SampledSubgraph:
        """Write a drawn subgraph to tensors. Its buffers are then free for the next."""
        drawn: SampledSubgraph = self._writer.write(subgraph)
        self._engine.release(subgraph)
        return drawn
