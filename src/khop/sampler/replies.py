"""Checks of other processes' replies, before kernels read them.

A damaged or hostile server must not do more than fail a batch. So the requester checks that a reply
has the arrays that were asked for, the right number of entries, and only ids that exist.
All checks raise ProtocolError. Kernels rely on them. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from khop.channel.message import frame_slices
from khop.data import Feature
from khop.data.arrays import STORAGE
from khop.data.weights import weight_values
from khop.errors import ProtocolError
from khop.sampler.requests import Drawn
from khop.storage.folder import AttrMeta
from khop.typing import Array, BoolArray, Float64Array, Int64Array


def check_drawn(
    arrays: list[Array], part: int, num_rows: int, with_edge: bool, below: int, edges: Sequence[int]
) -> Drawn:
    """Check another partition's reply to a request to draw neighbours.

    Args:
        arrays: arrays of the reply.
        part: the partition that sent it.
        num_rows: number of rows (nodes whose neighbours were requested).
        with_edge: edges were requested, too.
        below: exclusive bound of the neighbours, which are ids or indices of the batch's nodes.
        edges: first number of the part's edges, and one past the last.

    Raises:
        ProtocolError: the reply is not of this form.
    """
    sender = f"partition {part}"
    if len(arrays) != 2 + with_edge:
        raise ProtocolError(f"{sender} sent {len(arrays)} arrays of neighbours")
    counts, neighbors = arrays[0], arrays[1]
    _check_vector(counts, sender, ("int32",), num_rows, "counts")
    _check_vector(neighbors, sender, ("int32", "int64"), None, "neighbours", (0, below))
    if num_rows and int(counts.min()) < 0:
        raise ProtocolError(f"{sender} sent a count below 0")
    if int(counts.sum(dtype=np.int64)) != len(neighbors):
        raise ProtocolError(f"{sender} sent counts that do not match its neighbours")
    if not with_edge:
        return counts, neighbors, None
    _check_vector(arrays[2], sender, ("int64",), len(neighbors), "edges", edges)
    return counts, neighbors, arrays[2]


def check_found(arrays: list[Array], part: int, count: int) -> BoolArray:
    """Check partition `part`'s reply to `count` questions whether an edge joins two nodes.

    Raises:
        ProtocolError: the reply is not [count] booleans.
    """
    sender = f"partition {part}"
    if len(arrays) != 1:
        raise ProtocolError(f"{sender} sent {len(arrays)} arrays for one")
    _check_vector(arrays[0], sender, ("bool",), count, "answers")
    return arrays[0]


def check_degrees(arrays: list[Array], part: int, count: int, most: int) -> Int64Array:
    """Check partition `part`'s reply with the numbers of neighbours of `count` nodes.

    Raises:
        ProtocolError: the reply is not [count] int64 from 0 to `most`.
    """
    sender = f"partition {part}"
    if len(arrays) != 1:
        raise ProtocolError(f"{sender} sent {len(arrays)} arrays for one")
    _check_vector(arrays[0], sender, ("int64",), count, "degrees", (0, most + 1))
    return arrays[0]


def check_weights(values: Array, dtype: str) -> Float64Array:
    """Check weights of edges that were fetched as rows of an attribute.

    Args:
        values: [n] as they are stored.
        dtype: name of their dtype.

    Returns:
        [n] float64.

    Raises:
        ProtocolError: a weight that is negative, infinite or NaN.
    """
    try:
        return weight_values(Feature(values, dtype).numbers(), "the weights of a partition").astype(
            np.float64
        )
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def check_rows(
    arrays: list[Array], sender: str, count: int, attributes: Mapping[str, AttrMeta], below: int
) -> list[list[Array]]:
    """Check rows of attributes that another process sent.

    Args:
        arrays: arrays of the reply: for each attribute one per slice of rows (`frame_slices`).
        sender: name of the process: 'partition 3'.
        count: number of rows that were asked for.
        attributes: description of each attribute, by name. Rows are as stored.
        below: exclusive bound of original ids, the attributes 'id' and 'edge_id'.

    Returns:
        The arrays of each attribute.

    Raises:
        ProtocolError: the reply is not of this form.
    """
    slices = {name: frame_slices(count, attr.row_bytes) for name, attr in attributes.items()}
    expected = sum(map(len, slices.values()))
    if len(arrays) != expected:
        raise ProtocolError(f"{sender} sent {len(arrays)} arrays of attributes, not {expected}")
    of_attributes, first = [], 0
    for name, attr in attributes.items():
        dtype, row_shape = attr.stored
        of_attribute = arrays[first : first + len(slices[name])]
        first += len(of_attribute)
        for array, rows in zip(of_attribute, slices[name], strict=True):
            shape = (rows.stop - rows.start, *row_shape)
            if array.dtype != STORAGE[dtype] or array.shape != shape:
                raise ProtocolError(
                    f"{sender} sent {array.dtype} {array.shape} for '{name}', which is {dtype} "
                    f"{shape}"
                )
            if name in ("id", "edge_id"):
                _check_vector(array, sender, ("int64",), len(array), "original ids", (0, below))
        of_attributes.append(of_attribute)
    return of_attributes


def _check_vector(
    array: Array,
    sender: str,
    dtypes: tuple[str, ...],
    count: int | None,
    content: str,
    bounds: Sequence[int] | None = None,
) -> None:
    if array.ndim != 1 or array.dtype.name not in dtypes or count not in (None, len(array)):
        raise ProtocolError(
            f"{sender} sent {array.dtype} {array.shape} for {content} of {count or 'its'} rows"
        )
    if bounds is None or not len(array):
        return
    low, high = int(array.min()), int(array.max())
    if not (bounds[0] <= low and high < bounds[1]):
        raise ProtocolError(
            f"{sender} sent {content} {low} or {high}, but they run from {bounds[0]} to "
            f"{bounds[1] - 1}"
        )
