"""Warning for loaders with several samplers on one GPU without MPS. Run by trainers."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path


def warn_of_shared_gpus(devices: Sequence[str | None], is_here: bool, stacklevel: int) -> None:
    """Warn if several samplers of a loader work on the same GPU.

    A GPU runs the kernels of one process at a time, unless NVIDIA's Multi-Process Service (MPS)
    runs them for all.

    Args:
        devices: full name of each sampler's device, or None for the CPU.
        is_here: the samplers run on this machine, where an MPS can be detected.
        stacklevel: as in `warnings.warn`, counted from the caller.
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
    """Return whether an MPS serves the children of this process: its control pipe exists."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return Path(folder, "control").exists()
