"""First versions of packages with which khop keeps what docs/security.md promises.

What a package's older versions would break is refused where it is used, since extras of pyproject
are not enforced, and torch is supported from an older version on than its files can be read with.
Any process; imports no torch of its own.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from khop.errors import SecurityError


class Safe(NamedTuple):
    """First version of a package that is safe, and what earlier ones do with a hostile file."""

    version: tuple[int, ...]
    why: str


FIRST_SAFE = {
    "numpy": Safe((1, 24), "headers of arrays may have any length"),
    "pyarrow": Safe((14, 0, 1), "Parquet files can run code (CVE-2023-47248)"),
    "pyyaml": Safe((5, 4), "YAML can run code (CVE-2020-14343)"),
    "libzmq": Safe((4, 3, 3), "strangers can fill a server's memory (CVE-2021-20235)"),
    "torch": Safe(
        (2, 10),
        "a file can run code or damage memory, weights_only or not (CVE-2025-32434, "
        "CVE-2026-24747)",
    ),
}
"""By name as pip knows it. Of libzmq, which pyzmq's wheels hold, and not pip."""


def number_of(version: str) -> tuple[int, ...]:
    """Return a version's numbers: (2, 10, 0) of '2.10.0+cpu'."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in release[0].split(".")) if release else ()


def check_safe(package: str, version: str, path: str | os.PathLike[str], instead: str = "") -> None:
    """Refuse to read a file with a version of a package that is not safe.

    Args:
        package: its name; one that `FIRST_SAFE` does not have is safe.
        version: the one that is installed.
        path: the file.
        instead: what else to do than to install another version.

    Raises:
        SecurityError: the version is older; says what to do.
    """
    safe = FIRST_SAFE.get(package)
    if safe is not None and number_of(version) < safe.version:
        first = ".".join(map(str, safe.version))
        raise SecurityError(
            f"'{os.fspath(path)}' is not read with {package} {version}: before {first}, "
            f"{safe.why}. Install '{package}>={first}'{instead and f', or {instead}'}"
        )


def reads_torch_files() -> bool:
    """Return True if torch's version is one with which files of `torch.save` are read."""
    import torch

    return number_of(torch.__version__) >= FIRST_SAFE["torch"].version


def check_torch(path: str | os.PathLike[str], instead: str) -> None:
    """Refuse to read a file of `torch.save` with a torch that is not safe; see `check_safe`."""
    import torch

    check_safe("torch", torch.__version__, path, instead)
