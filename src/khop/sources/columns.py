"""Edges, attributes, labels and masks, made of the arrays that the readers of layouts find.

Any process; imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from khop.data import Feature, RowStore
from khop.data.files import check_regular, mapped_file
from khop.data.joined import JoinedFeature
from khop.partition.source import EdgeSource
from khop.sources.scratch import Scratch
from khop.typing import Array, EdgeType, IntArray

# Values looked at, or made, at a time.
_STEP = 1 << 20


class JoinedEdges(EdgeSource):
    """Edges of several lists, one after the other; nothing is copied.

    Args:
        lists: the lists; one or more.
        attrs: attributes, a row for each edge of all lists.
    """

    def __init__(self, lists: Sequence[EdgeSource], attrs: dict[str, RowStore]) -> None:
        self.lists, self.attrs, self.left_out = lists, attrs, {}
        self._bounds = np.cumsum([0, *(edges.num_edges for edges in lists)])

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return int(self._bounds[-1])

    @property
    def src(self) -> IntArray:  # type: ignore[override]
        """All sources, in memory."""
        return np.concatenate([edges.src for edges in self.lists])

    @property
    def dst(self) -> IntArray:  # type: ignore[override]
        """All destinations, in memory."""
        return np.concatenate([edges.dst for edges in self.lists])

    def piece(self, first: int, count: int) -> tuple[IntArray, IntArray]:
        """Return ends of `count` edges from `first` on; see `EdgeSource.piece`."""
        last, bounds = first + count, self._bounds
        found: list[tuple[IntArray, IntArray]]
        found = [(np.empty(0, np.int64), np.empty(0, np.int64))] if count == 0 else []
        i = int(np.searchsorted(bounds, first, "right")) - 1
        while first < last:
            end = min(last, int(bounds[i + 1]))
            if first < end:
                found.append(self.lists[i].piece(first - int(bounds[i]), end - first))
            first, i = end, i + 1
        if len(found) == 1:
            return found[0]
        src, dst = (np.concatenate(ends) for ends in zip(*found, strict=True))
        return src, dst

    def check(self, what: str) -> None:
        """Raise ValueError unless each list has as many sources as destinations."""
        for edges in self.lists:
            edges.check(what)

    def content(self) -> tuple[Array, ...]:
        """Return arrays that tell these edges from others."""
        return tuple(array for edges in self.lists for array in edges.content())

    def endpoints(self) -> tuple[IntArray, IntArray]:
        """Return all sources and destinations, in memory."""
        return self.piece(0, self.num_edges)


def edges_of(pair: Array, what: str, by_rows: bool | None = None) -> EdgeSource:
    """Return the edges of an array.

    Args:
        pair: [2, E] or [E, 2] integers.
        what: what it is called in errors.
        by_rows: True for [E, 2], False for [2, E]. If None, as its shape says; [2, 2] is [2, E].

    Raises:
        TypeError: no integers.
        ValueError: another shape.
    """
    if pair.ndim != 2 or 2 not in pair.shape:
        raise ValueError(f"{what} must have shape [2, E] or [E, 2] (got {list(pair.shape)})")
    if by_rows or (by_rows is None and pair.shape[0] != 2):
        pair = pair.T
    if pair.shape[0] != 2:
        raise ValueError(f"{what} must have shape [2, E] (got {list(pair.shape)})")
    return EdgeSource(ids_of(pair[0], what), ids_of(pair[1], what))


def joined_edges(pairs: Mapping[str, Array]) -> EdgeSource:
    """Return the edges of several arrays, [2, E] or [E, 2] all of them.

    Args:
        pairs: what each is called in errors -> its values.
    """
    by_rows = any(pair.ndim == 2 and pair.shape[0] != 2 for pair in pairs.values())
    lists = [edges_of(pair, what, by_rows) for what, pair in pairs.items()]
    return lists[0] if len(lists) == 1 else JoinedEdges(lists, {})


def reversed_edges(edges: EdgeSource, attrs: dict[str, RowStore]) -> EdgeSource:
    """Return edges from destination to source, one for each; nothing is copied."""
    if isinstance(edges, JoinedEdges):
        return JoinedEdges([reversed_edges(one, {}) for one in edges.lists], attrs)
    return EdgeSource(edges.dst, edges.src, attrs)


def edge_type_of(name: str, separator: str, what: str) -> EdgeType:
    """Return the edge type whose three names a separator joins; `what` is named in errors."""
    names = name.split(separator)
    if len(names) != 3:
        wanted = separator.join(("SOURCE", "RELATION", "DESTINATION"))
        raise ValueError(f"{what}: '{name[:80]}' is no edge type {wanted}")
    return names[0], names[1], names[2]


def ids_of(values: Array, what: str) -> IntArray:
    """Return values that are ids of nodes; raise TypeError unless they are integers."""
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"{what} must hold integer node ids (got dtype '{values.dtype}'): ids run from 0, "
            "and none may be missing"
        )
    return values


def attribute(values: Array, what: str) -> RowStore:
    """Return an attribute, a row for each node or edge.

    Raises:
        TypeError: it has no rows, or a dtype that khop does not store.
        ValueError: a mapped file is stored by columns, so that no row lies in one place.
    """
    if values.ndim > 1 and not values.flags.c_contiguous and mapped_file(values) is not None:
        raise ValueError(
            f"{what} is stored by columns (Fortran's order): save numpy.ascontiguousarray of it"
        )
    try:
        return Feature(values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} cannot be an attribute: {error}") from None


def joined_attribute(pieces: Mapping[str, Array]) -> RowStore:
    """Return an attribute that lies in several arrays: what each is called -> its rows."""
    features = [attribute(values, what) for what, values in pieces.items()]
    if len(features) == 1:
        return features[0]
    try:
        return JoinedFeature(features)
    except ValueError as error:
        raise ValueError(f"{next(iter(pieces))} and those after it: {error}") from None


def count_nodes(edges: EdgeSource) -> int:
    """Return the largest id and one, of edges that are read piece by piece."""
    count = 0
    for first in range(0, edges.num_edges, _STEP):
        for ids in edges.piece(first, min(_STEP, edges.num_edges - first)):
            count = max(count, 1 + int(ids.max()))
        edges.release()
    return count


def flat_labels(values: Array, key: object, scratch: Scratch) -> Array:
    """Return labels as training takes them.

    [N, 1] become [N]; whole numbers int64; with NaN, for nodes without a label, or fractions,
    float32.

    Args:
        values: [N] or [N, ...] labels.
        key: names them in `scratch`.
        scratch: where labels of another dtype are written anew.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values.reshape(-1)
    steps = range(0, len(values), _STEP)
    pieces = (values[first : first + _STEP] for first in steps)
    whole = values.dtype.kind in "iub" or all(np.array_equal(p, np.trunc(p)) for p in pieces)
    wanted = np.dtype(np.int64 if whole else np.float32)
    if values.dtype == wanted or len(values) == 0:
        return values.astype(wanted, copy=False)
    made = scratch.table(
        ["labels", key],
        lambda: ({"y": values[first : first + _STEP].astype(wanted)} for first in steps),
    )
    return made["y"]


def mask_of(ids: IntArray, count: int, key: object, scratch: Scratch, what: str) -> Array:
    """Return a mask of nodes.

    Args:
        ids: [n] ids of the nodes that are in.
        count: number of nodes.
        key: names it in `scratch`.
        scratch: where it is written.
        what: what the ids are called in errors.

    Returns:
        [count] bool.

    Raises:
        IndexError: a node does not exist.
    """
    ids = np.sort(ids_of(ids.reshape(-1), what))
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= count):
        raise IndexError(f"{what} names node {ids[0]} or {ids[-1]}, which is not one of {count}")

    def pieces() -> Iterator[dict[str, Array]]:
        for first in range(0, count, _STEP):
            last = min(count, first + _STEP)
            mask = np.zeros(last - first, bool)
            mask[ids[np.searchsorted(ids, first) : np.searchsorted(ids, last)] - first] = True
            yield {"mask": mask}

    return scratch.table(["mask", key], pieces)["mask"] if count else np.zeros(0, bool)


def mask_between(first: int, last: int, count: int, scratch: Scratch) -> Array:
    """Return a mask of the nodes from `first` to before `last`: [count] bool."""

    def pieces() -> Iterator[dict[str, Array]]:
        for begin in range(0, count, _STEP):
            nodes = np.arange(begin, min(count, begin + _STEP))
            yield {"mask": (nodes >= first) & (nodes < last)}

    key = ["mask between", first, last, count]
    return scratch.table(key, pieces)["mask"] if count else np.zeros(0, bool)


def shards(files: Sequence[Path]) -> list[Path]:
    """Return files of one list in their order: numbers in names count as numbers.

    Raises:
        ValueError: of files NAME-00000-of-00004 one is missing.
    """
    files = sorted((check_regular(file) for file in files), key=_natural)
    totals = {m[1] for m in (re.search(r"-of-0*(\d+)", file.name) for file in files) if m}
    if totals and totals != {str(len(files))}:
        raise ValueError(
            f"'{files[0].parent}' holds {len(files)} of the {' or '.join(sorted(totals))} files "
            f"that '{files[0].name}' is one of"
        )
    return files


def _natural(file: Path) -> list[tuple[int, str]]:
    pieces = re.split(r"(\d+)", file.name)
    return [(int(text), "") if text.isdecimal() else (-1, text) for text in pieces]
