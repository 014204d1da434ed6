"""Synthetic graphs of any size with heavy-tailed degrees, made block by block.

`PowerLaw` is a Chung-Lu model [1]: both ends of every edge are drawn independently, each node with
a probability proportional to its weight, its expected degree. The weights follow a Pareto
distribution of the second kind (Lomax), truncated at a maximum: many nodes of few edges, a tail
that falls as degree^-exponent, and a largest degree that can be chosen.

No array of the graph's size is needed. Nodes are ranked by weight. The ranks are cut into a few
hundred classes of one weight each, geometrically finer towards the heavy end. An end of an edge is
drawn in three steps: a class (a search in a small table), a rank within the class (a division), and
the node at this rank in a keyed permutation. The counter of the random number generator, Philox, is
the index of a block of edges, so each block is made independently of the others.

The graph is the same on every machine. All operations are on integers, or rounded exactly by IEEE
754. Weights are computed with `decimal`, because powers and logarithms of C libraries and vector
units differ in their last bits.

[1] F. Chung and L. Lu, "Connected components in random graphs with given expected degree
sequences", Annals of Combinatorics 6, 2002.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from decimal import Context, Decimal, localcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data

from khop.storage.folder import npy_header
from khop.typing import Int64Array, UInt64Array

_MAX_NODES = 2**40  # the sum of the weights stays below 2^53, exact as a float64
_MEAN_WEIGHT = 2**12  # weights are integers: low enough for this sum, high enough for light nodes
_PAIRS_PER_BLOCK = 2**15
_NODES_PER_BLOCK = 2**12
_STREAM_EDGES, _STREAM_ORDER, _STREAM_X, _STREAM_Y, _STREAM_TRAIN = range(5)


@dataclass(frozen=True)
class PowerLaw:
    """A random graph whose degrees have a heavy tail. Equal arguments make equal graphs.

    Expected in- and out-degree of a node are the same. With the default exponent the median degree
    is 0.44 of the mean. There are no self loops. Parallel edges are rare: with the default maximum
    there are about 5 between the two heaviest nodes. At a mean of 50, 3 % of nodes have no edge.

    Args:
        num_nodes: number of nodes, 2 to 2^40.
        num_edges: exact number of edges. Must be even with `undirected`, where each direction
            counts.
        undirected: every edge comes with its reverse, as edges 2i and 2i+1. Default: false.
        exponent: of the tail of the degree distribution, above 2. Default: 3.13.
        max_degree: expected in-degree of the heaviest node, at least 2.5 times the mean. If None,
            the square root of 5 * `num_edges`, but at least 4 times the mean: the share of parallel
            edges is the same at any size.
        num_features: width of `x`, with values uniform in [-1, 1). Default: 0, no features.
        num_classes: labels are uniform in 0 ... `num_classes` - 1. Default: 0, no labels.
        train_fraction: probability of a node to be in `train_mask`. Default: 0.08.
        seed: 0 to 2^64 - 1. Default: 0.

    Raises:
        ValueError: an argument out of its range.

    Example:
        >>> graph = PowerLaw(1000, 20000, undirected=True, num_features=16)
        >>> graph.data()
        Data(edge_index=[2, 20000], num_nodes=1000, x=[1000, 16], train_mask=[1000])
    """

    num_nodes: int
    num_edges: int
    _: KW_ONLY
    undirected: bool = False
    exponent: float = 3.13
    max_degree: int | None = None
    num_features: int = 0
    num_classes: int = 0
    train_fraction: float = 0.08
    seed: int = 0

    def __post_init__(self) -> None:
        _require(2 <= self.num_nodes <= _MAX_NODES, "num_nodes", "in 2 ... 2^40", self.num_nodes)
        _require(self.num_edges >= 0, "num_edges", "0 or more", self.num_edges)
        even = not self.undirected or self.num_edges % 2 == 0
        _require(even, "num_edges", "even in an undirected graph", self.num_edges)
        _require(2 < self.exponent < math.inf, "exponent", "above 2", self.exponent)
        high = self.max_degree is None or 2 * self.max_degree * self.num_nodes >= 5 * self.num_edges
        _require(high, "max_degree", "at least 2.5 times the mean degree", self.max_degree)
        _require(self.num_features >= 0, "num_features", "0 or more", self.num_features)
        _require(self.num_classes >= 0, "num_classes", "0 or more", self.num_classes)
        fraction = self.train_fraction
        _require(0 <= fraction <= 1, "train_fraction", "in 0 ... 1", fraction)
        _require(0 <= self.seed < 2**64, "seed", "in 0 ... 2^64 - 1", self.seed)

    @classmethod
    def products(
        cls, scale: float = 1.0, *, num_features: int = 100, num_classes: int = 47, seed: int = 0
    ) -> PowerLaw:
        """Create an undirected graph with the size of ogbn-products and similar degrees.

        At scale 1 it has 2,449,029 nodes and 123,718,280 edges, a mean degree of 50.5, a median of
        22 and a maximum of about 25,000. Scale multiplies nodes and edges. Mean and median stay the
        same, and the maximum is proportional to the square root of `scale`.
        """
        return cls(
            num_nodes=round(2_449_029 * scale),
            num_edges=2 * round(61_859_140 * scale),
            undirected=True,
            num_features=num_features,
            num_classes=num_classes,
            seed=seed,
        )

    def iter_edges(self, chunk_size: int = 2**18) -> Iterator[Int64Array]:
        """Yield the edges in order, in arrays int64 [2, chunk_size] (the last may be smaller).

        The edges do not depend on the size of the chunks.

        Raises:
            ValueError: `chunk_size` below 1.
        """
        _require(chunk_size >= 1, "chunk_size", "1 or more", chunk_size)
        num_blocks = -(-self._num_pairs // _PAIRS_PER_BLOCK)
        return _regroup(map(self._edge_block, range(num_blocks)), self.num_edges, chunk_size)

    def write(self, directory: str | Path) -> None:
        """Write the graph as `.npy` files, with a few blocks of it in memory at a time.

        `edge_index.npy` is [2, num_edges], int32 if the ids fit, else int64. `train_mask.npy` is
        bool [num_nodes]. With features there is `x.npy` float32 [num_nodes, num_features], with
        classes `y.npy` int64 [num_nodes]. The folder is complete or absent.

        Args:
            directory: folder to write, which must be absent or empty.

        Raises:
            FileExistsError: the folder is not empty.
        """
        with complete_folder(Path(directory)) as unfinished:
            self._write_edges(unfinished / "edge_index.npy")
            for name, (shape, dtype) in self._node_shapes().items():
                with (unfinished / f"{name}.npy").open("wb") as file:
                    file.write(npy_header(np.dtype(dtype), shape))
                    for block in range(self._num_node_blocks):
                        file.write(self._node_block(name, block).data)

    def data(self) -> Data:
        """Return the graph as PyG data, in memory: 16 bytes per edge, and the nodes' tensors.

        Returns:
            `edge_index` int64 [2, num_edges], `train_mask` bool [num_nodes], and, with features or
            classes, `x` float32 [num_nodes, num_features] or `y` int64 [num_nodes].
        """
        edge_index = np.empty((2, self.num_edges), np.int64)
        start = 0
        for chunk in self.iter_edges():
            edge_index[:, start : start + chunk.shape[1]] = chunk
            start += chunk.shape[1]
        data = Data(edge_index=torch.from_numpy(edge_index), num_nodes=self.num_nodes)
        for name, (shape, dtype) in self._node_shapes().items():
            values = np.empty(shape, dtype)
            for block in range(self._num_node_blocks):
                first = block * _NODES_PER_BLOCK
                values[first : first + _NODES_PER_BLOCK] = self._node_block(name, block)
            data[name] = torch.from_numpy(values)
        return data

    @property
    def _num_pairs(self) -> int:
        return self.num_edges // 2 if self.undirected else self.num_edges

    @property
    def _num_node_blocks(self) -> int:
        return -(-self.num_nodes // _NODES_PER_BLOCK)

    def _edge_block(self, block: int) -> Int64Array:
        """Return the edges of block number `block`, int64 [2, m]."""
        num_pairs = min(_PAIRS_PER_BLOCK, self._num_pairs - block * _PAIRS_PER_BLOCK)
        raw = _random_bits(self.seed, _STREAM_EDGES, block, 2 * num_pairs)
        ends = self._permutation(self._classes.draw_rank(raw)).reshape(num_pairs, 2)
        first, second = ends[:, 0], ends[:, 1]
        second += first == second
        second[second == self.num_nodes] = 0
        if not self.undirected:
            return np.ascontiguousarray(ends.T)
        both_ways = np.stack([ends, ends[:, ::-1]], axis=1)
        return np.ascontiguousarray(both_ways.reshape(2 * num_pairs, 2).T)

    def _write_edges(self, path: Path) -> None:
        """Write all edges to an .npy file of [2, num_edges], chunk by chunk."""
        dtype = np.dtype(np.int32 if self.num_nodes <= 2**31 else np.int64)
        with path.open("wb") as file:
            start = file.write(npy_header(dtype, (2, self.num_edges)))
            row_bytes = self.num_edges * dtype.itemsize
            for chunk in self.iter_edges():
                # Plain writes: the pages of a mapped file would count as this process's memory.
                for row, values in enumerate(np.ascontiguousarray(chunk, dtype)):
                    file.seek(start + row * row_bytes)
                    file.write(values.data)
                start += values.nbytes

    def _node_shapes(self) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
        """Return {attribute: (shape, dtype)} of the nodes' attributes."""
        shapes: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {}
        if self.num_features:
            shapes["x"] = (self.num_nodes, self.num_features), np.float32
        if self.num_classes:
            shapes["y"] = (self.num_nodes,), np.int64
        shapes["train_mask"] = (self.num_nodes,), np.bool_
        return shapes

    def _node_block(self, name: str, block: int) -> npt.NDArray[Any]:
        """Return attribute `name`, 'x', 'y' or 'train_mask', of the nodes of a block."""
        num_nodes = min(_NODES_PER_BLOCK, self.num_nodes - block * _NODES_PER_BLOCK)
        if name == "x":
            count = num_nodes * self.num_features
            raw = _random_bits(self.seed, _STREAM_X, block, -(-count // 2))
            halves = raw.astype("<u8").view("<u4")[:count]
            x: npt.NDArray[np.float32] = (halves >> 8).astype(np.float32) * np.float32(
                2**-23
            ) - np.float32(1)
            return x.reshape(num_nodes, self.num_features)
        if name == "y":
            raw = _random_bits(self.seed, _STREAM_Y, block, num_nodes)
            return _below(raw, self.num_classes)
        return _unit(_random_bits(self.seed, _STREAM_TRAIN, block, num_nodes)) < self.train_fraction

    @functools.cached_property
    def _classes(self) -> _WeightClasses:
        return _weight_classes(self.num_nodes, self.num_edges, self.exponent, self.max_degree)

    @functools.cached_property
    def _permutation(self) -> _Permutation:
        return _Permutation(self.num_nodes, self.seed)


class _WeightClasses(NamedTuple):
    """Classes of nodes of equal weight (expected degree), heaviest first.

    Nodes are identified by rank, their position in the order of weights.

    Attributes:
        rank: int64 [C + 1] first rank of each class, and at the end the number of nodes.
        weight: int64 [C] weight of each node of a class, 1 or more.
        total: int64 [C + 1] weight of all earlier classes, and at the end of all classes.
    """

    rank: Int64Array
    weight: Int64Array
    total: Int64Array

    def draw_rank(self, raw: UInt64Array) -> Int64Array:
        """Convert random bits, uint64 [n], to random ranks, int64 [n], in proportion to weights."""
        position = _below(raw, int(self.total[-1]))
        of = np.searchsorted(self.total[1:], position, side="right")
        rank: Int64Array = self.rank[of] + (position - self.total[of]) // self.weight[of]
        return rank


def _weight_classes(
    num_nodes: int, num_edges: int, exponent: float, max_degree: int | None = None
) -> _WeightClasses:
    """Fit a truncated Lomax distribution of weights, in multiples of the mean degree.

    P(weight > w) falls as (1 + w / scale)^(1 - exponent), up to `ratio`, the heaviest node's
    weight. The node at share q of the ranks, heaviest first, has the weight
    scale * (v^(1 / (1 - exponent)) - 1). Here v = low + (1 - low) * q, and
    low = (1 + ratio / scale)^(1 - exponent). Bisection finds the scale with a mean weight of 1.
    """
    mean = Decimal(max(num_edges, 1)) / num_nodes
    if max_degree is None:
        ratio = max(math.isqrt(5 * num_edges) / mean, Decimal(4))
    else:
        ratio = max(max_degree / mean, Decimal("2.5"))
    bounds = [0]
    while bounds[-1] < num_nodes:
        bounds.append(min(bounds[-1] + 1 + bounds[-1] // 32, num_nodes))
    sizes = [end - start for start, end in pairwise(bounds)]

    with localcontext(Context(prec=12)):
        middles = [Decimal(first + end - 1) / (2 * num_nodes) for first, end in pairwise(bounds)]
        tail = 1 - Decimal(exponent)

        def weights(scale: Decimal) -> list[Decimal]:
            low = (tail * (1 + ratio / scale).ln()).exp()
            # ln and exp are rounded exactly by every implementation of decimal, powers are not.
            powers = (((low + (1 - low) * q).ln() / tail).exp() for q in middles)
            return [scale * (power - 1) for power in powers]

        smallest, largest = Decimal("1e-6"), Decimal("1e6")
        for _ in range(24):
            scale = (smallest * largest).sqrt()
            total = sum(n * w for n, w in zip(sizes, weights(scale), strict=True))
            smallest, largest = (scale, largest) if total < num_nodes else (smallest, scale)
        weight = [max(1, int(w * _MEAN_WEIGHT)) for w in weights(smallest)]

    total_before = np.concatenate([[0], np.cumsum(np.multiply(sizes, weight, dtype=np.int64))])
    return _WeightClasses(np.array(bounds, np.int64), np.array(weight, np.int64), total_before)


class _Permutation:
    """A keyed permutation of 0 ... size - 1 without a table.

    It consists of rounds of invertible steps, on integers of just enough bits for `size`. A result
    that is too large is permuted again (cycle walking), until it is below `size`.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        bits = (size - 1).bit_length()
        self.mask = np.uint64(2**bits - 1)
        self.shift = np.uint64((bits + 1) // 2)
        constants = _random_bits(seed, _STREAM_ORDER, 0, 6)
        self.rounds = list(zip(constants[:3] | np.uint64(1), constants[3:], strict=True))

    def __call__(self, values: Int64Array) -> Int64Array:
        """Return the permuted values, int64 [n]."""
        state = self._step(values.astype(np.uint64))
        walking = np.flatnonzero(state >= self.size)
        while len(walking):
            state[walking] = self._step(state[walking])
            walking = walking[state[walking] >= self.size]
        return state.astype(np.int64)

    def _step(self, state: UInt64Array) -> UInt64Array:
        for factor, summand in self.rounds:
            state = (state * factor + summand) & self.mask
            state ^= state >> self.shift
        return state


def _random_bits(seed: int, stream: int, block: int, count: int) -> UInt64Array:
    """Return [count] random uint64 of a block and stream, the same in all versions of NumPy."""
    key = np.array([seed, stream], np.uint64)
    # The generator counts in the first word, of which a block uses far less than 2^64.
    generator = np.random.Philox(counter=np.array([0, block, 0, 0], np.uint64), key=key)
    raw: UInt64Array = generator.random_raw(count)
    return raw


def _unit(raw: UInt64Array) -> npt.NDArray[np.float64]:
    """Convert random bits to float64 in [0, 1), multiples of 2^-53."""
    unit: npt.NDArray[np.float64] = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return unit


def _below(raw: UInt64Array, bound: int) -> Int64Array:
    """Convert random bits to int64 in 0 ... bound - 1, for a bound below 2^53."""
    return np.minimum((_unit(raw) * bound).astype(np.int64), bound - 1)


def _regroup(blocks: Iterable[Int64Array], total: int, chunk_size: int) -> Iterator[Int64Array]:
    """Yield the columns of blocks [2, m], `total` in all, as chunks [2, chunk_size]."""
    chunk = np.empty((2, min(chunk_size, total)), np.int64)
    filled = 0
    for block in blocks:
        taken = 0
        while taken < block.shape[1]:
            count = min(chunk.shape[1] - filled, block.shape[1] - taken)
            chunk[:, filled : filled + count] = block[:, taken : taken + count]
            filled, taken = filled + count, taken + count
            if filled == chunk.shape[1]:
                yield chunk
                total -= filled
                chunk, filled = np.empty((2, min(chunk_size, total)), np.int64), 0


@contextlib.contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Context that yields a new folder to fill. It is renamed to `path` when the context ends.

    Raises:
        FileExistsError: `path` is not empty.
    """
    if path.exists() and any(path.iterdir()):
        raise FileExistsError(f"'{path}' is not empty; remove it or choose another name")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _require(condition: bool, name: str, allowed: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{name} must be {allowed} (got {value})")
