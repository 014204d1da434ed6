"""Devices by name: GPUs, and devices emulated on the CPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from khop import _native

if TYPE_CHECKING:
    import torch


def parse_device(device: object, default_gpu: int | None = None) -> tuple[str, int]:
    """Return type and index of a device.

    Args:
        device: 'cuda', 'cuda:1' or a `torch.device` of CUDA. For tests also 'emulated' or
            'emulated:7': a GPU's work runs on the CPU, in an order that the seed 7 determines.
        default_gpu: index of the GPU that 'cuda' means. If None, torch's current one.

    Returns:
        ('cuda', index of the GPU) or ('emulated', seed).

    Raises:
        ValueError: not the name of a device.
    """
    name, colon, index = str(device).partition(":")
    if name not in ("cuda", "emulated") or (colon and not index.isdecimal()):
        raise ValueError(f"device must be 'cuda' or 'cuda:<index>' (got {device!r})")
    if index:
        return name, int(index)
    if name == "emulated":
        return name, 0
    return name, current_gpu() if default_gpu is None else default_gpu


def is_cpu(device: object) -> bool:
    """Return True for None and for names of the CPU: 'cpu' or `torch.device("cpu")`."""
    name, colon, index = str(device).partition(":")
    return device is None or (name == "cpu" and (not colon or index.isdecimal()))


def current_gpu() -> int:
    """Return the index of torch's current GPU in this thread, without taking memory on any GPU.

    If torch is not in the process, or can use no GPU, 0.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.current_device())


def full_name(device: object, default_gpu: int | None = None) -> str:
    """Return a device's name with its index, such as 'cuda:1', for other threads and processes.

    Arguments and errors: see `parse_device`.
    """
    return ":".join(map(str, parse_device(device, default_gpu)))


def check_device(device: object, label: str) -> tuple[str, int]:
    """Parse a device's name as `parse_device`, and check that it exists, without opening it.

    Args:
        device: as for `parse_device`.
        label: name of the device in error messages.

    Raises:
        ValueError: not the name of a device.
        RuntimeError: khop was built without CUDA, or there is no such GPU. States the cause.
    """
    name, index = parse_device(device)
    if name == "emulated":
        return name, index
    status = _native.cuda_status()
    if not status["compiled"]:
        raise RuntimeError(
            f"{label} '{device}' cannot be used: khop was built without CUDA; build it where nvcc "
            "is"
        )
    if index >= status["devices"]:
        reason = status["error"] or f"there are {status['devices']} GPUs"
        raise RuntimeError(f"{label} '{device}' cannot be used: {reason}")
    return name, index


def open_device(device: object, stream: torch.cuda.Stream | None = None) -> _native.Device:
    """Open a device and return khop's handle of it, by which kernels run there.

    With a `stream`, memory comes from torch's caching allocator, so that torch can reuse what khop
    frees. Else it comes from the driver's pool.

    Args:
        device: as for `parse_device`.
        stream: a `torch.cuda.Stream` to work on. If None, a new CUDA stream.

    Raises:
        ValueError, RuntimeError: as `check_device`.
    """
    name, index = check_device(device, "device")
    if name == "emulated":
        return _native.emulated_device(index)
    torch = sys.modules.get("torch")
    if stream is None or torch is None:
        return _native.cuda_device(index)

    # The device keeps this function, which keeps the stream: torch does not hand it out again.
    def allocate(nbytes: int) -> int:
        return int(torch.cuda.caching_allocator_alloc(nbytes, index, stream))

    return _native.cuda_device(
        index, stream.cuda_stream, allocate, torch.cuda.caching_allocator_delete
    )
