"""A warning for loaders whose samplers would take turns on a GPU."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path


def warn_of_shared_gpus(devices: Sequence[str | None], is_here: bool, stacklevel: int) -> None:
    """Warns if several samplers of a loader are to work on the same GPU.

    Kernels of several processes run one process after the other, unless NVIDIA's Multi-Process
    Service (MPS) runs them for all.

    Args:
        devices: full name of each sampler's device; None: the CPU.
        is_here: whether the samplers run on this machine, where an MPS would be seen.
        stacklevel: as of `warnings.warn`, from the caller.
    """
    counts = Counter(device for device in devices if device is not None)
    shared = {d: n for d, n in counts.items() if d.startswith("cuda") and n > 1}
    if not shared or (is_here and has_mps()):
        return
    listed = ", ".join(f"{count} on '{device}'" for device, count in shared.items())
    warnings.warn(
        f"several samplers work on the same GPU ({listed}): without MPS a GPU runs the kernels of "
        "one process at a time, and each process takes about 0.5 GB of its memory. Pass one "
        "sampler a GPU (num_workers; worker_concurrency keeps several batches in flight), or start "
        "MPS; see docs/devices.md",
        stacklevel=stacklevel + 1,
    )


def has_mps() -> bool:
    """Whether an MPS serves the processes that this one starts: its control pipe is there."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return Path(folder, "control").exists()
