"""First version of each package that khop can use as safely as docs/security.md promises.

With an older version khop refuses only the unsafe operation. Requirements in pyproject cannot
replace this: pip does not enforce extras, and an older torch can train, but cannot read files
safely. Any process. Imports torch only to read its files.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from khop.errors import SecurityError


class Safe(NamedTuple):
    """First safe version of a package, and the effect of a hostile file on earlier ones."""

    version: tuple[int, ...]
    reason: str


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
"""{package's name for pip, or libzmq (which pyzmq's wheels contain): its first safe version}."""


def number_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version text as a tuple: (2, 10, 0) of '2.10.0+cpu'."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def check_safe(package: str, version: str, path: str | os.PathLike[str], instead: str = "") -> None:
    """Check that a package's version reads untrusted files safely, before a file is read.

    Args:
        package: name of the package. If `FIRST_SAFE` does not have it, all versions are safe.
        version: the version that is installed.
        path: the file.
        instead: advice for users who cannot install another version.

    Raises:
        SecurityError: the version is older. The message has the remedy.
    """
    safe = FIRST_SAFE.get(package)
    if safe is not None and number_of(version) < safe.version:
        first = ".".join(map(str, safe.version))
        raise SecurityError(
            f"'{os.fspath(path)}' is not read with {package} {version}: before {first}, "
            f"{safe.reason}. Install '{package}>={first}'{instead and f', or {instead}'}"
        )


def reads_torch_files() -> bool:
    """Return True if torch's version reads files of `torch.save` safely."""
    import torch

    return number_of(torch.__version__) >= FIRST_SAFE["torch"].version


def check_torch(path: str | os.PathLike[str], instead: str) -> None:
    """Raise SecurityError if torch is too old to read a file safely. `instead` is advice."""
    import torch

    check_safe("torch", torch.__version__, path, instead)
