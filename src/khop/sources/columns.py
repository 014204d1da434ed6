"""Functions that make edges, attributes, labels and masks of arrays from files. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from khop.data import Feature, RowStore
from khop.data.files import check_regular, load_npy, mapped_file
from khop.data.joined import JoinedFeature
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.sources.scratch import Scratch, identity
from khop.typing import EDGE, NODE, Array, EdgeType, IntArray, NodeType

# Values that are checked, or made, at a time.
_STEP = 1 << 20


class JoinedEdges(EdgeSource):
    """Several lists of edges as one list, without a copy.

    Args:
        lists: the lists, at least one.
        attrs: attributes, with one row per edge of all lists.
    """

    def __init__(self, lists: Sequence[EdgeSource], attrs: dict[str, RowStore]) -> None:
        self.lists, self.attrs, self.left_out = lists, attrs, {}
        self._bounds = np.cumsum([0, *(edges.num_edges for edges in lists)])

    @property
    def num_edges(self) -> int:
        """Number of edges in all lists."""
        return int(self._bounds[-1])

    @property
    def src(self) -> IntArray:  # type: ignore[override]
        """Sources of all edges, [num_edges], as one array in memory."""
        return np.concatenate([edges.src for edges in self.lists])

    @property
    def dst(self) -> IntArray:  # type: ignore[override]
        """Destinations of all edges, [num_edges], as one array in memory."""
        return np.concatenate([edges.dst for edges in self.lists])

    def piece(self, first: int, count: int) -> tuple[IntArray, IntArray]:
        """Return the sources and destinations of `count` edges, from index `first` on."""
        last, bounds = first + count, self._bounds
        pieces: list[tuple[IntArray, IntArray]]
        pieces = [(np.empty(0, np.int64), np.empty(0, np.int64))] if count == 0 else []
        i = int(np.searchsorted(bounds, first, "right")) - 1
        while first < last:
            end = min(last, int(bounds[i + 1]))
            if first < end:
                pieces.append(self.lists[i].piece(first - int(bounds[i]), end - first))
            first, i = end, i + 1
        if len(pieces) == 1:
            return pieces[0]
        src, dst = (np.concatenate(ends) for ends in zip(*pieces, strict=True))
        return src, dst

    def check(self, title: str) -> None:
        """Raise ValueError, which names `title`, if sources and destinations differ in number."""
        for edges in self.lists:
            edges.check(title)

    def content(self) -> tuple[Array, ...]:
        """Return the arrays by whose content, or file, a resumed run recognises the same edges."""
        return tuple(array for edges in self.lists for array in edges.content())

    def endpoints(self) -> tuple[IntArray, IntArray]:
        """Return sources and destinations of all edges, [num_edges], in memory."""
        return self.piece(0, self.num_edges)


def edges_of(pair: Array, title: str, by_rows: bool | None = None) -> EdgeSource:
    """Make edges of one array of pairs.

    Args:
        pair: [2, E] or [E, 2] integers.
        title: name of the array in errors.
        by_rows: True for [E, 2], False for [2, E]. If None, the shape decides ([2, 2] is [2, E]).

    Raises:
        TypeError: the array does not hold integers.
        ValueError: the array has another shape.
    """
    if pair.ndim != 2 or 2 not in pair.shape:
        raise ValueError(f"{title} must have shape [2, E] or [E, 2] (got {list(pair.shape)})")
    if by_rows or (by_rows is None and pair.shape[0] != 2):
        pair = pair.T
    if pair.shape[0] != 2:
        raise ValueError(f"{title} must have shape [2, E] (got {list(pair.shape)})")
    return EdgeSource(ids_of(pair[0], title), ids_of(pair[1], title))


def joined_edges(pairs: Mapping[str, Array]) -> EdgeSource:
    """Make one list of edges of several arrays, which are all [2, E] or all [E, 2].

    `pairs` has the arrays by their names in errors.
    """
    by_rows = any(pair.ndim == 2 and pair.shape[0] != 2 for pair in pairs.values())
    lists = [edges_of(pair, title, by_rows) for title, pair in pairs.items()]
    return lists[0] if len(lists) == 1 else JoinedEdges(lists, {})


def edges_by_folder(
    folder: Path, pattern: str, separator: str, by_rows: bool
) -> dict[EdgeType, EdgeSource]:
    """Return {edge type: edges}. Each type has a folder with an edge_index.npy.

    Args:
        folder: parent of these folders.
        pattern: pattern of their names, for `Path.glob`.
        separator: text between the three names of an edge type in a folder's name.
        by_rows: see `edges_of`.
    """
    edges = {}
    for path in sorted(folder.glob(pattern)):
        file = path / "edge_index.npy"
        if path.is_dir():
            edge_type = edge_type_of(path.name, separator, f"'{folder}'")
            edges[edge_type] = edges_of(load_npy(file, "r"), f"'{file}'", by_rows)
    return edges


def graph_of(nodes: dict[NodeType, NodeSource], edges: dict[EdgeType, EdgeSource]) -> GraphSource:
    """Make a graph of nodes and edges, homogeneous if there is one type of each."""
    if len(nodes) == len(edges) == 1:
        return GraphSource({NODE: nodes.popitem()[1]}, {EDGE: edges.popitem()[1]})
    return GraphSource(nodes, edges, heterogeneous=True)


def reversed_edges(edges: EdgeSource, attrs: dict[str, RowStore]) -> EdgeSource:
    """Return edges with sources and destinations exchanged, without a copy."""
    if isinstance(edges, JoinedEdges):
        return JoinedEdges([reversed_edges(one, {}) for one in edges.lists], attrs)
    return EdgeSource(edges.dst, edges.src, attrs)


def edge_type_of(name: str, separator: str, title: str) -> EdgeType:
    """Parse an edge type: three names in one text, with a separator between.

    Raises:
        ValueError: there are not three names. The message begins with `title`.
    """
    names = name.split(separator)
    if len(names) != 3:
        form = separator.join(("SOURCE", "RELATION", "DESTINATION"))
        raise ValueError(f"{title}: '{name[:80]}' is no edge type {form}")
    return names[0], names[1], names[2]


def ids_of(values: Array, title: str) -> IntArray:
    """Check that values are integers, so that they can be node ids, and return them.

    Raises:
        TypeError: they are not. The message begins with `title`.
    """
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"{title} must hold integer node ids (got dtype '{values.dtype}'): ids run from 0, "
            "and none may be missing"
        )
    return values


def attribute(values: Array, title: str) -> RowStore:
    """Make an attribute of an array with one row per node or edge.

    `title` is the array's name in errors.

    Raises:
        TypeError: the array has no rows, or a dtype that khop does not store.
        ValueError: a mapped file is stored by columns, so that rows are not contiguous.
    """
    if values.ndim > 1 and not values.flags.c_contiguous and mapped_file(values) is not None:
        raise ValueError(
            f"{title} is stored by columns (Fortran's order): save numpy.ascontiguousarray of it"
        )
    try:
        return Feature(values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{title} cannot be an attribute: {error}") from None


def joined_attribute(pieces: Mapping[str, Array]) -> RowStore:
    """Make one attribute of the rows of several arrays, which have the names that errors use."""
    features = [attribute(values, title) for title, values in pieces.items()]
    if len(features) == 1:
        return features[0]
    try:
        return JoinedFeature(features)
    except ValueError as error:
        raise ValueError(f"{next(iter(pieces))} and those after it: {error}") from None


def count_nodes(edges: EdgeSource) -> int:
    """Return the largest node id in edges plus one. Edges are read piece by piece."""
    count = 0
    for first in range(0, edges.num_edges, _STEP):
        for ids in edges.piece(first, min(_STEP, edges.num_edges - first)):
            count = max(count, 1 + int(ids.max()))
        edges.release()
    return count


def flat_labels(values: Array, key: object, scratch: Scratch) -> Array:
    """Return labels in the shape and dtype that training needs.

    Labels [N, 1] become [N]. Whole numbers are int64. Fractions, and labels with NaN (nodes without
    a label), are float32.

    Args:
        values: [N] or [N, ...] labels.
        key: identifier of the labels in `scratch`.
        scratch: temporary storage of labels that are converted to another dtype.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values.reshape(-1)
    steps = range(0, len(values), _STEP)
    pieces = (values[first : first + _STEP] for first in steps)
    whole = values.dtype.kind in "iub" or all(np.array_equal(p, np.trunc(p)) for p in pieces)
    dtype = np.dtype(np.int64 if whole else np.float32)
    if values.dtype == dtype or len(values) == 0:
        return values.astype(dtype, copy=False)
    columns = scratch.table(
        ["labels", key],
        lambda: ({"y": values[first : first + _STEP].astype(dtype)} for first in steps),
    )
    return columns["y"]


def label_attribute(values: Array, file: Path, scratch: Scratch, of: NodeType = "") -> RowStore:
    """Make an attribute of labels that were read from a file.

    [N, 1] becomes [N], whole numbers int64, and others float32.

    Args:
        values: [N] or [N, ...] labels.
        file: the file.
        scratch: temporary storage of labels that are converted to another dtype.
        of: the node type.
    """
    return attribute(flat_labels(values, [identity(file), of], scratch), f"'{file}'")


def mask_of(ids: IntArray, count: int, key: object, scratch: Scratch, title: str) -> Array:
    """Return a mask that is True for some nodes.

    Args:
        ids: [n] ids of these nodes.
        count: number of all nodes.
        key: identifier of the mask in `scratch`.
        scratch: temporary storage of the mask.
        title: name of the ids in errors.

    Returns:
        [count] bool.

    Raises:
        IndexError: a node does not exist.
    """
    ids = np.sort(ids_of(ids.reshape(-1), title))
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= count):
        raise IndexError(f"{title} names node {ids[0]} or {ids[-1]}, which is not one of {count}")

    def piece(begin: int, end: int) -> Array:
        mask = np.zeros(end - begin, bool)
        mask[ids[np.searchsorted(ids, begin) : np.searchsorted(ids, end)] - begin] = True
        return mask

    return _mask(["mask", key], count, piece, scratch)


def mask_between(first: int, last: int, count: int, scratch: Scratch) -> Array:
    """Return a mask, [count] bool, that is True for nodes `first` to `last` - 1."""

    def piece(begin: int, end: int) -> Array:
        nodes = np.arange(begin, end)
        return (nodes >= first) & (nodes < last)

    return _mask(["mask between", first, last, count], count, piece, scratch)


def _mask(key: object, count: int, piece: Callable[[int, int], Array], scratch: Scratch) -> Array:
    if not count:
        return np.zeros(0, bool)
    bounds = [(begin, min(count, begin + _STEP)) for begin in range(0, count, _STEP)]
    return scratch.table(key, lambda: ({"mask": piece(*bound)} for bound in bounds))["mask"]


def mask_attribute(
    ids: IntArray, count: int, file: Path, key: Sequence[str], scratch: Scratch
) -> RowStore:
    """Make a mask attribute that is True for the nodes `ids`, of `count` nodes in all.

    Args:
        ids: [n] ids of nodes.
        count: number of all nodes.
        file: file that the ids were read from.
        key: identifier of the mask within this file.
        scratch: temporary storage of the mask.
    """
    mask = mask_of(ids, count, [identity(file), *key], scratch, f"'{file}'")
    return attribute(mask, f"'{file}'")


def shards(files: Sequence[Path]) -> list[Path]:
    """Sort the files that together hold one array. Numbers in names are compared as numbers.

    Raises:
        ValueError: a file of a series NAME-00000-of-00004 is missing.
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
