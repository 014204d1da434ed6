"""Size of each sampler's arena, and number of batches made ahead. Run by trainers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from khop.distributed.sampling.pipeline import PipelineSpec
from khop.sampler.rows.collect import EDGE_BYTES, NODE_BYTES, CollectSpec
from khop.storage.folder import EdgeTypeMeta, FolderMeta, NodeTypeMeta

# Limits of batches made ahead, in bytes and batches. They apply where a sampler's concurrency is
# lower.
_AHEAD_BYTES = 32 << 20
_MAX_AHEAD = 64


class ArenaPlan(NamedTuple):
    """Size and use of a sampler's arena, the shared memory for its batches.

    Attributes:
        nbytes: size of the arena.
        depth: batches that the sampler makes ahead of the trainer.
        in_bulk: True if one message requests many batches, as batches are small.
    """

    nbytes: int
    depth: int
    in_bulk: bool


def plan_memory(
    meta: FolderMeta,
    spec: PipelineSpec,
    batch_size: int,
    concurrency: int,
    num_arenas: int,
    buffer_size: int | str | None,
) -> ArenaPlan:
    """Plan a loader's arenas: of the requested size, or large enough for the batches in flight.

    The size of a batch is estimated from its fan-outs (-1 counts as twice the mean degree) and
    bounded by the graph. If batches are small, samplers make more of them ahead than `concurrency`,
    so that one message requests many. Untouched memory costs nothing. All arenas together get at
    most an eighth of the machine's memory, unless batches are small.

    Args:
        meta: description of the partition folder.
        spec: specification of the batches.
        batch_size: seeds per batch.
        concurrency: minimum number of batches in flight.
        num_arenas: number of arenas of the loader.
        buffer_size: requested bytes of all arenas together. If None, the size is estimated.
    """
    batch_bytes = _batch_bytes(meta, spec, batch_size)
    if buffer_size is not None:
        nbytes = max(int(buffer_size) // num_arenas, 1 << 16)
        small = min(nbytes // 2, _AHEAD_BYTES) // batch_bytes
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = max(memory // 8 // num_arenas, 1 << 20)
        nbytes = min(batch_bytes * (concurrency + 2), limit)
        small = _AHEAD_BYTES // batch_bytes
    depth = min(small, _MAX_AHEAD)
    if depth <= concurrency:
        return ArenaPlan(nbytes, concurrency, False)
    return ArenaPlan(max(nbytes, 2 * depth * batch_bytes), depth, True)


def batches_drawn_ahead(meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> int:
    """Return the number of batches without rows that `_AHEAD_BYTES` hold."""
    num_nodes, num_edges = _largest_batch(meta, spec, batch_size)
    return _AHEAD_BYTES // (NODE_BYTES * num_nodes + EDGE_BYTES * num_edges + 1)


def _batch_bytes(meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> int:
    num_nodes, num_edges = _largest_batch(meta, spec, batch_size)
    collect = spec.collect
    node_bytes = 8 + 8 * collect.with_trees + _widest(meta.node_types, collect.node_attrs, collect)
    edge_bytes = 16
    if any(collect.with_edge):
        edge_bytes += 8 + _widest(meta.edge_types, collect.edge_attrs, collect)
    return num_nodes * node_bytes + num_edges * edge_bytes + (64 << 10)


def _largest_batch(meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> tuple[int, int]:
    """Return estimated upper bounds of the nodes and edges of a batch."""
    nodes, edges = sum(t.count for t in meta.node_types), sum(t.count for t in meta.edge_types)
    mean_degree = 2 * edges // max(nodes, 1) + 1
    num_seeds = batch_size
    if spec.link is not None:
        num_seeds = 2 * (batch_size + spec.link.num_negatives(batch_size))
    # The graph bounds each tree of a disjoint batch, not all together.
    copies = num_seeds if spec.sampling.disjoint else 1
    frontier, num_nodes, num_edges = num_seeds, num_seeds, 0
    for hop in range(spec.sampling.num_hops):
        fanouts = [hops[hop] for hops in spec.sampling.fanouts]
        drawn = sum(mean_degree if fanout < 0 else fanout for fanout in fanouts)
        frontier = min(frontier * drawn, edges * copies)
        num_edges += frontier
        num_nodes = min(num_nodes + frontier, nodes * copies + num_seeds)
    if spec.sampling.subgraph_type == "bidirectional":
        num_edges *= 2
    elif spec.sampling.subgraph_type == "induced":
        num_edges = min(max(num_edges, num_nodes * mean_degree), edges * copies)
    return num_nodes, num_edges


def _widest(
    types: Sequence[NodeTypeMeta | EdgeTypeMeta], names: list[list[str]], collect: CollectSpec
) -> int:
    """Return the bytes per row of the attributes, for the type with the widest rows."""
    widths = [
        sum(collect.row(t.attrs[name]).nbytes for name in of_type)
        for t, of_type in zip(types, names, strict=True)
    ]
    return max(widths, default=0)
