"""GLT's helpers for devices. Without a GPU they choose the CPU."""

from __future__ import annotations

import itertools

import torch

from khop.glt.typing import Device

_turn = itertools.count()


def get_available_device(device: Device = None) -> torch.device:
    """Return `device`. If None, return torch's current GPU, or without a GPU the CPU."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def assign_device() -> torch.device:
    """Return one of the machine's GPUs, each call the next one, or the CPU without a GPU."""
    count = torch.cuda.device_count()
    return torch.device("cuda", next(_turn) % count) if count else torch.device("cpu")


def ensure_device(device: torch.device | str | int) -> None:
    """Make a GPU torch's current device. For the CPU, do nothing."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        torch.cuda.set_device(device)
