"""Check of a folder's times, weights and row order against its attributes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from khop import _native
from khop.data import Feature
from khop.data.times import time_keys
from khop.data.weights import weight_values
from khop.storage.folder import (
    EdgeTypeMeta,
    NodeTypeMeta,
    PartitionFolder,
    edge_attr_path,
    edge_path,
    time_path,
)
from khop.typing import Array, Int64Array, IntArray


def check_node_times(folder: PartitionFolder, node_type: NodeTypeMeta) -> Iterator[str]:
    """Check, part by part, that the keys of a node type's times are those of the attribute."""
    time = folder.meta.time_attr
    if not node_type.timed or time is None:
        return
    path = time_path(node_type.name)
    keys = folder.open(path)
    if not _is_vector(keys, np.int64, node_type.count):
        yield f"{path}: holds {keys.dtype} {keys.shape} instead of int64 ({node_type.count},)"
        return
    for part in range(folder.num_parts):
        feature = folder.node_feature(part, node_type.name, time.name)
        here = keys[node_type.bounds[part] : node_type.bounds[part + 1]]
        if not np.array_equal(here, time_keys(feature.numbers(), time.name, time.floating)):
            yield f"{path}: does not agree with attribute '{time.name}' of part-{part}"


def check_edge_draws(folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int) -> Iterator[str]:
    """Check that rows are in the order of meta.json, and times and weights those of attributes."""
    indptr, indices = (
        folder.open(edge_path(part, edge_type.name, name)) for name in ("indptr", "indices")
    )
    where = f"part-{part}, edge type {edge_type.name}"
    times = None
    if edge_type.timed:
        path = edge_path(part, edge_type.name, "time")
        times = folder.open(path)
        if not _is_vector(times, np.int64, len(indices)):
            yield f"{path}: holds {times.dtype} {times.shape} instead of int64 ({len(indices)},)"
            return
        if not np.array_equal(times, _expected_times(folder, edge_type, part, indices)):
            yield f"{path}: does not agree with the attribute of times"
        if _native.first_row_out_of_order(indptr, times) >= 0:
            yield f"{path}: the times of a row are not in ascending order"
    if edge_type.edge_ids:
        edge_ids = folder.open(edge_path(part, edge_type.name, "edge_id"))
        if not _keeps_order(indptr, edge_ids, times):
            yield f"{where}: edges of a row are not in the order of their ids"
    if edge_type.neighbor_ids:
        yield from _check_neighbor_ids(folder, edge_type, part, indices)
    if edge_type.weighted:
        yield from _check_weights(folder, edge_type, part, indptr)


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
    """Return whether edge ids ascend within each row, or each run of equal times of a row."""
    ascends = edge_ids[1:] > edge_ids[:-1]
    if times is not None:
        ascends |= times[1:] != times[:-1]
    begins = indptr[1:-1]  # between rows nothing needs to ascend
    ascends[begins[(begins > 0) & (begins < len(edge_ids))] - 1] = True
    return bool(ascends.all())


def _check_neighbor_ids(
    folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int, indices: IntArray
) -> Iterator[str]:
    path = edge_path(part, edge_type.name, "neighbor_id")
    neighbors = folder.meta.neighbor_type(edge_type)
    ids, count = folder.open(path), neighbors.count
    if ids.shape != indices.shape or ids.dtype.kind != "i":
        yield f"{path}: holds {ids.dtype} {ids.shape} instead of an id for each edge"
    elif ids.size and (int(ids.min()) < 0 or int(ids.max()) >= count):
        yield f"{path}: an id is out of range"
    elif not np.array_equal(folder.id_map(neighbors.name)[ids], indices):
        yield f"{path}: does not agree with indices and the map"


def _check_weights(
    folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int, indptr: IntArray
) -> Iterator[str]:
    name = folder.meta.weight_attr
    assert name is not None  # meta.json has been checked
    weights = weight_values(_attribute(folder, edge_type, part, name).numbers(), name)
    expected: tuple[Array, Array] = _native.weight_table(indptr, weights)
    for array, wanted in zip(("weight_sum", "weight_guide"), expected, strict=True):
        path = edge_path(part, edge_type.name, array)
        found = folder.open(path)
        if found.dtype != wanted.dtype or not np.array_equal(found, wanted):
            yield f"{path}: is not the table of attribute '{name}'"


def _attribute(folder: PartitionFolder, edge_type: EdgeTypeMeta, part: int, name: str) -> Feature:
    path = edge_attr_path(part, edge_type.name, name)
    return Feature(folder.open(path), edge_type.attrs[name].stored.dtype)


def _is_vector(array: Array, dtype: type, length: int) -> bool:
    return array.dtype == dtype and array.shape == (length,)
