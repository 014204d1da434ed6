"""Times of nodes and edges as 64-bit integers that keep their order.

Kernels compare int64 keys. Integer times are their own keys. The key of a floating-point time is
the integer of its bits, with the order of negative numbers reversed: -0.0 and 0.0 share a key.

Keys of integers cannot be compared with keys of floats. If one time attribute is floating-point,
all times, also of seeds, are mapped with `floating=True`.
"""

from __future__ import annotations

import numpy as np

from khop.data.arrays import to_numbers
from khop.typing import Array, ArrayLike, Int64Array

_INT64 = np.iinfo(np.int64)
# Up to here float64 represents every integer exactly.
_EXACT = 2**53


def is_floating(values: ArrayLike) -> bool:
    """Return True if times (`values`) have a floating-point dtype."""
    return to_numbers(values, "time").dtype.kind == "f"


def time_keys(values: ArrayLike, label: str = "time", floating: bool | None = None) -> Int64Array:
    """Map times to int64 keys: `key(a) < key(b)` if and only if `a < b`.

    Args:
        values: [n] integers or floats of any width (NumPy array, CPU tensor or sequence).
        label: name of the times in error messages.
        floating: True for keys that compare with floating-point times. If None, by the dtype.

    Returns:
        [n] int64, `values` itself if they are int64 and `floating` is not True.

    Raises:
        TypeError: booleans, or floats with `floating=False`.
        ValueError: not one dimension, NaN, or an integer that int64 (or, with `floating`, float64)
            does not hold.
    """
    times = _checked(values, label)
    if times.dtype.kind == "f":
        if floating is False:
            raise TypeError(f"{label} is floating-point, but the other times are integers")
        return _float_keys(times)
    if times.dtype == np.uint64:
        _refuse(times > np.uint64(_INT64.max), times, label, "does not fit int64")
    whole = np.ascontiguousarray(times, dtype=np.int64)
    if not floating:
        return whole
    inexact = (whole > _EXACT) | (whole < -_EXACT)
    _refuse(inexact, whole, label, "is too large to be compared with floating-point times exactly")
    return _float_keys(whole)


def seed_time_keys(values: ArrayLike, floating: bool, label: str = "input_time") -> Int64Array:
    """Map times of seeds to keys that can be compared with a graph's keys by `<=`.

    Args:
        values: [n] integers or floats.
        floating: True if the graph's keys are of floating-point times. Otherwise floats are rounded
            down, which changes no comparison except with times of -2^63.
        label: name of the times in error messages.

    Returns:
        [n] int64.

    Raises:
        TypeError, ValueError: as `time_keys`.
    """
    times = _checked(values, label)
    if floating or times.dtype.kind != "f":
        return time_keys(times, label, floating)
    whole = np.floor(times.astype(np.float64))
    # 2^63 itself is a float64, but no int64.
    keys = np.clip(whole, _INT64.min, np.nextafter(2.0**63, 0)).astype(np.int64)
    keys[whole >= 2.0**63] = _INT64.max
    return keys


def _checked(values: ArrayLike, label: str) -> Array:
    times = to_numbers(values, label)
    if times.ndim != 1:
        raise ValueError(f"{label} must have one dimension (got shape {times.shape})")
    if times.dtype.kind == "b":
        raise TypeError(f"{label} must hold integers or floats (got dtype 'bool')")
    if times.dtype.kind == "f":
        _refuse(np.isnan(times), times, label, "is not a time")
    return times


def _float_keys(times: Array) -> Int64Array:
    bits = (times.astype(np.float64) + 0.0).view(np.int64)  # -0.0 + 0.0 is 0.0
    return np.where(bits < 0, bits ^ _INT64.max, bits)


def _refuse(bad: Array, times: Array, label: str, why: str) -> None:
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(f"{label} holds {times[first]} at position {first}, which {why}")
