"""Conversion of users' arrays and tensors to NumPy, without importing torch.

NumPy has no bfloat16: such arrays are stored as uint16, together with the name of their dtype.
Everywhere in khop a dtype is a name of `DTYPES`.
"""

from __future__ import annotations

import functools
import operator
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from khop.log import shown
from khop.typing import Array, ArrayLike, Int64Array, IntArray

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
"""Names of the dtypes that features may have."""

STORAGE = {name: np.dtype("uint16" if name == "bfloat16" else name) for name in DTYPES}
"""{name of a dtype in `DTYPES`: dtype of NumPy that stores its values}."""

_CHECKSUM_ROWS = 1 << 16

MAX_COUNT = 2**56 - 1
"""Maximum number of nodes or edges of a type, far below the overflow of 64-bit sums."""


@functools.lru_cache(len(DTYPES))
def storage_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype that stores values of the dtype called `name`."""
    if name not in STORAGE:
        raise TypeError(f"dtype '{name}' is not supported: khop stores {', '.join(DTYPES)}")
    return STORAGE[name]


def to_array(value: ArrayLike | float, label: str = "array") -> tuple[Array, str]:
    """View `value` as a NumPy array.

    Args:
        value: NumPy array, CPU torch tensor (any layout, requires_grad or not) or sequence.
        label: name of the value in error messages.

    Returns:
        The array (sharing memory where possible) and the name of its dtype.

    Raises:
        TypeError: a tensor on another device, a sparse tensor or an unsupported dtype.
    """
    if hasattr(value, "detach"):  # a torch tensor, known without importing torch
        tensor: Tensor = value  # type: ignore[assignment]
        if tensor.device.type != "cpu":
            raise TypeError(
                f"{label} is on device '{tensor.device}': move it to the CPU first (`.cpu()`)"
            )
        tensor = tensor.detach()
        if str(tensor.layout) != "torch.strided":
            raise TypeError(
                f"{label} is a sparse tensor ({tensor.layout}): make it dense first (`.to_dense()`)"
            )
        name = str(tensor.dtype).removeprefix("torch.")
        _check_dtype(name, label)
        if name == "bfloat16":
            import torch

            # Older torch has no uint16, so the bits are viewed as int16 first.
            array = tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
        else:
            array = np.asarray(tensor.numpy())
    else:
        array = np.asarray(value)
        name = array.dtype.name
    _check_dtype(name, label)
    if storage_dtype(name) != array.dtype:  # e.g. a foreign byte order
        array = array.astype(storage_dtype(name))
    return array, name


def _check_dtype(name: str, label: str) -> None:
    if name not in STORAGE:
        raise TypeError(
            f"{label}: dtype '{name}' is not supported: convert it to one of {', '.join(DTYPES)}"
        )


def to_numbers(value: ArrayLike, label: str = "array") -> Array:
    """Convert as `to_array` does, but bfloat16 to float32, with which NumPy can calculate."""
    array, name = to_array(value, label)
    return bfloat16_as_float32(array) if name == "bfloat16" else array


def bfloat16_as_float32(bits: Array) -> Array:
    """Return the float32 numbers of bfloat16 bits that are stored as uint16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_ids(value: ArrayLike | float, label: str) -> IntArray:
    """View `value` as a one-dimensional array of integer ids.

    Raises:
        TypeError: `value` does not hold integers.
        ValueError: `value` has not exactly one dimension, or an id does not fit int64.
    """
    array, name = to_array(value, label)
    if array.size == 0 and not isinstance(value, np.ndarray) and not hasattr(value, "detach"):
        array = array.astype(np.int64)
    elif array.dtype.kind not in "iu" or name == "bfloat16":
        raise TypeError(f"{label} must hold integers (got dtype '{name}')")
    if array.ndim != 1:
        raise ValueError(f"{label} must have one dimension (got shape {array.shape})")
    # NumPy 1 compares uint64 with a plain integer as floats.
    largest = np.uint64(np.iinfo(np.int64).max)
    if array.dtype == np.uint64 and array.max(initial=np.uint64(0)) > largest:
        first = int(np.argmax(array > largest))
        raise ValueError(f"{label} holds {array[first]} at position {first}: ids are below 2^63")
    return array


def to_int64(value: ArrayLike, label: str) -> Int64Array:
    """Convert ids as `to_ids` does, to a contiguous array of dtype int64."""
    return np.ascontiguousarray(to_ids(value, label), dtype=np.int64)


def check_count(count: object, label: str) -> int:
    """Check a number of nodes, and return it as an `int`. `label` is its name in messages.

    Raises:
        TypeError: Python does not accept `count` as an integer.
        ValueError: negative, or more than `MAX_COUNT`.
    """
    try:
        plain = operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{label} must be an integer (got {shown(count)})") from None
    if not 0 <= plain <= MAX_COUNT:
        raise ValueError(
            f"{label} must be from 0 to 2^56 - 1 (got {plain}): nodes are numbered from 0 on, so "
            "that the largest id plus one is enough"
        )
    return plain


def check_pointers(pointers: IntArray, num_edges: int, label: str) -> None:
    """Raise ValueError unless row pointers ascend from 0 to the number of edges."""
    if len(pointers) == 0 or pointers[0] != 0 or pointers[-1] != num_edges:
        raise ValueError(
            f"the row pointers of {label} must run from 0 to the number of edges, {num_edges} (got "
            f"{'none' if len(pointers) == 0 else f'{pointers[0]} to {pointers[-1]}'})"
        )
    falls = pointers[1:] < pointers[:-1]
    if falls.any():
        row = int(np.argmax(falls))
        raise ValueError(
            f"the row pointers of {label} decrease (row {row} spans {pointers[row]} to "
            f"{pointers[row + 1]})"
        )


def check_range(ids: IntArray, num_nodes: int, label: str) -> None:
    """Raise IndexError if an id is outside [0, num_nodes). The message has the first such id."""
    if ids.size == 0:
        return
    low, high = int(ids.min()), int(ids.max())
    if low >= 0 and high < num_nodes:
        return
    first = int(np.flatnonzero((ids < 0) | (ids >= num_nodes))[0])
    raise IndexError(
        f"{label} holds id {int(ids[first])} at position {first}, but ids run from 0 to "
        f"{num_nodes - 1}"
    )


def distinct(values: Int64Array) -> Int64Array:
    """Return the distinct values of a one-dimensional array, ascending.

    `np.unique` hashes integers from NumPy 2.3 on, and takes 17 times as long for 6,000 integers.
    """
    ordered = np.sort(values)
    kept = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=kept[1:])
    return ordered[kept]


def narrowest_int(limit: int) -> np.dtype[Any]:
    """Return the narrowest of int32 and int64 that holds 0 .. limit."""
    return np.dtype(np.int32 if limit < 2**31 else np.int64)


def checksum(array: Array) -> int:
    """Return the CRC-32 of an array's bytes, in row-major order."""
    crc = 0
    for first in range(0, len(array), _CHECKSUM_ROWS):
        rows = np.ascontiguousarray(array[first : first + _CHECKSUM_ROWS])
        crc = zlib.crc32(bytes_of(rows), crc)
    return crc


def bytes_of(array: Array) -> memoryview:
    """View a contiguous array as its bytes, without a copy."""
    return array.reshape(-1).view(np.uint8).data
