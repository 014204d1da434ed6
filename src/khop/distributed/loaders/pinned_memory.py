"""Rings that copies to a GPU are made from without staging."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from functools import partial

import torch

from khop.channel.arena import ArenaReader
from khop.distributed.loaders.device_transfer import TargetDevice


def pinning(destination: TargetDevice) -> Callable[[ArenaReader], None] | None:
    """What registers a ring with CUDA; None where nobody but the user copies from it.

    A slot of a ring is written again when the last tensor that looks into it is gone. From
    registered memory a copy with `non_blocking=True` may be made later than that: torch keeps the
    source only where the memory is its own.
    `khop.distributed.loaders.device_transfer.DeviceTransfer` keeps it.
    """
    device = destination.torch_device
    if not destination.pins_rings or device is None:
        return None
    return partial(_pin, device)


def _pin(device: torch.device, ring: ArenaReader) -> None:
    """Registers a ring with CUDA, for all GPUs, as long as it is mapped.

    Raises:
        RuntimeError: the driver refuses; says with which error, and how large the ring is.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # the call would take half a GB of whichever GPU is current
        error = runtime.cudaHostRegister(ring.address, ring.capacity, 0)
    if int(error) != 0:
        _clear_error(device)
        raise RuntimeError(
            f"pin_memory=True: cudaHostRegister failed for {ring.capacity} bytes ({error}); a "
            "smaller channel_size (of clients: buffer_size) may do"
        )
    # The ring's memory is unmapped after its finalizers have run.
    unpin = weakref.finalize(ring, _unpin, device, ring.address, os.getpid())
    unpin.atexit = False  # the process's registrations end with it


def _unpin(device: torch.device, address: int, owner: int) -> None:
    if os.getpid() == owner:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            runtime.cudaHostUnregister(address)


def _clear_error(device: torch.device) -> None:
    """Takes a refused call's error from CUDA, which would report it for the user's next kernel."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device)
