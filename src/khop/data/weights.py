"""Checks of edge weights, before tables are made of them (`_native.weight_table`)."""

from __future__ import annotations

import numpy as np

from khop.data.arrays import to_numbers
from khop.typing import Array, ArrayLike


def weight_values(values: ArrayLike, label: str = "weights") -> Array:
    """Check edge weights, and return them in a dtype that the kernels read.

    Args:
        values: [num_edges] numbers of any dtype.
        label: name of the weights in error messages.

    Returns:
        [num_edges] float32 or float64, contiguous.

    Raises:
        ValueError: not one dimension, or a weight that is negative, infinite or NaN.
    """
    weights = to_numbers(values, label)
    if weights.ndim != 1:
        raise ValueError(f"{label} must have one dimension (got shape {weights.shape})")
    if weights.dtype not in (np.float32, np.float64):
        narrow = weights.dtype.itemsize < 4
        weights = weights.astype(np.float32 if narrow else np.float64)
    # Written so that NaN fails.
    if len(weights) and not (weights.min() >= 0 and weights.max() < np.inf):
        first = int(np.argmin((weights >= 0) & (weights < np.inf)))
        raise ValueError(
            f"{label} holds {weights[first]} at position {first}: weights must be finite and not "
            "negative"
        )
    return np.ascontiguousarray(weights)
