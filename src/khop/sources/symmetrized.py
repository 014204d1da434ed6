"""Function that adds reverse edges to a graph, in bounded memory. Imports no torch.

Edges are split into blocks by source, and each block is sorted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from khop import _native
from khop.data.arrays import narrowest_int
from khop.data.joined import TakenFeature
from khop.partition.out_of_core.effort import content_identity
from khop.partition.out_of_core.resources import block_bounds
from khop.partition.out_of_core.stage import (
    COLUMN,
    EDGE_ID,
    ROW,
    Column,
    FileColumn,
    MemoryColumn,
    SplitPiece,
    Stage,
)
from khop.partition.source import EdgeSource, GraphSource
from khop.sources.columns import reversed_edges
from khop.sources.scratch import Scratch
from khop.typing import Array, EdgeType, Int64Array, IntArray

# Bytes of an edge while its block is sorted.
_SORTED_BYTES = 64


def symmetrized(source: GraphSource, scratch: Scratch | None = None) -> GraphSource:
    """Add the reverse of every edge, with the same attributes.

    Edges within one node type are sorted by source and destination, and duplicates are removed.
    Their new edge ids are positions in this order. Edges (A, REL, B) between two node types stay,
    and their reverses are a new edge type (B, 'rev_REL', A) with the same ids.

    Args:
        source: the graph.
        scratch: temporary storage in which the edges are sorted. If None, in memory.

    Raises:
        IndexError: an edge names a node that does not exist.
        ValueError: the graph has a type 'rev_REL'.
    """
    scratch = Scratch() if scratch is None else scratch
    edges: dict[EdgeType, EdgeSource] = {}
    for (src, name, dst), edge in source.edges.items():
        if src == dst:
            edges[src, name, dst] = _both_ways(edge, source.nodes[src].count, scratch)
            continue
        reverse = (dst, f"rev_{name}", src)
        if reverse in source.edges:
            raise ValueError(f"edge type {reverse} is there already: leave --undirected out")
        edges[src, name, dst] = edge
        edges[reverse] = reversed_edges(edge, edge.attrs)
    return replace(source, edges=edges)


def _both_ways(edge: EdgeSource, count: int, scratch: Scratch) -> EdgeSource:
    """Return edges and reverses between `count` nodes, sorted by source and destination.

    Duplicates are removed.
    """
    if edge.num_edges == 0:
        return edge
    key: list[object] = ["both ways", count]
    if scratch.folder is not None:
        key += [edge.num_edges, *map(content_identity, edge.content())]
    table = scratch.table(key, lambda: _sorted(edge, count, scratch))
    attrs = {name: TakenFeature(rows, table["edge"]) for name, rows in edge.attrs.items()}
    return EdgeSource(table["src"], table["dst"], {**attrs})


def _ends(edge: EdgeSource, scratch: Scratch) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Yield (id of the first edge, sources, destinations) of pieces: all edges, then reverses."""
    step = max(1, scratch.piece_bytes // _SORTED_BYTES)
    for backwards in (False, True):
        for first in range(0, edge.num_edges, step):
            src, dst = edge.piece(first, min(step, edge.num_edges - first))
            yield (first + edge.num_edges, dst, src) if backwards else (first, src, dst)
        edge.release()


def _sorted(edge: EdgeSource, count: int, scratch: Scratch) -> Iterator[dict[str, Array]]:
    """Yield blocks of edges in both directions: sorted sources, destinations and edge ids.

    `count` is the number of nodes.
    """
    same = np.arange(count, dtype=narrowest_int(count))
    split = _native.RowSplit(same, same, count)
    indptr: Int64Array = np.zeros(count + 1, np.int64)
    try:
        for first, rows, neighbors in _ends(edge, scratch):
            split.count(rows, neighbors, first, indptr[1:])
    except IndexError as error:
        raise IndexError(
            f"an edge names a node that is not one of the {count} nodes: {error}. Ids run from 0; "
            "the number of nodes is num_nodes, or the number of rows of their attributes"
        ) from None
    np.cumsum(indptr, out=indptr)
    blocks = block_bounds(indptr, [0, count], max(1, scratch.memory // (4 * _SORTED_BYTES)))
    dtypes = {ROW: same.dtype, COLUMN: same.dtype, EDGE_ID: narrowest_int(2 * edge.num_edges)}
    with _opened(dtypes, int(indptr[-1]), scratch) as columns:
        stage = Stage(columns, indptr[blocks])
        for first, rows, neighbors in _ends(edge, scratch):
            piece: dict[str, Array] = {n: np.empty(len(rows), d) for n, d in dtypes.items()}
            counts = split.split(rows, neighbors, first, blocks, *piece.values())
            stage.append(SplitPiece(counts, piece))
        for block in range(len(blocks) - 1):
            rows, neighbors, ids = stage.ends(block)
            pairs, kept = np.unique(rows.astype(np.int64) * count + neighbors, return_index=True)
            yield {
                "src": (pairs // count + blocks[block]).astype(same.dtype),
                "dst": (pairs % count).astype(same.dtype),
                "edge": ids[kept] % ids.dtype.type(edge.num_edges),
            }


@contextlib.contextmanager
def _opened(
    dtypes: dict[str, np.dtype[np.generic]], count: int, scratch: Scratch
) -> Iterator[dict[str, Column]]:
    """Yield empty columns of `count` entries, in files if the temporary storage has a folder."""
    if scratch.folder is None:
        yield {name: MemoryColumn(dtype, count) for name, dtype in dtypes.items()}
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch.temporary())
        columns: dict[str, Column] = {}
        for name, dtype in dtypes.items():
            column = FileColumn(folder, f"{name}.stage", dtype, (), count)
            stack.callback(column.close)
            columns[name] = column
        yield columns
