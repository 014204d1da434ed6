"""Draws of batches on a device, as tensors.

The host waits once per batch, for its sizes. All else is launched before that wait: the device
writes ids and edges to memory for the largest batch so far, of which the batch's tensors are parts.
So the next batch can be launched before the wait. A batch that is padded to chosen sizes needs no
wait. Runs in the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from khop import _native
from khop.data import Graph
from khop.data.steps import run
from khop.sampler.device.collect import EdgeNames
from khop.sampler.device.engine import DeviceEngine
from khop.sampler.device.links import DeviceLinks
from khop.sampler.drawing.link import Links, LinkSampler, LinkSeeds, named_index
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.pyg.output import SampledSubgraph, SubgraphSampler, number_by_link
from khop.sampler.pyg.padded import PaddedLayout, PadSizes
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingSpec


class Begun(NamedTuple):
    """Batch that a device is drawing.

    Attributes:
        drawer: the sampler that launched it.
        subgraph: the batch.
        written: event after which the batch is complete. None for an emulated device.
        seeds: the seeds of a batch of links.
        layout: the layout of a batch that is padded.
        by_host: draws the batch by seeds from the host, if rounds of draws on the device do not
            find its strict negatives.
    """

    drawer: DeviceDrawer
    subgraph: _native.DeviceSubgraph
    written: torch.cuda.Event | None
    seeds: LinkSeeds | None = None
    layout: PaddedLayout | None = None
    by_host: Callable[[], SampledSubgraph] | None = None

    def finish(self) -> SampledSubgraph:
        """Wait for the batch's sizes, and return it. Others may be launched meanwhile."""
        return self.drawer.finish(self)


Layout = tuple[list[int], int, list[list[int]], list[list[int]]]
"""Lengths of a batch's arrays, their sum, and numbers of nodes and edges per hop, of each type."""


class DeviceDrawer(SubgraphSampler):
    """Sampler of a graph in memory whose batches a device draws.

    Args:
        graph, spec, backward: the graph, how neighbours are drawn, True for out-neighbours.
        device: the device that draws.
        graphs: the graph on the device, from `graphs_on`.
        names: the user's edge ids on the device.
        cuda_graph: record a batch's kernels once and replay them for later batches.
    """

    def __init__(
        self,
        graph: Graph,
        spec: SamplingSpec,
        backward: bool,
        device: TorchDevice,
        graphs: list[_native.DeviceGraph],
        names: EdgeNames,
        cuda_graph: bool,
    ) -> None:
        super().__init__(graph, spec, backward)
        self._device = device
        self._engine: DeviceEngine = DeviceEngine(
            self.view, spec, device.native, graphs, cuda_graph, names.entries, backward, self._block
        )
        self._has_ids = [spec.records_edge(r) for r in range(len(graph.edge_types))]
        self._names = names  # memory that the engine's plan refers to
        self._padded: PaddedLayout | None = None
        self._links: WeakKeyDictionary[LinkSampler, DeviceLinks] = WeakKeyDictionary()

    def draw_nodes(self, seeds: Sequence[SeedSet], run_key: int, batch: int) -> SampledSubgraph:
        """Draw the neighbourhood of seeds. Event `written` of the result marks its completion."""
        return self.finish(self.begin_nodes(seeds, run_key, batch))

    def begin_nodes(
        self, seeds: Sequence[SeedSet], run_key: int, batch: int, pad: PadSizes | None = None
    ) -> Begun:
        """Launch the draw of a batch for `finish`, without a wait. Several may be launched.

        The device pads the batch to the sizes of `pad`. If None, or where it cannot, there is no
        padding.
        """
        device = self._device
        with device.lock, device.scope():
            layout = self.padded(pad)
            plan = None if layout is None else layout.plan
            subgraph = self._engine.sample_local(seeds, run_key, batch, (), plan)
            return Begun(self, subgraph, device.event(), None, layout)

    def padded(self, sizes: PadSizes | None) -> PaddedLayout | None:
        """Return the layout of batches that the device pads to these sizes. None if it cannot."""
        if sizes is None or not self._engine.pads:
            return None
        if self._padded is None or self._padded.sizes != sizes:
            plan = self._engine.padded_plan(sizes.nodes, sizes.edges, not sizes.is_fixed)
            self._padded = PaddedLayout(plan, sizes, self._has_ids, self.spec.disjoint)
        return self._padded

    def new_subgraph(self) -> _native.DeviceSubgraph:
        """Return a subgraph for one user, with memory of its own."""
        return self._engine.idle_subgraph()

    def check_all(self) -> None:
        """Wait for all padded batches. Raises ValueError if one did not fit its padding."""
        self._engine.check_all()

    def draw_links(
        self, sampler: LinkSampler, links: Links, run_key: int, batch: int
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """Draw the neighbourhood of links. Event `written` of the result marks its completion."""
        begun = self.begin_links(sampler, links, run_key, batch)
        assert begun.seeds is not None
        return self.finish(begun), begun.seeds

    def begin_links(
        self,
        sampler: LinkSampler,
        links: Links,
        run_key: int,
        batch: int,
        pad: PadSizes | None = None,
    ) -> Begun:
        """Launch the draw of links for `finish`, as `begin_nodes` does."""
        device, count = self._device, len(links)
        if not DeviceLinks.takes(sampler.spec):
            return self._begin_by_host(sampler, links, run_key, batch)
        with device.lock, device.scope():
            on_device = self._links.get(sampler)
            if on_device is None:
                on_device = DeviceLinks(device.native, sampler, self.view.num_nodes)
                self._links[sampler] = on_device
            index = device.empty([on_device.num_ends(count)])
            named = named_index(sampler.spec, index, count)
            seeds = LinkSeeds([], named, count, sampler.spec.num_negatives(count))
            layout = self.padded(pad)
            plan = None if layout is None else layout.plan
            request = on_device.request(links, index.data_ptr())
            subgraph = self._engine.sample_local((), run_key, batch, (), plan, request)
            begun = Begun(self, subgraph, device.event(), seeds, layout)
            if not sampler.spec.strict:
                return begun
            by_host = partial(self._links_by_host, sampler, links, run_key, batch, index)
            return begun._replace(by_host=by_host)

    def finish(self, begun: Begun) -> SampledSubgraph:
        """Wait for a batch's sizes, and return the batch. Others may be launched meanwhile."""
        _, subgraph, written, seeds, padded, by_host = begun
        block, is_fixed = subgraph.take_block(), padded is not None and padded.sizes.is_fixed
        if (is_fixed and subgraph.leave_unchecked()) or subgraph.settle():
            if padded is not None:
                drawn = padded.parts_of(block, written)
            else:
                drawn = self._parts_of(block, subgraph.layout(), written)
        elif by_host is not None and self._lacks_negatives(subgraph):
            self._engine.release(subgraph)
            return by_host()
        else:
            block, written, layout = self._written_late(subgraph)
            drawn = self._parts_of(block, layout, written)
        self._engine.release(subgraph)
        if seeds is None or drawn.trees is None:
            return drawn
        with self._device.lock, self._device.scope():
            number_by_link(drawn, seeds.num_links)
            return drawn._replace(written=self._device.mark())

    def _lacks_negatives(self, subgraph: _native.DeviceSubgraph) -> bool:
        """Draw a batch again as often as its strict negatives need, and return True if in vain."""
        with self._device.lock, self._device.scope():
            return subgraph.lacks_negatives()

    def _begin_by_host(self, sampler: LinkSampler, links: Links, run_key: int, batch: int) -> Begun:
        """Launch the draw of links whose negatives and seeds the host has chosen."""
        with self._device.lock, self._device.scope():
            subgraph: Any
            subgraph, seeds = run(sampler.sample(self._engine, links, run_key, batch))
            index = {name: torch.from_numpy(value) for name, value in seeds.index.items()}
            return Begun(self, subgraph, self._device.event(), replace(seeds, index=index))

    def _links_by_host(
        self, sampler: LinkSampler, links: Links, run_key: int, batch: int, index: Tensor
    ) -> SampledSubgraph:
        """Draw links whose strict negatives are chosen among all that are valid."""
        begun = self._begin_by_host(sampler, links, run_key, batch)
        assert begun.seeds is not None
        with self._device.lock, self._device.scope():
            index.copy_(torch.cat([value.flatten() for value in begun.seeds.index.values()]))
            begun = begun._replace(written=self._device.event())
        return self.finish(begun)

    def _block(self, words: int) -> tuple[Tensor, int]:
        block = self._device.empty([words])
        return block, block.data_ptr()

    def _written_late(self, subgraph: _native.DeviceSubgraph) -> tuple[Tensor, Any, Layout]:
        """Write a batch to memory of its size, after drawing it again if it had too little."""
        device = self._device
        with device.lock, device.scope():
            layout = subgraph.layout()
            block, address = self._block(layout[1])
            subgraph.write_block(address)
            return block, device.mark(), layout

    def _parts_of(self, block: Tensor, layout: Layout, written: Any) -> SampledSubgraph:
        """Return the tensors of a batch: parts of its memory, as an allocation takes longer."""
        lengths, words, node_hops, edge_hops = layout
        lengths.append(block.numel() - words)
        parts = block.split_with_sizes(lengths)
        types, counts_hops = len(self.view.num_nodes), self.spec.counts_hops
        begin = 2 * types if self.spec.disjoint else types
        end = begin + len(self._has_ids)
        named = iter(parts[end:])
        edges = [next(named) if has_ids else None for has_ids in self._has_ids]
        values: dict[str, Any] = dict(self.spec.method.marks)
        for name in self.spec.method.value_names("e"):  # float32, in whole words of the block
            values[f"e0.{name}"] = next(named).view(torch.float32)[: lengths[begin] // 2]
        return SampledSubgraph(
            [*parts[:types]],
            [parts[i].view(2, lengths[i] // 2) for i in range(begin, end)],
            edges,
            [*parts[types:begin]] or None,
            node_hops if counts_hops else None,
            edge_hops if counts_hops else None,
            values,
            written,
        )
