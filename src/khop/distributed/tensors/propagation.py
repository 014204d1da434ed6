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
from khop.storage.folder import FolderMeta
from khop.typing import Array, Int64Array, IntArray

_EDGES_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 1 << 16


class Block(NamedTuple):
    """Consecutive rows of a partition with all their entries.

    Attributes:
        positions: [n] int64 positions of the rows in the folder's order.
        first: [n + 1] int64 first entry of each row.
        neighbors: [m] position of each entry's neighbour in the folder's order.
        weights: [m] float32 weight of each entry, or None.
    """

    positions: Int64Array
    first: Int64Array
    neighbors: IntArray
    weights: Array | None


class Hops(NamedTuple):
    """Arguments of `GraphStore.update_all`.

    Attributes:
        edge_type: index of the edge type.
        reduce: 'sum', 'mean', 'min' or 'max'.
        weight: edge attribute with weights, or None.
        norm: 'row', 'sym' or None.
        apply: function of the reduced rows and the nodes' own rows, or None.
        degrees: tensor of each node's sum of weights, for 'sym'.
    """

    edge_type: int
    reduce: str
    weight: str | None
    norm: str | None
    apply: Callable[[Tensor, Tensor], Tensor] | None
    degrees: GraphTensor | None = None

    def check(self, meta: FolderMeta, source: GraphTensor, out: GraphTensor, num_hops: int) -> None:
        """Raise an error unless tensors and arguments fit one another."""
        described = meta.edge_types[self.edge_type]
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
        if self.reduce not in ("sum", "mean", "min", "max"):
            raise ValueError(f"reduce must be 'sum', 'mean', 'min' or 'max' (got {self.reduce!r})")
        if self.norm not in (None, "sym", "row") or (self.norm and self.reduce != "sum"):
            raise ValueError(f"norm must be None, or 'sym' or 'row' of sums (got {self.norm!r})")
        if num_hops < 1:
            raise ValueError(f"hops must be 1 or more (got {num_hops})")
        if types[0] != types[1] and (num_hops > 1 or self.norm == "sym"):
            raise ValueError("several hops, or norm='sym', need edges within one node type")
        if num_hops > 1 and source.spec.shape != out.spec.shape:
            raise ValueError(f"several hops need rows of one shape: {source} and {out} differ")
        if self.weight is not None and self.weight not in described.attrs:
            raise KeyError(
                f"edges {described.name} have no attribute '{self.weight}': there are "
                f"{list(described.attrs)}"
            )


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
    if hops.degrees is not None:
        yield partial(write_degrees, client, hops)
    is_direct = source is not out or num_hops % 2 == 0
    for left in reversed(range(num_hops)):
        written = out if (left % 2 == 0) == is_direct else other
        yield partial(run_hop, client, hops, source, written, out)
        source = written
    if not is_direct:
        yield partial(copy_rows, client, source, out)


def write_degrees(client: StoreClient, hops: Hops) -> None:
    """Write the sum of weights of each row of this trainer's partitions."""
    assert hops.degrees is not None
    for block in _blocks(client, hops):
        hops.degrees.write_at(block.positions, _sums(block)).wait()


def copy_rows(client: StoreClient, source: GraphTensor, out: GraphTensor) -> None:
    """Copy the rows of this trainer's partitions from one tensor to another."""
    bounds = client.bounds_of(out.spec)
    for part in client.own_parts:
        for first in range(bounds[part], bounds[part + 1], _ROWS_AT_ONCE):
            positions = np.arange(first, min(first + _ROWS_AT_ONCE, bounds[part + 1]))
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
    for block in _blocks(client, hops):
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
    numbers = _native.NodeNumbers(len(source))
    local = numbers.number(block.neighbors.astype(np.int64, copy=False))
    positions = numbers.ids()
    values, weights = source.read_at(positions), block.weights
    if hops.degrees is not None:
        near = _inverse_root(hops.degrees.read_at(block.positions))
        far = _inverse_root(hops.degrees.read_at(positions))
        scale = far[local] * np.repeat(near, np.diff(block.first))
        weights = scale if weights is None else weights * scale
    out = np.empty((len(block.positions), math.prod(source.spec.shape)), np.float32)
    reduce = "sum" if hops.reduce == "mean" else hops.reduce
    flat = values.reshape(len(positions), out.shape[1])
    _native.aggregate(block.first, local, weights, flat, reduce, out)
    if hops.reduce == "mean" or hops.norm == "row":
        # A mean is over entries, as PyG's.
        sums = _sums(block if hops.norm == "row" else block._replace(weights=None))[:, None]
        np.divide(out, sums, out=out, where=sums != 0)
    return out.reshape(len(out), *source.spec.shape)


def _blocks(client: StoreClient, hops: Hops) -> Iterator[Block]:
    """Yield the rows of this trainer's partitions, some edges at a time."""
    for index in client.own_parts:
        part = client.part(index)
        indptr, neighbors = part.rows(hops.edge_type)
        low = part.meta.row_type(part.meta.edge_types[hops.edge_type]).bounds[index]
        begin, num_rows = 0, len(indptr) - 1
        while begin < num_rows:
            limit = int(indptr[begin]) + _EDGES_AT_ONCE
            end = int(np.searchsorted(indptr, limit, side="right")) - 1
            end = min(max(end, begin + 1), begin + _ROWS_AT_ONCE, num_rows)
            entries = slice(int(indptr[begin]), int(indptr[end]))
            weights = None
            if hops.weight is not None:
                stored = part.edge_feature(hops.edge_type, hops.weight)
                numbers = stored.gather(np.arange(entries.start, entries.stop))
                weights = to_tensor(numbers, stored.dtype).to(torch.float32).numpy()
            yield Block(
                np.arange(low + begin, low + end),
                indptr[begin : end + 1].astype(np.int64) - int(indptr[begin]),
                neighbors[entries],
                weights,
            )
            begin = end


def _sums(block: Block) -> Array:
    """Return the sum of weights of each row, [n] float32. Entries without weights count 1."""
    if block.weights is None:
        return np.diff(block.first).astype(np.float32)
    sums = np.zeros(len(block.positions), np.float32)
    rows = np.repeat(np.arange(len(sums)), np.diff(block.first))
    _native.scatter(sums, rows, block.weights, "add")
    return sums


def _inverse_root(degrees: Array) -> Array:
    """Return 1 / sqrt(degree), 0 for degrees that are not above 0."""
    out = np.zeros_like(degrees)
    np.divide(1, np.sqrt(degrees, where=degrees > 0, out=out.copy()), out=out, where=degrees > 0)
    return out
