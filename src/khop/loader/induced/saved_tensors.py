"""Tensors that loaders keep in a file beside what they were computed from. Runs in the trainer.

A file is a sequence of NumPy's arrays: the fingerprint's bytes, then the tensors. torch's own files
are read without running code by few of its versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from khop.data.files import check_regular
from khop.private_folders import written_whole
from khop.typing import Array


def load_tensors(
    path: Path, digest: str, lengths: Mapping[str, tuple[int, torch.dtype]]
) -> dict[str, Tensor] | None:
    """Return the tensors of a file that `save_tensors` wrote; None if there is no file.

    Args:
        path: the file. No code in it is run.
        digest: fingerprint of what the tensors must have been computed from.
        lengths: length and dtype of each tensor, by name, in the order of the file.

    Raises:
        ValueError: the file holds something else.
    """
    if not path.exists():
        return None
    remedy = "remove it, or name another save_dir"
    found: dict[str, Tensor] = {}
    with check_regular(path).open("rb") as file:
        try:
            made_from = _read(file, path.stat().st_size).tobytes()
        except (ValueError, EOFError) as error:
            raise ValueError(f"'{path}' is no file of khop's loaders ({error}): {remedy}") from None
        if made_from != digest.encode():
            raise ValueError(f"'{path}' belongs to another graph, or to other options: {remedy}")
        for name, (length, dtype) in lengths.items():
            try:
                found[name] = torch.from_numpy(_read(file, path.stat().st_size))
            except (ValueError, EOFError, TypeError) as error:
                raise ValueError(f"'{path}' is damaged ({error}): {remedy}") from None
            if found[name].shape != (length,) or found[name].dtype != dtype:
                raise ValueError(
                    f"'{path}' is damaged: its '{name}' is not {length} {dtype}: {remedy}"
                )
    return found


def _read(file: IO[bytes], size: int) -> Array:
    """Read the next array; the file's size bounds its memory."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another version of arrays")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not 0 <= nbytes <= size - file.tell():
        raise ValueError("an array that is longer than the file, or holds no numbers")
    return np.frombuffer(bytearray(file.read(nbytes)), dtype).reshape(shape)


def save_tensors(path: Path, digest: str, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors for `load_tensors`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made_from = np.frombuffer(digest.encode(), np.uint8)
    with written_whole(path) as file:
        for array in (made_from, *(tensor.numpy() for tensor in tensors.values())):
            np.lib.format.write_array(file, array, (1, 0), allow_pickle=False)
