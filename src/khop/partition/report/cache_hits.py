"""Prediction of the hits of caches of rows, from batches that are drawn for a report.

A `PredictedCache` takes batches in order and keeps rows as a sampler's cache does: by the rule of
`_native.LookaheadCache`, with the batches of a window known. Imports no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from khop import _native
from khop.data.direct_reads import rows_in_memory
from khop.partition.report.cut_graph import CutGraph
from khop.sampler.rows.row_cache import ROWS_KNOWN, TableSize, capacities
from khop.typing import Int64Array

# Batches that loaders announce, see `RowCaching.limits`. Of graphs on disk batches are large.
_LEAST_AHEAD, _MOST_AHEAD = 8, 64
_ID_BYTES = 8  # rows of other parts come with their original ids


class PredictedCache:
    """Cache of one table's rows, without the rows.

    Args:
        capacity: number of rows.
        window: batches that are known beyond the current one. If None, as many as the rows of the
            cache suggest, from 8 to 64.

    Example:
        >>> cache = khop.partition.report.cache_hits.PredictedCache(capacity=2, window=1)
        >>> for batch in ([1, 2], [1, 3], [1, 3], [1, 4]):
        ...     cache.add(np.array(batch))
        >>> cache.finish()
        (3, 4)
    """

    def __init__(self, capacity: int, window: int | None = None) -> None:
        self._plan = _native.LookaheadCache(capacity)
        self._window = window
        self._open: deque[tuple[int, int]] = deque()
        self._taken: list[tuple[int, int]] = []
        self._num_batches = self._num_rows = 0

    def add(self, ids: Int64Array) -> None:
        """Announce the rows of the next batch: [n] int64."""
        self._num_batches += 1
        self._num_rows += len(ids)
        self._open.append((self._plan.announce(ids), len(ids)))
        window = self._window
        if window is None:
            known = ROWS_KNOWN * self._plan.capacity * self._num_batches // max(self._num_rows, 1)
            window = min(max(known, _LEAST_AHEAD), _MOST_AHEAD)
        while len(self._open) > window:
            self._take()

    def _take(self) -> None:
        batch, count = self._open.popleft()
        misses = self._plan.take(batch)[2]
        self._taken.append((count - len(misses), count))

    def finish(self) -> tuple[int, int]:
        """Return hits and rows of the second half of the batches.

        The first half fills the cache.
        """
        while self._open:
            self._take()
        counted = self._taken[len(self._taken) // 2 :]
        return sum(hits for hits, _ in counted), sum(rows for _, rows in counted)


class PredictedCaches:
    """Caches of the rows of all node types, which divide bytes as a sampler's do.

    Args:
        caches: the cache of each node type that has one.
    """

    def __init__(self, caches: Mapping[int, PredictedCache]) -> None:
        self._caches = caches

    @classmethod
    def of_part(
        cls, graph: CutGraph, part: int, nbytes: int
    ) -> tuple[PredictedCaches, PredictedCaches]:
        """Return the caches of rows of other parts, and of a part's own rows on disk.

        Args:
            graph: the cut graph.
            part: the part.
            nbytes: bytes of `cache_memory`, and of `disk_memory`.
        """
        own = [nodes.bounds[part + 1] - nodes.bounds[part] for nodes in graph.nodes]
        remote = {
            i: TableSize(nodes.row_bytes + _ID_BYTES, nodes.bounds[-1] - own[i])
            for i, nodes in enumerate(graph.nodes)
        }
        on_disk = {}
        total = sum(n.row_bytes * count for n, count in zip(graph.nodes, own, strict=True))
        for i, nodes in enumerate(graph.nodes):
            if nodes.row_bytes and own[i]:
                of_type = nbytes * nodes.row_bytes * own[i] // total
                count = min(rows_in_memory(of_type, nodes.row_bytes), own[i])
                on_disk[i] = PredictedCache(count, _LEAST_AHEAD)
        counts = capacities(nbytes, remote)
        return cls({i: PredictedCache(count) for i, count in counts.items()}), cls(on_disk)

    def add(self, node_type: int, ids: Int64Array) -> None:
        """Add the rows of the next batch, of one node type: [n] int64."""
        if node_type in self._caches:
            self._caches[node_type].add(ids)

    def share(self) -> float | None:
        """Return the share of hits. If no rows were asked for, None."""
        ended = [cache.finish() for cache in self._caches.values()]
        rows = sum(count for _, count in ended)
        return sum(hits for hits, _ in ended) / rows if rows else None
