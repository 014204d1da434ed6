"""Encodings: floating-point rows that are stored in fewer bits than float32.

| Encoding | Stored | Numbers |
|---|---|---|
| bfloat16 | 2 bytes | float32's range, 8 bits of precision |
| float16 | 2 bytes | up to 65,504, 11 bits of precision |
| float8_e4m3fn | 1 byte | up to 448, 4 bits of precision, no infinity |
| int8 | 1 byte | 256 numbers at equal distances, from the least to the largest of a column |

Values are rounded to the nearest number, and ties to the even one. A number of int8 is
code * scale + zero in float32. Each column has a scale and a zero. The copy that gathers rows
widens them to float32. Used by any process. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from khop import _native
from khop.data.arrays import bfloat16_as_float32, storage_dtype
from khop.log import shown
from khop.typing import Array, Int64Array, IntArray

STORED = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float8_e4m3fn": "uint8",
    "int8": "int8",
}
"""{name of an encoding: dtype of the stored values}."""

LARGEST = {"float16": 65_504.0, "float8_e4m3fn": 448.0}
"""{name of an encoding: its largest number}, where float32 has larger ones."""

_CODES = 255  # steps between int8's least and largest number


class Encoding:
    """Encoding of the rows of an attribute.

    Args:
        name: one of `STORED`.
        scale: [values per row] float32, of int8.
        zero: [values per row] float32, of int8.

    Example:
        >>> halves = Encoding("bfloat16")
        >>> stored, _ = halves.encode(np.array([[1.0, 0.1]], np.float32))
        >>> halves.decode(stored).tolist()
        [[1.0, 0.10009765625]]
    """

    def __init__(self, name: str, scale: Array | None = None, zero: Array | None = None) -> None:
        self.name = name
        self.dtype = STORED[name]
        """Dtype of the stored values."""
        self.scale, self.zero = scale, zero

    @classmethod
    def of_range(cls, low: Array, high: Array) -> Encoding:
        """Return int8 for columns with values from `low` to `high`, each [values per row] float32.

        Errors are at most half a step, (high - low) / 510, besides float32's own rounding. If a
        column has values on both sides of 0, or 0 itself, then 0 is exact.
        """
        wide = high.astype(np.float64) - low
        scale = (wide / _CODES).astype(np.float32)
        step = np.where(scale > 0, scale, np.float32(1)).astype(np.float64)
        # The code of 0. Rounding it moves the numbers by half a step at most.
        code = np.clip(np.rint(-128 - low / step), -128, 127).astype(np.float32)
        zero = (low + 128.0 * scale).astype(np.float32)
        has_zero = (low <= 0) & (high >= 0)
        zero = np.where(has_zero, -(code * scale), zero).astype(np.float32)
        return cls("int8", scale, zero)

    @classmethod
    def read(
        cls, name: str, dtype: str, parameters: Mapping[str, Any], num_values: int
    ) -> Encoding:
        """Return the encoding that meta.json describes.

        Args:
            name: name of the encoding.
            dtype: dtype of the stored values.
            parameters: for int8, {'scale': numbers, 'zero': numbers}, else {}.
            num_values: values per row.

        Raises:
            ValueError: an unknown encoding, or parameters that it cannot have.
        """
        if STORED.get(name) != dtype:
            raise ValueError(
                f"has encoding {shown(name)} of {shown(dtype)}: this khop reads {', '.join(STORED)}"
            )
        keys = {"scale", "zero"} if name == "int8" else set()
        if parameters.keys() != keys:
            raise ValueError(f"has parameters {shown(sorted(parameters))} of encoding {name}")
        if not keys:
            return cls(name)
        return cls(name, *(_numbers(parameters, key, num_values) for key in ("scale", "zero")))

    @property
    def parameters(self) -> dict[str, list[float]]:
        """Return the parameters for meta.json."""
        if self.scale is None or self.zero is None:
            return {}
        return {"scale": self.scale.tolist(), "zero": self.zero.tolist()}

    def encode(self, values: Array, out: Array | None = None) -> tuple[Array, int]:
        """Encode rows.

        Args:
            values: [n, *shape] float32.
            out: [n, *shape] of the stored dtype. If None, a new array.

        Returns:
            The stored rows, and the position of the first value that has no number in the
            encoding, in row-major order, or -1.
        """
        if out is None:
            out = np.empty(values.shape, storage_dtype(self.dtype))
        values = np.ascontiguousarray(values)
        return out, _native.encode(self.name, values, out, self.scale, self.zero)

    def gather(
        self,
        table: Array,
        rows: IntArray | None,
        out: Array,
        positions: Int64Array | None = None,
        num_threads: int = 1,
    ) -> None:
        """Gather stored rows as float32. For arguments and errors see `_native.gather`."""
        if not table.flags.aligned:  # a mapped array may begin at any byte of its file
            table = bytes_of_rows(table)
        _native.decode(self.name, table, rows, out, positions, num_threads, self.scale, self.zero)

    def decode(self, rows: Array) -> Array:
        """Return stored rows as float32."""
        out = np.empty(rows.shape, np.float32)
        self.gather(np.ascontiguousarray(rows), None, out)
        return out


def _numbers(parameters: Mapping[str, Any], key: str, count: int) -> Array:
    values = parameters[key]
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"has no '{key}' for each of {count} columns")
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        raise ValueError(f"has a '{key}' that is no number")
    with np.errstate(over="ignore"):
        numbers = np.array(values, np.float32)
    if not np.isfinite(numbers).all() or (key == "scale" and (numbers < 0).any()):
        raise ValueError(f"has a '{key}' that is out of range")
    return numbers


def as_float32(rows: Array, dtype: str, encoding: Encoding | None = None) -> Array:
    """Convert rows of a floating-point dtype, or encoded ones, to contiguous float32."""
    if encoding is not None:
        return encoding.decode(rows)
    if dtype == "bfloat16":
        return bfloat16_as_float32(rows)
    with np.errstate(over="ignore"):  # beyond float32's range, as in PyTorch
        return np.ascontiguousarray(rows, np.float32)


def bytes_of_rows(rows: Array) -> Array:
    """View contiguous rows as [num_rows, bytes per row]."""
    width = rows.dtype.itemsize * math.prod(rows.shape[1:])
    return rows.reshape(-1).view(np.uint8).reshape(len(rows), width)


def encoding_name(dtype: object, known: Sequence[str] = (*STORED, "float32")) -> str:
    """Return the name of an encoding, or 'float32', for a dtype of torch or NumPy, or a name.

    'float8' stands for 'float8_e4m3fn'.

    Raises:
        ValueError: there is no such encoding.
    """
    name = np.dtype(dtype).name if isinstance(dtype, type) else str(dtype)
    name = name.removeprefix("torch.")
    name = "float8_e4m3fn" if name == "float8" else name
    if name not in known:
        raise ValueError(
            f"features can be stored as bfloat16, float16, int8, float8 or float32 (got {dtype!r})"
        )
    return name
