"""Check of a partition folder: checksums, counts, ranges, and agreement of its files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from khop.data.arrays import storage_dtype
from khop.errors import FolderError
from khop.partition.out_of_core.folder_checksums import FileChecksums, FolderChecksums
from khop.partition.report.verify_draws import check_edge_draws, check_node_times
from khop.storage.folder import (
    META_FILE,
    ORDERS,
    RANGES_FILE,
    VERSION_RANGES,
    AttrMeta,
    EdgeTypeMeta,
    NodeTypeMeta,
    PartitionFolder,
    Written,
    cache_attr_path,
    cache_path,
    draft_of,
    edge_attr_path,
    edge_path,
    map_path,
    node_attr_path,
    node_path,
)
from khop.storage.folder.checksums import RANGE_BYTES
from khop.typing import Array, IntArray, Progress

# Damaged ranges of a file that are named.
_MOST_SPANS = 3


def verify_folder(
    root: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    jobs: int | None = None,
    tmp: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Check every checksum, count and range, and that the parts together are the graph.

    Parts that are not on this machine cannot be checked; their files count as missing.

    Args:
        root: a partition folder.
        progress: called as progress(what, done, total). If None, progress is not reported.
        jobs: threads that compute checksums. If None, one for each core, at most 8.
        tmp: folder in which progress is kept: if the check is ended, the next one with the same
            `tmp` goes on. If None, it begins anew. Files that have changed since then are read
            again.

    Returns:
        The problems, a sentence each; empty if there are none.

    Raises:
        NotADirectoryError: `tmp` is no folder.
        BlockingIOError: another process verifies the same folder with the same `tmp`.

    Example:
        >>> verify_folder(folder)
        []
    """
    try:
        folder = PartitionFolder(root)
    except FolderError as error:
        return [str(error)]
    progress = progress or (lambda what, done, total: None)
    with FolderChecksums(folder, jobs, None if tmp is None else Path(tmp), progress) as checksums:
        problems = [*_check_files(folder, checksums), *_check_listing(folder)]
    if problems:  # then the content of the files means nothing
        return problems
    try:
        for done, node_type in enumerate(folder.meta.node_types):
            progress(f"nodes of type '{node_type.name}'", done, len(folder.meta.node_types))
            problems += _check_nodes(folder, node_type)
        for done, edge_type in enumerate(folder.meta.edge_types):
            progress(f"edges of type {edge_type.name}", done, len(folder.meta.edge_types))
            problems += _check_edges(folder, edge_type)
        if folder.meta.summary.get("edges_between_parts") != _edges_between_parts(folder):
            problems.append("meta.json: the summary miscounts the edges between parts")
    except (FolderError, ValueError, IndexError, KeyError, TypeError) as error:
        problems.append(f"meta.json and the files disagree: {error}")
    return problems


def _check_files(folder: PartitionFolder, checksums: FolderChecksums) -> Iterator[str]:
    described: Mapping[str, Written] = {}
    if folder.version >= VERSION_RANGES:
        try:
            described = folder.written()
        except FolderError as error:
            yield str(error)
    for found in checksums.compute():
        if found.problem is not None:
            yield found.problem
        elif found.sha256 != folder.files[found.path].sha256:
            where = _where(found, described)
            yield f"{found.path}: its bytes have changed (checksum differs{where})"
    here = {str(file.relative_to(folder.root)) for file in folder.root.rglob("*") if file.is_file()}
    about = {META_FILE, RANGES_FILE}  # and what an upgrade that was ended will write anew
    for path in sorted(here - set(folder.files) - about - {draft_of(name) for name in about}):
        yield f"{path}: not part of the folder"


def _where(found: FileChecksums, described: Mapping[str, Written]) -> str:
    """Return which bytes of a file have changed, if it has several ranges."""
    known = described.get(found.path)
    if found.written is None or known is None or len(known.ranges) < 2:
        return ""
    pairs = enumerate(zip(found.written.ranges, known.ranges, strict=True))
    changed = [i for i, (digest, expected) in pairs if digest != expected]
    spans = [
        f"{i * RANGE_BYTES:,} to {min((i + 1) * RANGE_BYTES, known.bytes) - 1:,}" for i in changed
    ]
    more = f" and {len(spans) - _MOST_SPANS:,} more ranges" if len(spans) > _MOST_SPANS else ""
    return f" in bytes {', '.join(spans[:_MOST_SPANS])}{more}"


def _check_listing(folder: PartitionFolder) -> Iterator[str]:
    """Check that meta.json lists exactly the files that the types it describes need."""
    needed = folder.meta.files()
    for path in sorted(needed - set(folder.files)):
        yield f"{path}: not listed in meta.json, which describes it"
    for path in sorted(set(folder.files) - needed):
        yield f"{path}: listed in meta.json, which does not describe it"


def _edges_between_parts(folder: PartitionFolder) -> list[list[int]]:
    counts = np.zeros((folder.num_parts, folder.num_parts), np.int64)
    for edge_type in folder.meta.edge_types:
        book = folder.meta.neighbor_type(edge_type).book
        for part in range(folder.num_parts):
            indices = folder.open(edge_path(part, edge_type.name, "indices"))
            below = [int(np.count_nonzero(indices < bound)) for bound in book.bounds]
            counts[part] += np.diff(below)
    return counts.tolist()


def _check_attr(folder: PartitionFolder, path: str, attr: AttrMeta, rows: int) -> Iterator[str]:
    array = folder.open(path)
    dtype, shape = attr.stored.dtype, (rows, *attr.stored.shape)
    if array.shape != shape or array.dtype != storage_dtype(dtype):
        yield f"{path}: holds {array.dtype} {array.shape} instead of {dtype} {shape}"
    elif array.dtype == bool and not _in_range(array.view(np.uint8), 0, 2):
        yield f"{path}: holds booleans that are neither 0 nor 1"


def _in_range(ids: Array, low: int, high: int) -> bool:
    return ids.size == 0 or (int(ids.min()) >= low and int(ids.max()) < high)


def _is_permutation(ids: IntArray, count: int) -> bool:
    if len(ids) != count or not _in_range(ids, 0, count):
        return False
    seen = np.zeros(count, bool)
    seen[ids] = True
    return bool(seen.all())


def _check_nodes(folder: PartitionFolder, node_type: NodeTypeMeta) -> Iterator[str]:
    name, book = node_type.name, node_type.book
    id_map = folder.open(map_path(name))
    if not _is_permutation(id_map, node_type.count):
        yield f"map of '{name}': not a permutation of 0 .. {node_type.count - 1}"
        return
    for part in range(folder.num_parts):
        ids = folder.open(node_path(part, name, "id"))
        if len(ids) != book.size(part) or not _in_range(ids, 0, node_type.count):
            yield f"{node_path(part, name, 'id')}: wrong number of ids, or ids out of range"
        elif not np.array_equal(
            id_map[ids], np.arange(book.bounds[part], book.bounds[part + 1], dtype=id_map.dtype)
        ):
            yield f"{node_path(part, name, 'id')}: does not agree with the map"
        elif folder.meta.order == ORDERS[0] and np.any(ids[1:] <= ids[:-1]):
            yield f"{node_path(part, name, 'id')}: is not in the order of original ids"
        for attr_name, attr in node_type.attrs.items():
            path = node_attr_path(part, name, attr_name)
            yield from _check_attr(folder, path, attr, book.size(part))
        if node_type.cached and node_type.cached[part]:
            yield from _check_cache(folder, node_type, part)
    for mask in node_type.splits:
        wanted = [
            np.flatnonzero(folder.node_feature(part, name, mask).array) + book.bounds[part]
            for part in range(folder.num_parts)
        ]
        if not np.array_equal(folder.split(name, mask), np.concatenate(wanted)):
            yield f"split '{mask}' of '{name}': does not agree with the attribute"
    yield from check_node_times(folder, node_type)


def _check_cache(folder: PartitionFolder, node_type: NodeTypeMeta, part: int) -> Iterator[str]:
    name, count = node_type.name, node_type.cached[part]
    new_ids = folder.open(cache_path(part, name, "new_id"))
    if len(new_ids) != count or not _in_range(new_ids, 0, node_type.count):
        yield f"{cache_path(part, name, 'new_id')}: wrong number of ids, or ids out of range"
        return
    ids = folder.open(cache_path(part, name, "id"))
    if not _in_range(ids, 0, node_type.count) or not np.array_equal(
        folder.id_map(name)[ids], new_ids
    ):
        yield f"{cache_path(part, name, 'id')}: does not agree with the map"
    owners = node_type.book.owner(new_ids)
    if np.any(owners == part) or len(np.unique(new_ids)) != count:
        yield f"{cache_path(part, name, 'new_id')}: caches its own nodes, or a node twice"
    for attr_name, attr in node_type.attrs.items():
        path = cache_attr_path(part, name, attr_name)
        yield from _check_attr(folder, path, attr, count)
        cached = folder.open(path)
        for owner in np.unique(owners):
            here = owners == owner
            rows = new_ids[here] - node_type.bounds[int(owner)]
            original = folder.node_feature(int(owner), name, attr_name).array[rows]
            if cached[here].tobytes() != original.tobytes():
                yield f"{path}: differs from the owner's rows"
                break


def _check_edges(folder: PartitionFolder, edge_type: EdgeTypeMeta) -> Iterator[str]:
    rows, neighbors = folder.meta.row_type(edge_type), folder.meta.neighbor_type(edge_type)
    all_ids = []
    for part in range(folder.num_parts):
        indptr = folder.open(edge_path(part, edge_type.name, "indptr"))
        indices = folder.open(edge_path(part, edge_type.name, "indices"))
        count = edge_type.bounds[part + 1] - edge_type.bounds[part]
        where = f"part-{part}, edge type {edge_type.name}"
        if len(indptr) != rows.book.size(part) + 1 or np.any(np.diff(indptr) < 0):
            yield f"{where}: indptr does not fit the part's nodes"
        elif indptr[0] != 0 or int(indptr[-1]) != len(indices) or len(indices) != count:
            yield f"{where}: indptr, indices and meta.json disagree on the number of edges"
        if not _in_range(indices, 0, neighbors.count):
            yield f"{where}: a neighbour's id is out of range"
        if edge_type.edge_ids:
            edge_ids = folder.open(edge_path(part, edge_type.name, "edge_id"))
            if len(edge_ids) != count:
                yield f"{where}: edge_id has {len(edge_ids)} entries for {count} edges"
            all_ids.append(edge_ids)
        for name, attr in edge_type.attrs.items():
            yield from _check_attr(folder, edge_attr_path(part, edge_type.name, name), attr, count)
        yield from check_edge_draws(folder, edge_type, part)
    if edge_type.edge_ids and not _is_permutation(np.concatenate(all_ids), edge_type.count):
        yield f"edge type {edge_type.name}: the parts' edge ids are not 0 .. {edge_type.count - 1}"
