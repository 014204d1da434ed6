"""Registration of arenas with CUDA, for copies to a GPU without staging. Runs in trainers."""

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
    """Return a function that registers an arena with CUDA; None if the loader copies to no GPU.

    A slot of an arena is reused when its last tensor is gone. A copy from registered memory with
    `non_blocking=True` may run later than that: torch keeps the source only if the memory is
    torch's. `khop.distributed.loaders.device_transfer.DeviceTransfer` keeps it instead.
    """
    device = destination.torch_device
    if not destination.pins_rings or device is None:
        return None
    return partial(_pin, device)


def _pin(device: torch.device, arena: ArenaReader) -> None:
    """Register an arena with CUDA, for all GPUs, as long as it is mapped.

    Raises:
        RuntimeError: the driver refuses; the message has its error and the size of the arena.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # the call would take half a GB of whichever GPU is current
        error = runtime.cudaHostRegister(arena.address, arena.capacity, 0)
    if int(error) != 0:
        _clear_error(device)
        raise RuntimeError(
            f"pin_memory=True: cudaHostRegister failed for {arena.capacity} bytes ({error}); a "
            "smaller buffer_size may do"
        )
    # The arena's memory is unmapped after its finalizers have run.
    unpin = weakref.finalize(arena, _unpin, device, arena.address, os.getpid())
    unpin.atexit = False  # registrations end with the process


def _unpin(device: torch.device, address: int, owner: int) -> None:
    if os.getpid() == owner:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            runtime.cudaHostUnregister(address)


def _clear_error(device: torch.device) -> None:
    """Clear the error of a failed call; CUDA would report it for the user's next kernel."""
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device=device)
