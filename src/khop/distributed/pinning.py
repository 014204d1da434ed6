"""Rings that copies to a GPU are made from without staging."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from khop.channel.ring import RingReader


def pinning(wanted: bool) -> Callable[[RingReader], None] | None:
    """What registers a ring with CUDA; None, with a warning if it is wanted, without a device."""
    if not wanted:
        return None
    if not torch.cuda.is_available():
        warnings.warn("pin_memory=True has no effect: no CUDA device can be used", stacklevel=4)
        return None
    return _pin


def _pin(ring: RingReader) -> None:
    """Registers a ring with CUDA, for as long as it is mapped: copies to a device then need no
    staging.

    Raises:
        RuntimeError: the driver refuses; says with which error, and how large the ring is.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(ring.address, ring.capacity, 0)
    if int(error) != 0:
        raise RuntimeError(
            f"pin_memory=True: cudaHostRegister failed for {ring.capacity} bytes ({error}); a "
            "smaller channel_size (of clients: buffer_size) may do"
        )
    # The ring's memory is unmapped after its finalizers have run.
    unpin = weakref.finalize(ring, _unpin, runtime, ring.address, os.getpid())
    unpin.atexit = False  # the process's registrations end with it


def _unpin(runtime: Any, address: int, owner: int) -> None:
    if os.getpid() == owner:
        runtime.cudaHostUnregister(address)
