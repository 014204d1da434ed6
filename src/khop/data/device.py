"""Devices by name: GPUs, and those emulated on the CPU. Imports no torch."""

from __future__ import annotations

import sys
from typing import Any

from khop import _native


def parse_device(device: Any) -> tuple[str, int]:
    """Kind and number of a device.

    Args:
        device: 'cuda', 'cuda:1', a `torch.device` of that kind; 'emulated' or 'emulated:7', which
            runs what a GPU would in an order that the number determines, on the CPU, for tests.

    Returns:
        ('cuda', index of the GPU) or ('emulated', seed).

    Raises:
        ValueError: anything else.
    """
    kind, _, number = str(device).partition(":")
    if kind in ("cuda", "emulated") and (number == "" or number.isdecimal()):
        return kind, int(number or 0)
    raise ValueError(f"device must be 'cuda' or 'cuda:<index>' (got {device!r})")


def check_device(device: Any, what: str) -> tuple[str, int]:
    """As `parse_device`; also says whether there is such a device, without opening it.

    Args:
        device: as for `parse_device`.
        what: what the device is called in error messages.

    Raises:
        ValueError: no name of a device.
        RuntimeError: khop was built without CUDA, or there is no such GPU; says which.
    """
    kind, number = parse_device(device)
    if kind == "emulated":
        return kind, number
    status = _native.cuda_status()
    if not status["compiled"]:
        raise RuntimeError(
            f"{what} '{device}' cannot be used: khop was built without CUDA; build it where nvcc is"
        )
    if number >= status["devices"]:
        reason = status["error"] or f"there are {status['devices']} GPUs"
        raise RuntimeError(f"{what} '{device}' cannot be used: {reason}")
    return kind, number


def open_device(device: Any, stream: Any = None) -> _native.Device:
    """Opens a device.

    Memory comes from torch's caching allocator if torch is in the process, else from the driver's
    pool, so that whoever else uses torch there can have what khop has given back.

    Args:
        device: as for `parse_device`.
        stream: a `torch.cuda.Stream` to work on; default: one of the device's own.

    Raises:
        ValueError: no name of a device.
        RuntimeError: khop was built without CUDA, or there is no such GPU; says which.
    """
    kind, number = check_device(device, "device")
    if kind == "emulated":
        return _native.emulated_device(number)
    torch = sys.modules.get("torch")
    if stream is None or torch is None:
        return _native.cuda_device(number)

    def allocate(nbytes: int) -> int:
        return int(torch.cuda.caching_allocator_alloc(nbytes, number, stream))

    return _native.cuda_device(
        number, stream.cuda_stream, allocate, torch.cuda.caching_allocator_delete
    )
