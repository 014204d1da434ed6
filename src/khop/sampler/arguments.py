"""Checks of samplers' arguments, before anything is drawn. Imports no torch."""

from __future__ import annotations

import reprlib
from typing import Any


def check_request(index: Any, kind: type) -> None:
    """Raise TypeError unless a sampler's input has PyG's form.

    Args:
        index: what the caller passed.
        kind: PyG's `NodeSamplerInput` or `EdgeSamplerInput`.
    """
    if not isinstance(index, kind):
        raise TypeError(
            f"a sampler takes a torch_geometric.sampler.{kind.__name__} (got "
            f"{type(index).__name__}: {reprlib.repr(index)})"
        )


def check_key_part(name: str, value: Any) -> None:
    """Check that a `seed` or `stream` is None or an integer of 64 bits, not negative.

    Raises:
        TypeError: not an integer.
        ValueError: an integer outside [0, 2^64).
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer (got {value!r})")
    if not 0 <= value < 2**64:
        raise ValueError(f"{name} must lie in [0, 2^64) (got {value})")
