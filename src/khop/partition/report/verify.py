"""Check of a partition folder, for `khop verify`: checksums, counts, ranges. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from khop import _native
from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.data.times import time_keys
from khop.data.weights import weight_values
from khop.errors import FolderError
from khop.partition.out_of_core.folder_checksums import FileChecksums, FolderChecksums
from khop.partition.source import no_progress
from khop.partition.writing.row_sort import neighbors_by_part
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
    time_path,
)
from khop.storage.folder.checksums import RANGE_BYTES
from khop.typing import Array, Int64Array, IntArray, Progress

# Most damaged ranges of a file that a problem names.
_MOST_SPANS = 3


def verify_folder(
    root: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    jobs: int | None = None,
    tmp: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Check all checksums, counts and ranges, and that the parts together are the graph.

    Parts that are not on this machine cannot be checked: their files count as missing.

    Args:
        root: a partition folder.
        progress: called as progress(step, done, total). If None, progress is not reported.
        jobs: threads that compute checksums. If None, one per core, at most 8.
        tmp: folder of a journal. A check with the same `tmp` resumes an interrupted one, and reads
            changed files again. If None, each check begins anew.

    Returns:
        The problems, one sentence each. An empty list if there are none.

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
    progress = progress or no_progress
    with FolderChecksums(folder, jobs, None if tmp is None else Path(tmp), progress) as checksums:
        problems = [*_check_files(folder, checksums), *_check_listing(folder)]
    if problems:  # the content of damaged files is not checked
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
    for file in checksums.compute():
        if file.problem is not None:
            yield file.problem
        elif file.sha256 != folder.files[file.path].sha256:
            where = _changed_bytes(file, described.get(file.path))
            yield f"{file.path}: its bytes have changed (checksum differs{where})"
    here = {str(file.relative_to(folder.root)) for file in folder.root.rglob("*") if file.is_file()}
    about = {META_FILE, RANGES_FILE}  # and drafts of these, which an ended upgrade leaves
    for path in sorted(here - set(folder.files) - about - {draft_of(name) for name in about}):
        yield f"{path}: not part of the folder"


def _changed_bytes(file: FileChecksums, known: Written | None) -> str:
    """Return text with the byte ranges of a file that have changed, or '' if not known."""
    if file.written is None or known is None or len(known.ranges) < 2:
        return ""
    pairs = enumerate(zip(file.written.ranges, known.ranges, strict=True))
    changed = [i for i, (digest, expected) in pairs if digest != expected]
    spans = [
        f"{i * RANGE_BYTES:,} to {min((i + 1) * RANGE_BYTES, known.bytes) - 1:,}" for i in changed
    ]
    more = f" and {len(spans) - _MOST_SPANS:,} more ranges" if len(spans) > _MOST_SPANS else ""
    return f" in bytes {', '.join(spans[:_MOST_SPANS])}{more}"


def _check_listing(folder: PartitionFolder) -> Iterator[str]:
    """Yield a problem for each file that meta.json lacks, or lists without need."""
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
            counts[part] += neighbors_by_part(indices, book.bounds)
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
        path = node_path(part, name, "id")
        ids = folder.open(path)
        if len(ids) != book.size(part) or not _in_range(ids, 0, node_type.count):
            yield f"{path}: wrong number of ids, or ids out of range"
        elif not np.array_equal(
            id_map[ids], np.arange(book.bounds[part], book.bounds[part + 1], dtype=id_map.dtype)
        ):
            yield f"{path}: does not agree with the map"
        elif folder.meta.order == ORDERS[0] and np.any(ids[1:] <= ids[:-1]):
            yield f"{path}: is not in the order of original ids"
        for attr_name, attr in node_type.attrs.items():
            path = node_attr_path(part, name, attr_name)
            yield from _check_attr(folder, path, attr, book.size(part))
        if node_type.cached and node_type.cached[part]:
            yield from _check_cache(folder, node_type, part)
    for mask in node_type.splits:
        held = [
            np.flatnonzero(folder.node_feature(part, name, mask).array) + book.bounds[part]
            for part in range(folder.num_parts)
        ]
        if not np.array_equal(folder.split(name, mask), np.concatenate(held)):
            yield f"split '{mask}' of '{name}': does not agree with the attribute"
    yield from _check_node_times(folder, node_type)


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
            original = folder.node_feature(int(owner), name, attr_name).gather(rows)
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
        yield from _check_edge_draws(folder, edge_type, part)
    if edge_type.edge_ids and not _is_permutation(np.concatenate(all_ids), edge_type.count):
        yield f"edge type {edge_type.name}: the parts' edge ids are not 0 .. {edge_type.count - 1}"


def _check_node_times(folder: PartitionFolder, node_type: NodeTypeMeta) -> Iterator[str]:
    """Yield a problem for each part whose node sort keys differ from the attribute of times."""
    time = folder.meta.time_attr
    if not node_type.timed or time is None:
        return
    path = time_path(node_type.name)
    keys = folder.open(path)
    if keys.dtype != np.int64 or keys.shape != (node_type.count,):
        yield f"{path}: holds {keys.dtype} {keys.shape} instead of int64 ({node_type.count},)"
        return
    for part in range(folder.num_parts):
        feature = folder.node_feature(part, node_type.name, time.name)
        here = keys[node_type.bounds[part] : node_type.bounds[part + 1]]
        if not np.array_equal(here, time_keys(feature.numbers(), time.name, time.floating)):
            yield f"{path}: does not agree with attribute '{time.name}' of part-{part}"


def _check_edge_draws(folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int) -> Iterator[str]:
    """Yield problems of a part's edges of a type: order, neighbours' ids, times and weights."""
    indptr, indices = (
        folder.open(edge_path(part, edge_type.name, name)) for name in ("indptr", "indices")
    )
    times = None
    if edge_type.timed:
        path = edge_path(part, edge_type.name, "time")
        times = folder.open(path)
        if times.dtype != np.int64 or times.shape != (len(indices),):
            yield f"{path}: holds {times.dtype} {times.shape} instead of int64 ({len(indices)},)"
            return
        if not np.array_equal(times, _expected_times(folder, edge_type, part, indices)):
            yield f"{path}: does not agree with the attribute of times"
        if _native.first_row_out_of_order(indptr, times) >= 0:
            yield f"{path}: the times of a row are not in ascending order"
    if edge_type.edge_ids:
        edge_ids = folder.open(edge_path(part, edge_type.name, "edge_id"))
        if not _keeps_order(indptr, edge_ids, times):
            where = f"part-{part}, edge type {edge_type.name}"
            yield f"{where}: edges of a row are not in the order of their ids"
    if edge_type.neighbor_ids:
        path = edge_path(part, edge_type.name, "neighbor_id")
        neighbors = folder.meta.neighbor_type(edge_type)
        ids = folder.open(path)
        if ids.shape != indices.shape or ids.dtype.kind != "i":
            yield f"{path}: holds {ids.dtype} {ids.shape} instead of an id for each edge"
        elif not _in_range(ids, 0, neighbors.count):
            yield f"{path}: an id is out of range"
        elif not np.array_equal(folder.id_map(neighbors.name)[ids], indices):
            yield f"{path}: does not agree with indices and the map"
    if edge_type.weighted:
        yield from _check_weights(folder, edge_type, part, indptr)


def _check_weights(
    folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int, indptr: IntArray
) -> Iterator[str]:
    name = folder.meta.weight_attr
    assert name is not None  # meta.json has been checked
    weights = weight_values(_attribute(folder, edge_type, part, name).numbers(), name)
    tables: tuple[Array, Array] = _native.weight_table(indptr, weights)
    for array, expected in zip(("weight_sum", "weight_guide"), tables, strict=True):
        path = edge_path(part, edge_type.name, array)
        stored = folder.open(path)
        if stored.dtype != expected.dtype or not np.array_equal(stored, expected):
            yield f"{path}: is not the table of attribute '{name}'"


def _expected_times(
    folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int, indices: IntArray
) -> Int64Array:
    time = folder.meta.time_attr
    assert time is not None  # meta.json has been checked
    if time.level == "node":
        keys: Int64Array = folder.open(time_path(folder.meta.neighbor_type(edge_type).name))
        return keys[indices]
    feature = _attribute(folder, edge_type, part, time.name)
    return time_keys(feature.numbers(), time.name, time.floating)


def _keeps_order(indptr: IntArray, edge_ids: IntArray, times: Int64Array | None) -> bool:
    """Return True if edge ids ascend within each row, or within equal times of each row.

    `indptr` [num_rows + 1] are the row pointers. `times` has an entry per edge, or is None.
    """
    ascends = edge_ids[1:] > edge_ids[:-1]
    if times is not None:
        ascends |= times[1:] != times[:-1]
    begins = indptr[1:-1]  # there is no order between rows
    ascends[begins[(begins > 0) & (begins < len(edge_ids))] - 1] = True
    return bool(ascends.all())


def _attribute(folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int, name: str) -> Feature:
    path = edge_attr_path(part, edge_type.name, name)
    return Feature(folder.open(path), edge_type.attrs[name].stored.dtype)
