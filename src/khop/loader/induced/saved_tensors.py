"""Tensors that loaders keep in a file, with a fingerprint of their origin. Runs in the trainer.

A file is a sequence of NumPy's arrays: the fingerprint's bytes, then the tensors. Torch's own
format is not used, since few versions of torch read it without running code of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from khop.data.files import check_regular
from khop.loader.iteration.fingerprint import digest
from khop.private_folders import written_whole
from khop.typing import Array


def saved_tensors(
    path: Path | None,
    made_from: Sequence[Any],
    lengths: Mapping[str, int],
    dtype: torch.dtype,
    compute: Callable[[], Mapping[str, Tensor]],
) -> Mapping[str, Tensor]:
    """Return tensors read from a file, or compute them and write the file, whole or not at all.

    Args:
        path: the file. No code in it is run. If None, no file is read or written.
        made_from: values that the tensors are computed from. Their digest is in the file.
        lengths: length of each tensor, by name, in the order of the file.
        dtype: dtype of all tensors.
        compute: returns the tensors, by name.

    Raises:
        ValueError: the file is damaged, or its tensors were computed from other values.
    """
    if path is None:
        return compute()
    fingerprint = digest(made_from).encode()
    if path.exists():
        return _load(path, fingerprint, lengths, dtype)
    tensors = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        for array in (np.frombuffer(fingerprint, np.uint8), *(t.numpy() for t in tensors.values())):
            np.lib.format.write_array(file, array, (1, 0), allow_pickle=False)
    return tensors


def _load(
    path: Path, fingerprint: bytes, lengths: Mapping[str, int], dtype: torch.dtype
) -> dict[str, Tensor]:
    remedy = "remove it, or name another save_dir"
    loaded: dict[str, Tensor] = {}
    with check_regular(path).open("rb") as file:
        try:
            made_from = _read(file, path.stat().st_size).tobytes()
        except (ValueError, EOFError) as error:
            raise ValueError(f"'{path}' is no file of khop's loaders ({error}): {remedy}") from None
        if made_from != fingerprint:
            raise ValueError(f"'{path}' belongs to another graph, or to other options: {remedy}")
        for name, length in lengths.items():
            try:
                loaded[name] = torch.from_numpy(_read(file, path.stat().st_size))
            except (ValueError, EOFError, TypeError) as error:
                raise ValueError(f"'{path}' is damaged ({error}): {remedy}") from None
            if loaded[name].shape != (length,) or loaded[name].dtype != dtype:
                raise ValueError(
                    f"'{path}' is damaged: its '{name}' is not {length} {dtype}: {remedy}"
                )
    return loaded


def _read(file: IO[bytes], size: int) -> Array:
    """Read the next NumPy array of a file of `size` bytes.

    Raises:
        ValueError: its header claims more bytes than the file has.
    """
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another version of arrays")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not 0 <= nbytes <= size - file.tell():
        raise ValueError("an array that is longer than the file, or holds no numbers")
    return np.frombuffer(bytearray(file.read(nbytes)), dtype).reshape(shape)
