"""GLT's helpers for devices; without a GPU they choose the CPU."""

from __future__ import annotations

import itertools
from typing import Any

import torch

_turn = itertools.count()


def get_available_device(device: Any = None) -> torch.device:
    """Return a device: the given one, else torch's current GPU, else the CPU."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def assign_device() -> torch.device:
    """Return the machine's GPUs in turn, call by call; the CPU without one."""
    count = torch.cuda.device_count()
    return torch.device("cuda", next(_turn) % count) if count else torch.device("cpu")


def ensure_device(device: Any) -> None:
    """Make a GPU torch's current one; nothing happens for the CPU."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        torch.cuda.set_device(device)
