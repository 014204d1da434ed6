"""Hot rows, which batches need most often: their number, their choice and their use."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from khop.data.arrays import to_numbers
from khop.typing import ArrayLike, Int64Array

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(amount: int | str) -> int:
    """Convert an amount of memory to bytes: an integer, or a text such as '512MB' or '1.5 GiB'.

    Units are powers of 1024.

    Raises:
        ValueError: another text, or a negative number.
    """
    if isinstance(amount, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)I?B?\s*", amount.upper())
        if match is None:
            raise ValueError(f"'{amount}' is not a number of bytes: write 512MB, 1.5GB or 1048576")
        amount = int(float(match[1]) * _UNITS[match[2]])
    if amount < 0:
        raise ValueError(f"a number of bytes must not be negative (got {amount})")
    return int(amount)


def rows_in_share(split_ratio: float, num_rows: int) -> int:
    """Convert `split_ratio`, the fraction of hot rows in a table of `num_rows` rows, to a count.

    Raises:
        ValueError: a fraction below 0 or above 1.
    """
    if not 0 <= split_ratio <= 1:
        raise ValueError(f"split_ratio must be between 0 and 1 (got {split_ratio})")
    return round(split_ratio * num_rows)


def rows_in_budget(budget: int | str, num_rows: int, row_bytes: int, num_devices: int = 1) -> int:
    """Return the number of hot rows that fit in a table of at most `budget` bytes per device.

    If not all rows fit, each device also holds the position of each row in the hot part: 4 bytes
    per row of the table. Each device of a group holds its share of the hot rows.

    Args:
        budget: bytes of each device, or a text such as '2GB'.
        num_rows: rows of the table.
        row_bytes: bytes of a row.
        num_devices: devices that share the hot rows.
    """
    bytes_each = parse_bytes(budget)
    if -(-num_rows // num_devices) * row_bytes <= bytes_each:
        return num_rows
    left = bytes_each - 4 * num_rows
    return max(0, min(num_rows, left // row_bytes * num_devices))


def checked_hotness(hotness: ArrayLike, num_rows: int) -> npt.NDArray[np.float64]:
    """Check hotness (the probability that a batch needs each row), and return it as float64.

    Raises:
        ValueError: not one number for each row, or a number is negative, infinite or NaN.
    """
    values = to_numbers(hotness, "hotness")
    if values.shape != (num_rows,):
        raise ValueError(
            f"hotness must hold a number for each of the {num_rows} rows (got shape {values.shape})"
        )
    values = values.astype(np.float64)
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError("hotness holds negative or non-finite values")
    return values


def hottest_rows(hotness: ArrayLike, count: int) -> Int64Array:
    """Return [count] ids of the hottest rows, hottest first. Of equal rows the lower id is first.

    Args:
        hotness: [num_rows] probability that a batch needs each row (`NeighborSampler.sample_prob`),
            or how often it was needed.
        count: number of rows, at most num_rows.
    """
    values = np.asarray(hotness)
    return np.argsort(-values, kind="stable")[:count].astype(np.int64, copy=False)


def expected_share(hotness: ArrayLike, hot_rows: ArrayLike) -> float:
    """Return the expected share of a batch's rows that are hot.

    The hotness of a row is the probability that a batch needs it. A batch's expected number of hot
    rows is the sum of their hotness. Its expected number of rows is the sum over all rows.

    Args:
        hotness: [num_rows], as for `hottest_rows`.
        hot_rows: [n] ids of the hot rows.

    Returns:
        A number from 0 to 1. If no row is ever needed, 0.

    Example:
        >>> expected_share([0.5, 0.25, 0.25], hot_rows=[0])
        0.5
    """
    values = to_numbers(hotness, "hotness").astype(np.float64)
    total = float(values.sum())
    return float(values[np.asarray(hot_rows)].sum()) / total if total > 0 else 0.0
