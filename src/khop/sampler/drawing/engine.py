"""The sampling engine: one for graphs in memory, mapped partitions and remote rows.

`Engine.sample` is a generator. It yields the requests to other partitions that it waits for, and is
resumed when they are answered. So one process keeps several batches in flight. If all rows are
local, it never yields. The draws depend on the key of the run, the index of the batch and the graph
alone. Trainers and sampler processes use it. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from khop import _native
from khop.data.steps import run
from khop.sampler.drawing.batch_draw import BatchDraw
from khop.sampler.drawing.graph_rows import GraphRows
from khop.sampler.drawing.view import GraphView
from khop.sampler.methods import ProgramMethod
from khop.sampler.methods.access import Waiting, together
from khop.sampler.requests import Exclusion, RemoteParts, RowSet, SeedSet
from khop.sampler.spec import SamplingSpec
from khop.typing import Array


class Engine:
    """Sampler of the subgraphs of batches.

    Args:
        view: the graph.
        spec: how neighbours are drawn.
        remote: the other partitions. Required unless all rows are local.
    """

    def __init__(
        self, view: GraphView, spec: SamplingSpec, remote: RemoteParts | None = None
    ) -> None:
        self.view = view
        self.spec = spec
        self.rows = GraphRows(view, remote)
        self._program: ProgramMethod | None = spec.method.program
        self._idle: list[Any] = []
        self._is_whole = view.is_whole and not view.on_disk
        parts = [view.parts_of(relation) for relation in range(len(view.relations))]
        # The parts of each edge type, if kernels can read all of them.
        self._parts = [csrs for csrs in parts if csrs is not None]
        self._reads_parts = len(self._parts) == len(parts)
        # Rows that kernels read whole, and the last argument of `sample`. A device has others.
        self._graphs: Any = view.csrs
        self._flag = spec.method.layer_wise
        # By edge type, then by hop, without keys, which batches have.
        self._requests = [spec.hop_requests(relation) for relation in range(len(spec.fanouts))]
        self.hops = [[request.options() for request in hops] for hops in self._requests]

    def release(self, subgraph: _native.Subgraph | _native.DeviceSubgraph) -> None:
        """Take back the buffers of a subgraph that `sample` returned, to be reused."""
        self._idle.append(subgraph)

    def sample_local(
        self, seeds: Sequence[SeedSet], run_key: int, batch: int, exclude: Sequence[Exclusion] = ()
    ) -> _native.Subgraph:
        """Draw a batch of a graph whose rows are all local, without waiting.

        `run_key` is the key of the epoch, from `_native.run_key`. `exclude` are edges that must not
        be in the batch. Returns the subgraph, to be given back with `release`.
        """
        if self._program is not None:
            drawn: _native.Subgraph = run(self.sample(seeds, run_key, batch, exclude))
            return drawn
        subgraph = self._begin(seeds, exclude)
        subgraph.sample(self._graphs, self.hops, run_key, batch, self._flag)
        if self.spec.subgraph_type != "directional":
            self._add_edges(subgraph)
        return subgraph

    def _add_edges(self, subgraph: Any) -> None:
        """Add the undrawn edges of a batch whose rows are all local, as `_complete` does."""
        if self.spec.subgraph_type == "bidirectional":
            subgraph.add_reverses(self.spec.reversals, self.spec.keep_edge)
        else:
            subgraph.induce(self._graphs)

    def sample(
        self, seeds: Sequence[SeedSet], run_key: int, batch: int, exclude: Sequence[Exclusion] = ()
    ) -> Waiting[_native.Subgraph]:
        """Draw one batch.

        Args:
            seeds: the seeds. In a disjoint batch each is the root of a separate tree, and trees are
                numbered over all sets.
            run_key: key of the epoch, from `_native.run_key`.
            batch: index of the batch in its epoch.
            exclude: edges that must not be in the batch.

        Returns:
            The subgraph, to be given back with `release`.

        Raises:
            IndexError: a seed does not exist.
        """
        view, spec = self.view, self.spec
        if self._program is not None:
            subgraph = self._begin((), exclude)
            key, with_edge = (run_key, batch), spec.with_edge
            drawn = BatchDraw(
                self.rows, subgraph, seeds, exclude, key, with_edge, spec.fanouts, spec.weighted
            )
            yield from self._program.draw(drawn)
            _check_values(self._program, subgraph, drawn.values, view)
            subgraph.values = drawn.values
            yield from self._complete(subgraph, exclude)
            return subgraph
        if self._is_whole:
            return self.sample_local(seeds, run_key, batch, exclude)
        subgraph = self._begin(seeds, exclude)
        if self._reads_parts:
            subgraph.sample_parts(self._parts, self.hops, run_key, batch, self._flag)
            yield from self._complete(subgraph, exclude)
            return subgraph
        for hop in range(spec.num_hops):
            for relation, (source, _) in enumerate(view.relations):
                keyed = self.hops[relation][hop].at(run_key, batch, hop, relation, source)
                request = replace(self._requests[relation][hop], key=keyed.key)
                frontier = subgraph.frontier(view.relations[relation][1])
                rows = RowSet.around(frontier, relation, exclude)
                owners, replies = yield from self.rows.draw(relation, rows, request, keyed)
                subgraph.merge(relation, owners, replies)
            subgraph.end_hop(spec.method.layer_wise)
        yield from self._complete(subgraph, exclude)
        return subgraph

    def _complete(self, subgraph: _native.Subgraph, exclude: Sequence[Exclusion]) -> Waiting[None]:
        """Add the undrawn edges of 'bidirectional' (reverses) and 'induced' (all) subgraphs."""
        subgraph_type = self.spec.subgraph_type
        if subgraph_type == "bidirectional" or (subgraph_type == "induced" and self._is_whole):
            self._add_edges(subgraph)
        elif subgraph_type == "induced":
            yield from together(
                self._induce_over_parts(subgraph, relation, exclude)
                for relation in range(len(self.view.relations))
            )

    def _begin(self, seeds: Sequence[SeedSet], exclude: Sequence[Exclusion]) -> _native.Subgraph:
        try:  # two threads may see the same idle one
            subgraph: _native.Subgraph = self._idle.pop()
        except IndexError:
            subgraph = self._new_subgraph()
        subgraph.begin()
        for node_type, ids, times in seeds:
            subgraph.add_seeds(node_type, ids, times)
        for relation, rows, neighbors in exclude:
            subgraph.exclude(relation, rows, neighbors)
        return subgraph

    def _new_subgraph(self) -> Any:
        view, spec = self.view, self.spec
        subgraph = _native.Subgraph(view.num_nodes, view.relations, spec.with_edge, spec.disjoint)
        subgraph.values = {}
        return subgraph

    def _induce_over_parts(
        self, subgraph: _native.Subgraph, relation: int, exclude: Sequence[Exclusion]
    ) -> Waiting[None]:
        source, destination = self.view.relations[relation]
        rows = RowSet.around(subgraph.members(destination), relation, exclude)
        keys, with_edge = subgraph.keys(source), self.spec.with_edge
        owners, replies = yield from self.rows.induce(relation, rows, keys, with_edge)
        subgraph.merge_induced(relation, owners, replies)


def _check_values(
    program: ProgramMethod, subgraph: _native.Subgraph, values: Mapping[str, Array], view: GraphView
) -> None:
    """Raise ValueError unless a program delivered the values that its class names.

    Batches over partitions have these values alone: further values would be lost.
    """
    if not values and not program.value_names("n") and not program.value_names("e"):
        return
    counts = {f"n{i}": subgraph.num_nodes(i) for i in range(len(view.num_nodes))}
    counts |= {f"e{i}": subgraph.num_edges(i) for i in range(len(view.relations))}
    lengths = {
        f"{prefix}.{name}": count
        for prefix, count in counts.items()
        for name in program.value_names(prefix[0])
    }
    method = type(program).__name__
    if set(values) != set(lengths):
        raise ValueError(
            f"{method} delivers {sorted(values)}, but by its node_values and edge_values these are "
            f"{sorted(lengths)}: name what `draw` puts into `graph.values`, of each type"
        )
    for name, array in values.items():
        if array.dtype != np.float32 or array.shape != (lengths[name],):
            raise ValueError(
                f"{method} must deliver '{name}' as float32 of shape {(lengths[name],)} "
                f"(got {array.dtype.name} of shape {array.shape})"
            )
