"""Sizes that batches are padded to: the user's, or bounds that grow with the batches seen.

A *section* is a range of nodes or edges of one type that is padded at its end: the seeds, and each
hop. Without separable hops, a batch has one section per type. Runs in trainers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, stdev
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from khop.typing import EdgeType, NodeType, Pad

# Rows per section are multiples of this number, as matrix units of GPUs need them.
_MULTIPLE = 8

# The number of nodes of a hop has a relative standard deviation of 0.6 to 0.8 / sqrt(seeds) on
# power-law graphs. The first batch may be one deviation below the mean.
_DEVIATIONS = 3.0
_MOST_SLACK = 0.25

# With the deviation of so many batches known, one batch in about 10,000 is larger.
_LEAST_TRIALS = 8
_DEVIATIONS_KNOWN = 4.0

_LOCK = Lock()  # of all loaders: sizes change a few times


Counts: TypeAlias = tuple[list[list[int]], list[list[int]]]
"""Numbers of nodes, and of edges, of a batch: lists by type, of lists by section."""


class Sections(NamedTuple):
    """Sections of the nodes or edges of one type in one batch.

    Attributes:
        counts: number of drawn nodes or edges of each section.
        sizes: number of rows of each section, with padding.
    """

    counts: list[int]
    sizes: list[int]

    @property
    def num_rows(self) -> int:
        """Number of rows with padding."""
        return sum(self.sizes)

    @property
    def drawn(self) -> list[slice]:
        """Range of the drawn rows of each section."""
        ends = zip(accumulate(self.sizes, initial=0), self.counts, strict=False)
        return [slice(begin, begin + count) for begin, count in ends]

    @property
    def padding(self) -> list[slice]:
        """Range of the padding of each section."""
        ends = zip(accumulate(self.sizes, initial=0), self.counts, self.sizes, strict=False)
        return [slice(begin + count, begin + size) for begin, count, size in ends]

    def at(self, hop: int) -> int:
        """Return the section of nodes at `hop` edges from the seeds."""
        return min(hop, len(self.counts) - 1)


class Shape(NamedTuple):
    """Sections of a batch: an entry for each node type and for each edge type."""

    nodes: list[Sections]
    edges: list[Sections]


class Shapes:
    """Sizes of a loader's batches. Safe to use from several threads.

    Args:
        pad: the loader's argument `pad`.
        node_types, edge_types: types of batches.
        heterogeneous: False if batches are `Data`, whose sizes need no types.
        num_seeds: seeds per batch.
        seed_type: node type of the seeds, if a batch has at most `num_seeds` of them as its first
            nodes. Else None.

    Raises:
        TypeError, ValueError: `pad` is malformed.
    """

    def __init__(
        self,
        pad: Pad,
        node_types: Sequence[NodeType],
        edge_types: Sequence[EdgeType],
        heterogeneous: bool,
        num_seeds: int,
        seed_type: NodeType | None = None,
    ) -> None:
        self._types: tuple[list[Any], list[Any]] = list(node_types), list(edge_types)
        self._heterogeneous = heterogeneous
        self._seeds = None if seed_type is None else (self._types[0].index(seed_type), num_seeds)
        self._slack = min(_DEVIATIONS / math.sqrt(max(1, num_seeds)), _MOST_SLACK)
        self.is_auto = isinstance(pad, str) and pad == "auto"
        # For nodes and edges: total or sizes of the sections of each type. None before the first
        # batch with 'auto'.
        self._sizes: tuple[list[Any], list[Any]] | None = None
        if not self.is_auto:
            self._sizes = self._checked(pad)

    @property
    def sizes(self) -> dict[str, Any] | None:
        """The sizes in the form of the argument `pad`. None before the first batch with 'auto'."""
        if (known := self._sizes) is None:
            return None
        names = zip(("nodes", "edges"), self._types, known, strict=True)
        return {
            name: dict(zip(types, sizes, strict=True)) if self._heterogeneous else sizes[0]
            for name, types, sizes in names
        }

    def sections(self, num_hops: int) -> Counts | None:
        """Return the size of each section, if they do not depend on the batch. Else None.

        A total does: it pads the last section. So do sizes that are not known yet, or are for
        another number of hops.
        """
        known = self._sizes
        if known is None:
            return None
        for sizes, count in zip(known, (num_hops + 1, num_hops), strict=True):
            if any(isinstance(of, int) or len(of) != count for of in sizes):
                return None
        return known

    def begin(self, trials: Sequence[Counts]) -> None:
        """Choose sizes for batches like `trials`. With fewer than 8 trials, do nothing."""
        if len(trials) >= _LEAST_TRIALS:
            with _LOCK:
                self._sizes = self._chosen(trials, None)

    def fit(self, nodes: list[list[int]], edges: list[list[int]]) -> Shape:
        """Return the sections of a batch with these counts of nodes and edges per type and hop.

        Raises:
            ValueError: the user's sizes are too small for the batch.
        """
        counts = nodes, edges
        if not self.is_auto:
            return self._fixed(counts)
        with _LOCK:
            sizes = self._sizes
            if sizes is None or not _fits(counts, sizes):
                self._sizes = sizes = self._chosen([counts], sizes)
        made = [list(map(Sections, c, s)) for c, s in zip(counts, sizes, strict=True)]
        return Shape(*made)

    def _chosen(
        self, samples: Sequence[Counts], before: tuple[list[Any], list[Any]] | None
    ) -> Counts:
        """Return sizes for batches like `samples`, no smaller than the sizes before."""
        slack = self._slack if before is None else self._slack / 2
        nodes, edges = (
            [
                _bounds([*zip(*hops, strict=True)], slack)
                for hops in zip(*(sample[unit] for sample in samples), strict=True)
            ]
            for unit in (0, 1)
        )
        if self._seeds is not None and len(nodes[(at := self._seeds[0])]) > 1:
            nodes[at][0] = _rounded(self._seeds[1])
        if before is None:
            return nodes, edges
        larger = (
            [[*map(max, *pair)] for pair in zip(new, old, strict=True)]
            for new, old in zip((nodes, edges), before, strict=True)
        )
        nodes, edges = larger
        return nodes, edges

    def _fixed(self, counts: tuple[list[list[int]], list[list[int]]]) -> Shape:
        """Return the sections of a batch in the user's sizes, after a check that they suffice."""
        assert self._sizes is not None
        made: list[list[Sections]] = []
        for of_nodes, types, drawn, sizes in zip(
            (True, False), self._types, counts, self._sizes, strict=True
        ):
            made.append([])
            for owner, hops, size in zip(types, drawn, sizes, strict=True):
                made[-1].append(Sections(hops, _by_section(size, hops, int(of_nodes))))
                self._check(made[-1][-1], owner, of_nodes)
        shape = Shape(*made)
        for edge_type, sections in zip(self._types[1], shape.edges, strict=True):
            self._check_ends(edge_type, sections, shape.nodes)
        return shape

    def _check(self, sections: Sections, owner: Any, of_nodes: bool) -> None:
        counts, sizes = sections
        unit, whose = ("nodes" if of_nodes else "edges"), ""
        if self._heterogeneous:
            whose = f" of {owner!r}"
        if len(counts) != len(sizes):
            raise ValueError(
                f"pad has {len(sizes)} sizes of {unit}{whose}, but batches have {len(counts)} "
                f"sections ({'seeds, then hops' if of_nodes else 'hops'}): pass one size for each, "
                "or a total"
            )
        if any(n > size for n, size in zip(counts, sizes, strict=True)):
            raise ValueError(
                f"a batch has {counts} {unit}{whose} (by hop), more than pad's {sizes}: pass "
                "larger sizes, or pad='auto'"
            )

    def _check_ends(self, edge_type: EdgeType, edges: Sections, nodes: list[Sections]) -> None:
        """Raise ValueError if padded edges have no padded node to lead from or to."""
        for hop, padding in enumerate(edges.padding):
            if padding.start == padding.stop:
                continue
            for node_type, distance in ((edge_type[0], hop + 1), (edge_type[2], hop)):
                of = nodes[self._types[0].index(node_type)]
                if of.sizes[(at := of.at(distance))] == of.counts[at]:
                    whose = f" of '{node_type}'" if self._heterogeneous else ""
                    raise ValueError(
                        f"a batch has {of.counts} nodes{whose} (by hop), and pad's sizes are "
                        f"{of.sizes}: padded edges need a padded node in section {at}. Pass one "
                        "more than the most nodes of a batch"
                    )

    def _checked(self, pad: Any) -> tuple[list[Any], list[Any]]:
        if not isinstance(pad, Mapping) or set(pad) != {"nodes", "edges"}:
            raise ValueError(
                "pad must be 'auto' or {'nodes': sizes, 'edges': sizes}, with a total, or a size "
                f"for each hop (got {pad!r})"
            )
        nodes, edges = (
            self._of_types(pad[name], f"pad['{name}']", types)
            for name, types in zip(("nodes", "edges"), self._types, strict=True)
        )
        return nodes, edges

    def _of_types(self, sizes: Any, name: str, types: list[Any]) -> list[Any]:
        if not self._heterogeneous:
            return [_checked_size(sizes, name)]
        if not isinstance(sizes, Mapping) or set(sizes) != set(types):
            raise ValueError(f"{name} must have an entry for each of {types} (got {sizes!r})")
        return [_checked_size(sizes[t], f"{name}[{t!r}]") for t in types]


def _bounds(hops: Sequence[Sequence[int]], slack: float) -> list[int]:
    """Return the size of each section of a type, for the counts in some batches.

    It is 0 for a type that these batches do not have, and may not exist in the graph.
    """
    if not any(map(any, hops)):
        return [0] * len(hops)
    return [_bound(counts, slack) for counts in hops]


def _bound(counts: Sequence[int], slack: float) -> int:
    """Return the size of a section, for its counts in some batches."""
    most = max(counts)
    if len(counts) >= _LEAST_TRIALS:
        return _rounded(max(most, math.ceil(fmean(counts) + _DEVIATIONS_KNOWN * stdev(counts))))
    return _rounded(most + math.ceil(most * slack + 2 * math.sqrt(most)))


def _rounded(count: int) -> int:
    """Return the least multiple of `_MULTIPLE` above a count: a row of padding is left."""
    return -(-(count + 1) // _MULTIPLE) * _MULTIPLE


def _by_section(size: int | list[int], counts: list[int], least: int) -> list[int]:
    """Return the sizes of sections. A total pads the last, and others by `least` rows."""
    if isinstance(size, list):
        return size
    before = [n + least for n in counts[:-1]] if size else [0] * (len(counts) - 1)
    return [*before, size - sum(before)]


def _fits(counts: tuple[list[list[int]], ...], sizes: tuple[list[Any], ...]) -> bool:
    """Return True if each section has room for its count, and for one row of padding."""
    return all(
        n < size or n == size == 0
        for of, limits in zip(counts, sizes, strict=True)
        for hops, limit in zip(of, limits, strict=True)
        for n, size in zip(hops, limit, strict=True)
    )


def _checked_size(size: Any, name: str) -> int | list[int]:
    try:
        if isinstance(size, Sequence) and not isinstance(size, str):
            checked: int | list[int] = [operator.index(n) for n in size]
        else:
            checked = operator.index(size)
    except TypeError:
        raise TypeError(f"{name} must be an integer or integers (got {size!r})") from None
    if min(checked if isinstance(checked, list) else [checked], default=0) < 0:
        raise ValueError(f"{name} must not be negative (got {size!r})")
    return checked
