"""Tensors that loaders keep in a file beside what they were computed from. Runs in the trainer."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from khop.private_folders import written_whole

_DIGEST = "made_from"


def load_tensors(
    path: Path, digest: str, lengths: Mapping[str, tuple[int, torch.dtype]]
) -> dict[str, Tensor] | None:
    """Return the tensors of a file that `save_tensors` wrote; None if there is no file.

    Args:
        path: the file. No code in it is run.
        digest: fingerprint of what the tensors must have been computed from.
        lengths: length and dtype of each tensor, by name.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.exists():
        return None
    remedy = "remove it, or name another save_dir"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ValueError(f"'{path}' is no file of khop's loaders ({error}): {remedy}") from None
    found = content if isinstance(content, dict) else {}
    if found.get(_DIGEST) != digest:
        raise ValueError(f"'{path}' belongs to another graph, or to other options: {remedy}")
    for name, (length, dtype) in lengths.items():
        value = found.get(name)
        if not isinstance(value, Tensor) or value.shape != (length,) or value.dtype != dtype:
            raise ValueError(f"'{path}' is damaged: its '{name}' is not {length} {dtype}: {remedy}")
    return {name: found[name] for name in lengths}


def save_tensors(path: Path, digest: str, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors for `load_tensors`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        torch.save({_DIGEST: digest, **tensors}, file)
