"""Description of machine and software that is needed to judge a figure."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

import khop
from khop import _native
from khop.cores import available_cores
from khop_bench.peers import Peers, version_of

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, caches, memory and system."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cores of this process": available_cores(),
        "caches": _caches(),
        "memory": f"{pages * page / 1e9:.1f} GB",
        "huge pages": _huge_pages(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def describe_device(device: str) -> dict[str, Any]:
    """Describe a device of `Settings.device`.

    Returns:
        `device`: its name. For a GPU also `compute capability`, `device memory`, `multiprocessors`
        and `CUDA`, the versions of runtime and driver.
    """
    if device == "emulated":
        return {"device": "emulated"}
    status = _native.cuda_status()
    gpu = status["gpus"][int(device.partition(":")[2] or 0)]
    versions = [f"{v // 1000}.{v % 1000 // 10}" for v in (status["runtime"], status["driver"])]
    return {
        "device": gpu["name"],
        "compute capability": ".".join(map(str, gpu["capability"])),
        "device memory": f"{gpu['memory'] / 1e9:.1f} GB",
        "multiprocessors": gpu["multiprocessors"],
        "CUDA": f"{versions[0]}, driver for {versions[1]}",
    }


def describe_software(peers: Peers) -> dict[str, Any]:
    """Return versions of khop, Python, torch, PyG, NumPy and each peer, and threads of torch."""
    return {
        "khop": khop.__version__,
        "commit": commit(),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "torch threads": torch.get_num_threads(),
        "PyG": version_of("torch_geometric"),
        "NumPy": version_of("numpy"),
        **peers.versions,
    }


def commit() -> str | None:
    """Return the git commit of khop's source, with '+' if files have changed. Without git, None."""
    source = Path(khop.__file__).resolve().parent
    head = _git(source, "rev-parse", "--short=12", "HEAD")
    # If khop is installed below another repository, that one's commit is not khop's.
    if head is None or _git(source, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return head + ("+" if _git(source, "status", "--porcelain", "--", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    for line in (_read(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _caches() -> str:
    """Return the caches of the first core, such as 'L1 48K, L2 1280K, L3 49152K'."""
    caches = []
    for folder in sorted(_CACHES.glob("index*")):
        if _read(folder / "type") != "Instruction":
            caches.append(f"L{_read(folder / 'level')} {_read(folder / 'size')}")
    return ", ".join(caches) or "unknown"


def _huge_pages() -> str:
    text = _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")) or "[unknown]"
    return text.partition("[")[2].partition("]")[0]


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
