"""GLT's helpers for files, ports, random numbers, checkpoints and dictionaries."""

from __future__ import annotations

import atexit
import os
import random
import socket
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from khop.data.files import load_torch
from khop.data.hot_rows import parse_bytes

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Bytes of each unit: powers of two, as in GLT."""

parse_size = parse_bytes

_K = TypeVar("_K")
_T = TypeVar("_T")


def ensure_dir(dir_path: str | os.PathLike[str]) -> None:
    """Make a folder and its parents if they do not exist."""
    Path(dir_path).mkdir(parents=True, exist_ok=True)


def get_free_port(host: str = "localhost") -> int:
    """Return a port at which nothing listens now. Another process may take it at any time."""
    with socket.socket() as bound:
        bound.bind((host, 0))
        port: int = bound.getsockname()[1]
    return port


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's default generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of all devices


def merge_dict(in_dict: Mapping[_K, _T], out_dict: dict[_K, list[_T]]) -> None:
    """Append each value of `in_dict` to the list of its key in `out_dict`."""
    for key, value in in_dict.items():
        out_dict.setdefault(key, []).append(value)


def count_dict(in_dict: Mapping[_K, Sized], out_dict: dict[_K, list[int]], target_len: int) -> None:
    """Append the length of each value to its key's list, after zeros up to the wanted length.

    Args:
        in_dict: {key: values}.
        out_dict: {key: counts}, changed in place.
        target_len: length of the lists afterwards.
    """
    for key, values in in_dict.items():
        counts = out_dict.setdefault(key, [])
        counts += [0] * (target_len - 1 - len(counts))
        counts.append(len(values))


def _checkpoint(ckpt_dir: str | os.PathLike[str], ckpt_seq: int) -> Path:
    return Path(ckpt_dir) / f"model_seq_{ckpt_seq}.ckpt"


def save_ckpt(
    ckpt_seq: int,
    ckpt_dir: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    epoch: float = 0,
) -> None:
    """Save a model's and optimizer's state, and the epoch, as `model_seq_<ckpt_seq>.ckpt`."""
    ensure_dir(ckpt_dir)
    states = {"seq": ckpt_seq, "epoch": epoch, "model_state_dict": model.state_dict()}
    if optimizer is not None:
        states["optimizer_state_dict"] = optimizer.state_dict()
    torch.save(states, _checkpoint(ckpt_dir, ckpt_seq))


def load_ckpt(
    ckpt_seq: int,
    ckpt_dir: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
) -> float:
    """Load the state that `save_ckpt` saved into a model and its optimizer.

    No pickled code is run. Return the saved epoch, or -1 without a file.
    """
    file = _checkpoint(ckpt_dir, ckpt_seq)
    if not file.exists():
        return -1
    states = load_torch(file, "read a checkpoint of your own by torch.load")
    model.load_state_dict(states["model_state_dict"])
    if optimizer is not None:
        optimizer.load_state_dict(states["optimizer_state_dict"])
    epoch: float = states["epoch"]
    return epoch


class CastMixin:
    """Base class with `cast`, which makes an object of a value, a tuple or a dictionary."""

    @classmethod
    def cast(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object of this class from arguments, or from one tuple or dictionary of them.

        None, and an object of this class, are returned unchanged.
        """
        if len(args) == 1 and not kwargs:
            (value,) = args
            if value is None or isinstance(value, cls):
                return value
            if isinstance(value, (tuple, list)):
                return cls(*value)
            if isinstance(value, dict):
                return cls(**value)
        return cls(*args, **kwargs)


def singleton(cls: Callable[[], _T]) -> Callable[[], _T]:
    """Return a function that makes one object of a class, and returns it at every call."""
    made: list[_T] = []

    def get() -> _T:
        if not made:
            made.append(cls())
        return made[0]

    return get


class _ExitStatus:
    def __init__(self) -> None:
        self._is_ending = False
        atexit.register(self._end)

    def _end(self) -> None:
        self._is_ending = True

    def __bool__(self) -> bool:
        return self._is_ending


python_exit_status = _ExitStatus()
"""True once Python is about to end."""
