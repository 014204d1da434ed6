"""Propagation over the whole graph: each node's row from its neighbours' rows, hop by hop.

A trainer computes the rows of the partitions whose primary it runs. A partition has all edges of
its rows, so only the neighbours' rows are pulled. Rows go to another tensor than the one that is
read, so all trainers read the rows of the hop before. Runs in trainers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from khop import _native
from khop.distributed.tensors.graph_tensor import GraphTensor
from khop.distributed.tensors.store_client import StoreClient
from khop.loader.batches.collate import to_tensor
from khop.storage import aggregation
from khop.storage.aggregation import Aggregation, Block, RowEdges, inverse_root
from khop.storage.folder import FolderMeta
from khop.typing import Array

_FETCHED_BYTES = 256 << 20  # of neighbours' rows that are requested for a block


class Hops(NamedTuple):
    """Arguments of `GraphStore.update_all`.

    Attributes:
        rule: the aggregation.
        apply: function of the reduced rows and the nodes' own rows, or None.
        roots: tensor of each node's `inverse_root`, for 'sym'.
    """

    rule: Aggregation
    apply: Callable[[Tensor, Tensor], Tensor] | None
    roots: GraphTensor | None = None

    def check(self, meta: FolderMeta, source: GraphTensor, out: GraphTensor, num_hops: int) -> None:
        """Raise an error unless tensors and arguments fit one another."""
        described = self.rule.described(meta)
        types = meta.neighbor_type(described).name, meta.row_type(described).name
        if (source.group, out.group) != types:
            raise ValueError(
                f"edges {described.name} lead from {types[0]!r} to {types[1]!r}, but the tensors "
                f"are of {source.group!r} and {out.group!r}"
            )
        for tensor in (source, out):
            if tensor.spec.dtype != "float32":
                raise TypeError(f"propagation needs float32 rows (got {tensor})")
        if self.apply is None and source.spec.shape != out.spec.shape:
            raise ValueError(f"{source} and {out} differ in the shape of a row: pass apply=")
        self.rule.check(meta, num_hops)
        if num_hops > 1 and source.spec.shape != out.spec.shape:
            raise ValueError(f"several hops need rows of one shape: {source} and {out} differ")


def actions(
    client: StoreClient,
    hops: Hops,
    source: GraphTensor,
    out: GraphTensor,
    other: GraphTensor,
    num_hops: int,
) -> Iterator[Callable[[], None]]:
    """Yield what this trainer does in each step.

    Hops read one tensor and write another in turns, so that the last hop writes `out`.

    Args:
        client: the trainer's connection to the store's servers.
        hops: the arguments of `GraphStore.update_all`.
        source: the tensor that the first hop reads.
        out: the tensor that is written.
        other: a further tensor like `out`, for several hops, or if `source` is `out`.
        num_hops: number of hops.
    """
    if hops.roots is not None:
        yield partial(write_roots, client, hops)
    is_direct = source is not out or num_hops % 2 == 0
    for left in reversed(range(num_hops)):
        written = out if (left % 2 == 0) == is_direct else other
        yield partial(run_hop, client, hops, source, written, out)
        source = written
    if not is_direct:
        yield partial(copy_rows, client, source, out)


def write_roots(client: StoreClient, hops: Hops) -> None:
    """Write 1 / sqrt(sum of weights) of each row of this trainer's partitions."""
    assert hops.roots is not None
    for block in _blocks(client, hops, aggregation.EDGES_AT_ONCE):
        hops.roots.write_at(block.positions, inverse_root(block.sums())).wait()


def copy_rows(client: StoreClient, source: GraphTensor, out: GraphTensor) -> None:
    """Copy the rows of this trainer's partitions from one tensor to another."""
    bounds = client.bounds_of(out.spec)
    for part in client.own_parts:
        step = aggregation.ROWS_AT_ONCE
        for first in range(bounds[part], bounds[part + 1], step):
            positions = np.arange(first, min(first + step, bounds[part + 1]))
            out.write_at(positions, source.read_at(positions)).wait()


def run_hop(
    client: StoreClient, hops: Hops, source: GraphTensor, out: GraphTensor, last: GraphTensor
) -> None:
    """Compute the rows of this trainer's partitions in one hop, and write them.

    Args:
        client: the trainer's connection to the store's servers.
        hops: the arguments.
        source: the tensor whose rows are read.
        out: the tensor to write.
        last: tensor of the nodes' own rows, for `apply`, if `source` is of another node type.

    Raises:
        ValueError: `apply` returns something else than rows of `out`.
    """
    own = source if source.group == out.group else last
    edges_at_once = aggregation.EDGES_AT_ONCE
    if not source.shared_parts():
        edges_at_once = min(
            edges_at_once, max(_FETCHED_BYTES // max(source.spec.rows.nbytes, 1), 1)
        )
    for block in _blocks(client, hops, edges_at_once):
        rows = _reduced(hops, source, block)
        if hops.apply is not None:
            before = to_tensor(own.read_at(block.positions), own.spec.dtype)
            made = hops.apply(torch.from_numpy(rows), before)
            shape = (len(rows), *out.spec.shape)
            if not isinstance(made, Tensor) or tuple(made.shape) != shape:
                got = list(made.shape) if isinstance(made, Tensor) else type(made).__name__
                raise ValueError(f"apply must return a tensor of shape {list(shape)} (got {got})")
            rows = made.detach().to(torch.float32).contiguous().numpy()
        out.write_at(block.positions, rows).wait()


def _reduced(hops: Hops, source: GraphTensor, block: Block) -> Array:
    """Return the reduced rows of a block: [n, *shape of a row of `source`] float32."""
    neighbors, values = block.neighbors.astype(np.int64, copy=False), source.shared_parts()
    positions = neighbors
    if not values:
        numbers = _native.NodeNumbers(len(source))
        neighbors, positions = numbers.number(neighbors), numbers.ids()
        values = [source.read_at(positions)]
    roots = None
    if hops.roots is not None:
        far = hops.roots.read_at(positions)
        far = far if positions is neighbors else far[neighbors]
        roots = hops.roots.read_at(block.positions), far
    out = np.empty((len(block.positions), math.prod(source.spec.shape)), np.float32)
    tables = [rows.reshape(len(rows), out.shape[1]) for rows in values]
    hops.rule.reduce_rows(block, neighbors, tables, out, roots)
    return out.reshape(len(out), *source.spec.shape)


def _blocks(client: StoreClient, hops: Hops, edges_at_once: int) -> Iterator[Block]:
    """Yield the rows of this trainer's partitions, some edges at a time."""
    rule = hops.rule
    for index in client.own_parts:
        part = client.part(index)
        low = part.meta.row_type(rule.described(part.meta)).bounds[index]
        weights = None if rule.weight is None else part.edge_feature(rule.edge_type, rule.weight)
        edges = RowEdges(low, *part.rows(rule.edge_type), weights)
        for begin, end in edges.spans(edges_at_once, aggregation.ROWS_AT_ONCE):
            yield rule.block(edges, begin, end)
