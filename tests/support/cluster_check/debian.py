"""Programs of Debian's packages, unpacked into a folder: nothing is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SSH = ("openssh-server", "libwrap0")
SLURM = (
    *("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins"),
    *("libmunge2", "libhwloc15", "libnuma1"),
)


def unpack(folder: Path) -> Path:
    """Download and unpack the packages, unless they are there. Return the root folder."""
    root = folder / "root"
    if not (root / "usr/sbin/sshd").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", *SSH, *SLURM], cwd=folder, check=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, root], check=True)
    return root


def libraries(root: Path) -> dict[str, str]:
    """Return the variable with which programs find libraries below `root`."""
    library = root / "usr/lib/x86_64-linux-gnu"
    folders = (library, library / "slurm-wlm", root / "lib/x86_64-linux-gnu")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
