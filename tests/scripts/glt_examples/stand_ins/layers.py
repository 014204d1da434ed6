"""Stand-in for PyG's former `NeighborSampler`, which needs torch-sparse: one hop, unsampled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from khop.glt.sampler import EdgeIndex


class NeighborSampler:
    """Batches of (number of targets, node ids, edges), targets first.

    Args:
        edge_index: [2, num_edges] edges.
        sizes: [-1]: all neighbours of one hop.
        batch_size: number of targets.
        **options: not needed.
    """

    def __init__(
        self, edge_index: Tensor, sizes: list[int], batch_size: int, **options: Any
    ) -> None:
        assert sizes == [-1]
        self._edges, self._batch_size = edge_index, batch_size
        self._count = int(edge_index.max()) + 1

    def __iter__(self) -> Iterator[tuple[int, Tensor, EdgeIndex]]:
        src, dst = self._edges
        for first in range(0, self._count, self._batch_size):
            targets = torch.arange(first, min(first + self._batch_size, self._count))
            chosen = ((dst >= first) & (dst <= int(targets[-1]))).nonzero().view(-1)
            known = torch.zeros(self._count, dtype=torch.bool)
            known[src[chosen]] = True
            known[targets] = False
            nodes = torch.cat([targets, known.nonzero().view(-1)])
            place = torch.empty(self._count, dtype=torch.long)
            place[nodes] = torch.arange(len(nodes))
            ends = torch.stack([place[src[chosen]], place[dst[chosen]]])
            yield len(targets), nodes, EdgeIndex(ends, chosen, (len(nodes), len(targets)))
