"""What tests set and ask of the CUDA runtime that they run on instead of NVIDIA's.

Only with an extension built with KHOP_CUDA=fake (`IS_FAKE`).
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

from khop import _native

_library = ctypes.CDLL(_native.__file__)

IS_FAKE = hasattr(_library, "fake_cuda_reset")

MODES = {"lazy": 0, "threads": 1, "eager": 2}
"""When the work of streams is done that are opened from then on: when somebody waits for it, as
soon as a thread of the stream's own can, or before the call returns."""

ERRORS = {
    "cudaErrorInvalidValue": 1,
    "cudaErrorMemoryAllocation": 2,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorMisalignedAddress": 716,
    "cudaErrorLaunchFailure": 719,
}


def runtime() -> ctypes.CDLL:
    """The library with the runtime's functions, those of CUDA's too."""
    return _library


def reset() -> None:
    """Finishes all work, then forgets what was set and counted.

    The calling thread is on device 0 again and has no last error.
    """
    _library.fake_cuda_reset()


def set_options(**options: int) -> None:
    """Sets options by name, until the next `reset`.

    Args:
        options: `mode` (of MODES), `devices` (2), `peers` (1: devices read each other's memory),
            `memory` (bytes of a device, 8 GiB), `multiprocessors` (132), `major` and `minor` (9
            and 0, the compute capability), `ptx` (90: kernels were compiled for capability
            9.0), `runs_kernels` (1; 0: they do nothing, to measure the host),
            `registers_read_only` (1), `lockable` (bytes
            that may be registered at a time; no limit), `pageable_reads_late` (0; 1: pageable
            memory is read when the stream comes so far, as on devices that use the host's page
            tables), `seed` (of the orders in which blocks and threads run), `count_reads` (1:
            bytes of rows that gathers read are counted, by the memory in which they lie).
    """
    for name, value in options.items():
        _library.fake_cuda_set(name.encode(), ctypes.c_int64(value))


def set_mode(mode: str) -> None:
    """When the work of streams is done that are opened from now on: one of MODES."""
    set_options(mode=MODES[mode])


def fail(function: str, nth: int = 1, error: str = "cudaErrorMemoryAllocation") -> None:
    """Makes the n-th call of a function from now on fail, once."""
    _library.fake_cuda_fail(function.encode(), ctypes.c_int64(nth), ERRORS[error])


def lose(device: int = 0, error: str = "cudaErrorIllegalAddress") -> None:
    """Makes the next kernel of a device fail, and all calls and work after it, until `reset`."""
    _library.fake_cuda_lose(device, ERRORS[error])


def finish() -> None:
    """Does everything that streams were asked for, those that were destroyed, too."""
    for device in range(8):
        _library.fake_cuda_finish(device)


def contexts() -> dict[int, str]:
    """Devices of which there is a context, with the call that created it."""
    return {int(device): call for device, call in _report()["contexts"].items()}


def calls(function: str) -> int:
    """How often a function of the runtime was called."""
    return int(_report()["calls"].get(function, 0))


def all_calls() -> dict[str, int]:
    """How often each function of the runtime was called."""
    return {function: int(number) for function, number in _report()["calls"].items()}


def count(counter: str) -> int:
    """What was counted.

    Args:
        counter: `launches`, `kernels_run`, `nanoseconds_in_kernels`,
            `launches_ahead` (which may begin before the kernel before them ends),
            `nanoseconds_in_calls` (kernels that ran meanwhile among them), `waits`,
            `waits_alone` (those with no later work in the stream), `allocations`, `fills`,
            `uploads_pinned`, `uploads_pageable`, `downloads_pinned`, `downloads_pageable`,
            `copies_on_device` or `bytes_copied`. With `count_reads` also `row_bytes_of_device`,
            `row_bytes_of_peers` and `row_bytes_of_host`.
    """
    return int(_report()["counters"].get(counter, 0))


def used_memory(device: int = 0) -> int:
    """Bytes of a device that are allocated."""
    return int(_report()["used"][device])


def violations() -> list[str]:
    """Rules that were broken where no call could say so: queued work that used what was gone."""
    return list(_report()["violations"])


def _report() -> dict[str, Any]:
    size = _library.fake_cuda_report(None, ctypes.c_size_t(0)) + 1024
    text = ctypes.create_string_buffer(size)
    _library.fake_cuda_report(text, ctypes.c_size_t(size))
    return dict(json.loads(text.value))
