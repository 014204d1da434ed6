"""Batches that a device pads while it writes them. Runs in the trainer.

The arrays of such a batch have fixed lengths, so the host need not know the numbers of its nodes
and edges.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from khop import _native
from khop.sampler.pyg.output import Masks, SampledSubgraph


class PadSizes(NamedTuple):
    """Sizes that batches are padded to.

    Attributes:
        nodes: for each node type, rows of the seeds and of each hop.
        edges: for each edge type, rows of each hop.
        is_fixed: True if a batch that does not fit is an error. The host then does not wait for a
            batch. False if such a batch is drawn without padding, so that the sizes can grow.
    """

    nodes: list[list[int]]
    edges: list[list[int]]
    is_fixed: bool


class PaddedLayout:
    """Layout of padded batches of one plan in their memory.

    Args:
        plan: the plan, with padding.
        sizes: the sizes of its padding.
        has_ids: for each edge type, True if batches have ids of edges.
        disjoint: True if batches have the trees of nodes.
    """

    def __init__(
        self, plan: _native.DevicePlan, sizes: PadSizes, has_ids: list[bool], disjoint: bool
    ) -> None:
        self.plan, self.sizes = plan, sizes
        self._lengths = plan.lengths
        self._rows = [sum(of) for of in (*sizes.nodes, *sizes.edges)]
        # Masks are bytes. Each begins with an entry of the block.
        rest = 8 * (plan.block_words - sum(-(-rows // 8) for rows in self._rows))
        self._bytes = [rest, *(n for rows in self._rows for n in (rows, -rows % 8))]
        self._has_ids, self._disjoint = has_ids, disjoint

    @property
    def num_rows(self) -> tuple[int, int]:
        """Numbers of nodes and edges of a batch, with padding."""
        types = len(self.sizes.nodes)
        return sum(self._rows[:types]), sum(self._rows[types:])

    def parts_of(self, block: Tensor, written: torch.cuda.Event | None) -> SampledSubgraph:
        """Return the tensors of a batch: parts of its memory, [plan.block_words] int64."""
        parts, sizes = block.split_with_sizes(self._lengths), self.sizes
        types, relations = len(sizes.nodes), len(sizes.edges)
        begin = 2 * types if self._disjoint else types
        named = iter(parts[begin + relations :])
        edges = [next(named) if has_ids else None for has_ids in self._has_ids]
        masks = block.view(torch.bool).split_with_sizes(self._bytes)[1::2]
        return SampledSubgraph(
            [*parts[:types]],
            [ends.view(2, -1) for ends in parts[begin : begin + relations]],
            edges,
            [*parts[types:begin]] or None,
            sizes.nodes,
            sizes.edges,
            written=written,
            padding=Masks([*masks[:types]], [*masks[types:]]),
        )
