"""How much shared memory batches need, and how many are made ahead of the trainer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from khop.data.arrays import storage_dtype
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.storage.folder import AttrMeta, EdgeTypeMeta, FolderMeta, NodeTypeMeta

# Batches are made ahead up to so many bytes and so many batches, where that is more than a sampler
# has in flight.
_AHEAD_BYTES = 32 << 20
_MAX_AHEAD = 64


class RingPlan(NamedTuple):
    """A sampler's shared memory, and what it holds.

    Attributes:
        nbytes: its size.
        depth: batches that the sampler makes ahead of the trainer.
        in_bulk: batches are so small that messages are for many at a time.
    """

    nbytes: int
    depth: int
    in_bulk: bool


def plan_memory(
    meta: FolderMeta,
    spec: PipelineSpec,
    batch_size: int,
    concurrency: int,
    num_rings: int,
    nbytes: int | None,
) -> RingPlan:
    """What is asked for, or room for the batches in flight.

    A batch is estimated by its fan-outs (-1 counts as twice the mean degree) and bounded by the
    graph. Of small batches, samplers make more ahead than they have in flight, so that a message
    does for many. Untouched memory costs nothing; at most an eighth of the machine's is promised.

    Args:
        meta: what the folder holds.
        spec: what batches shall be.
        batch_size: seeds a batch.
        concurrency: batches that are in flight at the least.
        num_rings: rings of the loader.
        nbytes: size of each, if it was asked for.
    """
    batch_bytes = _batch_bytes(meta, spec, batch_size)
    if nbytes is not None:
        small = min(nbytes // 2, _AHEAD_BYTES) // batch_bytes
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = max(memory // 8 // num_rings, 1 << 20)
        nbytes = min(batch_bytes * (concurrency + 2), limit)
        small = _AHEAD_BYTES // batch_bytes
    depth = min(small, _MAX_AHEAD)
    if depth <= concurrency:
        return RingPlan(nbytes, concurrency, False)
    return RingPlan(max(nbytes, 2 * depth * batch_bytes), depth, True)


def _batch_bytes(meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> int:
    num_nodes, num_edges = _largest_batch(meta, spec, batch_size)
    node_bytes = 8 + 8 * spec.collect.with_trees + _widest(meta.node_types, spec.collect.node_attrs)
    edge_bytes = 16
    if any(spec.collect.with_edge):
        edge_bytes += 8 + _widest(meta.edge_types, spec.collect.edge_attrs)
    return num_nodes * node_bytes + num_edges * edge_bytes + (64 << 10)


def _largest_batch(meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> tuple[int, int]:
    """Nodes and edges of a batch, estimated from above."""
    nodes, edges = sum(t.count for t in meta.node_types), sum(t.count for t in meta.edge_types)
    mean_degree = 2 * edges // max(nodes, 1) + 1
    num_seeds = batch_size
    if spec.link is not None:
        num_seeds = 2 * (batch_size + spec.link.num_negatives(batch_size))
    # Of a disjoint batch each tree is bounded by the graph, not all together.
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


def _widest(types: Sequence[NodeTypeMeta | EdgeTypeMeta], names: list[list[str]]) -> int:
    """Bytes of the attributes of one row, of the type with most."""
    widths = [
        sum(_row_bytes(t.attrs[n]) for n in wanted) for t, wanted in zip(types, names, strict=True)
    ]
    return max(widths, default=0)


def _row_bytes(attr: AttrMeta) -> int:
    return storage_dtype(attr.dtype).itemsize * int(np.prod(attr.shape, dtype=np.int64))
