"""Devices by name: GPUs, and devices emulated on the CPU. Imports no torch."""

from __future__ import annotations

import sys
from typing import Any

from khop import _native


def parse_device(device: Any, default_gpu: int | None = None) -> tuple[str, int]:
    """Return kind and number of a device.

    Args:
        device: 'cuda', 'cuda:1' or a `torch.device` of that kind. For tests also 'emulated' or
            'emulated:7': runs a GPU's work on the CPU, in an order that the number determines.
        default_gpu: index of the GPU that 'cuda' means. If None, torch's current one.

    Returns:
        ('cuda', index of the GPU) or ('emulated', seed).

    Raises:
        ValueError: not the name of a device.
    """
    kind, colon, number = str(device).partition(":")
    if kind not in ("cuda", "emulated") or (colon and not number.isdecimal()):
        raise ValueError(f"device must be 'cuda' or 'cuda:<index>' (got {device!r})")
    if number:
        return kind, int(number)
    if kind == "emulated":
        return kind, 0
    return kind, current_gpu() if default_gpu is None else default_gpu


def is_cpu(device: Any) -> bool:
    """Return True for None and for names of the CPU, 'cpu' or `torch.device("cpu")`."""
    kind, colon, number = str(device).partition(":")
    return device is None or (kind == "cpu" and (not colon or number.isdecimal()))


def current_gpu() -> int:
    """Return the index of the GPU that 'cuda' means in this thread: torch's current one.

    Returns 0 if torch is not in the process or can use no GPU. Takes no memory on any GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.current_device())


def full_name(device: Any, default_gpu: int | None = None) -> str:
    """Return a device's name with its number, such as 'cuda:1', for other threads and processes.

    Args:
        device: as for `parse_device`.
        default_gpu: as for `parse_device`.

    Raises:
        ValueError: not the name of a device.
    """
    kind, number = parse_device(device, default_gpu)
    return f"{kind}:{number}"


def check_device(device: Any, what: str) -> tuple[str, int]:
    """Parse a device's name as `parse_device`; check that it exists, without opening it.

    Args:
        device: as for `parse_device`.
        what: what the device is called in error messages.

    Raises:
        ValueError: not the name of a device.
        RuntimeError: khop was built without CUDA, or there is no such GPU; names the cause.
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
    """Open a device.

    With a `stream`, memory comes from torch's caching allocator, so that torch can reuse what khop
    frees. Else it comes from the driver's pool.

    Args:
        device: as for `parse_device`.
        stream: a `torch.cuda.Stream` to work on. If None, a new CUDA stream.

    Raises:
        ValueError: not the name of a device.
        RuntimeError: khop was built without CUDA, or there is no such GPU; names the cause.
    """
    kind, number = check_device(device, "device")
    if kind == "emulated":
        return _native.emulated_device(number)
    torch = sys.modules.get("torch")
    if stream is None or torch is None:
        return _native.cuda_device(number)

    # The device keeps this function, which keeps the stream: nobody else gets it meanwhile.
    def allocate(nbytes: int) -> int:
        return int(torch.cuda.caching_allocator_alloc(nbytes, number, stream))

    return _native.cuda_device(
        number, stream.cuda_stream, allocate, torch.cuda.caching_allocator_delete
    )
