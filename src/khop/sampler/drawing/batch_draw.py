"""A batch that a program draws, a sampling method in Python. Imports no torch.

Trainers and sampler processes run it, by `Engine.sample`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from khop import _native
from khop.sampler.drawing.graph_rows import GraphRows, in_order
from khop.sampler.methods.access import Rows, Waiting
from khop.sampler.replies import check_weights
from khop.sampler.requests import Exclusion, HopRequest, RowSet, SeedSet
from khop.sampler.rows.row_fetch import write_rows
from khop.sampler.rows.row_fetcher import PartRows
from khop.typing import Array, Float64Array, Int32Array, Int64Array, UInt64Array


class BatchDraw:
    """A batch that a program draws: what the program sees of the graph, as a `GraphAccess`.

    `Engine.sample` makes one for each batch. A program is a sampling method in Python
    (`khop.sampler.methods`).

    Args:
        rows: the graph's rows.
        subgraph: the batch, begun, with exclusions but without seeds.
        seeds: the seeds.
        exclude: edges that must not be in the batch.
        batch_key: (key of the epoch, index of the batch).
        with_edge: the batch records edges.
        fanouts: for each edge type, the fan-out of each hop.
        weighted: for each edge type, whether it is drawn by weight. If empty, none is.
        num_threads: threads that kernels can use.
    """

    def __init__(
        self,
        rows: GraphRows,
        subgraph: _native.Subgraph,
        seeds: Sequence[SeedSet],
        exclude: Sequence[Exclusion],
        batch_key: tuple[int, int],
        with_edge: bool,
        fanouts: Sequence[Sequence[int]] = (),
        weighted: Sequence[bool] = (),
        num_threads: int = 1,
    ) -> None:
        view = rows.view
        self._rows = rows
        self._exclude = exclude
        self.batch_key, self.batch = batch_key, batch_key[1]
        self._with_edge = with_edge
        self._weighted = weighted
        self.fanouts = fanouts
        self.subgraph = subgraph
        self.seeds = seeds
        self.num_nodes, self.node_types = view.num_nodes, view.node_types
        self.relations = view.relations
        self.values: dict[str, Array] = {}
        is_whole = view.is_whole and not view.on_disk and not exclude
        self.whole_rows: Sequence[_native.Csr] | None = view.csrs if is_whole else None
        self.num_threads = num_threads
        self.degrees, self.degree_sums = rows.degrees, rows.degree_sums
        self.has_edges, self.column_sums = rows.has_edges, rows.column_sums
        self.engine_ids = view.own_ids

    def key(self, purpose: int, step: int = 0, index: int = 0, batch: int | None = None) -> int:
        batch = self.batch if batch is None else batch
        return _native.program_key(self.batch_key[0], batch, purpose, step, index)

    def words(self, key: int, node_type: int, ids: Int64Array) -> Waiting[UInt64Array]:
        original = yield from self.original_ids(node_type, ids)
        return _native.draw_words(key, original)

    def neighbors(
        self,
        relation: int,
        ids: Int64Array,
        fanout: int = -1,
        *,
        key: int = 0,
        replace: bool = False,
        trees: Int32Array | None = None,
        times: Int64Array | None = None,
        with_edge: bool = True,
    ) -> Waiting[Rows]:
        rows = RowSet.around((ids, trees, times), relation, self._exclude)
        request = HopRequest(fanout, replace, with_edge, key)
        replies = yield from self._rows.draw(relation, rows, request)
        counts, neighbors, edges = in_order(replies)
        return counts, neighbors.astype(np.int64, copy=False), edges

    def weights(self, relation: int, edges: Int64Array | None) -> Waiting[Float64Array | None]:
        if relation >= len(self._weighted) or not self._weighted[relation]:
            return None
        assert edges is not None  # weights are of edges that were asked for
        view = self._rows.view
        if view.storage is None:
            return view.topologies[relation].weights_of(edges)
        name = view.storage.meta.weight_attr
        assert name is not None  # of a folder with weighted edge types
        rows = PartRows(view.storage, "edge", relation, [name], self._rows.remote)
        (fetched,) = stored = rows.empty(len(edges))
        yield from write_rows([(rows.fetch(edges), stored)])
        return check_weights(fetched, rows.attributes[name].dtype)

    def original_ids(self, node_type: int, ids: Int64Array) -> Waiting[Int64Array]:
        part = self._rows.view.storage
        if part is None or not part.meta.renumbered:
            return ids
        fetch = PartRows(part, "node", node_type, ["id"], self._rows.remote).fetch(ids)
        original = np.empty(len(ids), np.int64)
        yield from write_rows([(fetch, [original])])
        return original

    def add_hop(self, relation: int, rows: Rows) -> None:
        counts, neighbors, edges = rows
        owners = np.zeros(len(counts), np.int32)
        reply = counts, neighbors, edges if self._with_edge else None
        self.subgraph.merge(relation, owners, [reply])
