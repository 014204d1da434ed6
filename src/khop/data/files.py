"""Files that users name: opened without waiting, and read without running code.

Any process; imports no torch.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

import numpy as np

from khop.typing import Array

_MAGIC = b"\x93NUMPY"


def check_regular(path: str | os.PathLike[str]) -> Path:
    """Check that a path is that of a regular file and return it; links are followed.

    Opening a FIFO would block until a process writes to it.

    Raises:
        OSError: the path does not exist or cannot be accessed, as the system reports it.
        ValueError: it is a FIFO, a folder, a socket or a device.
    """
    path = Path(path)
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"'{path}' is no regular file: khop reads neither pipes nor devices")
    return path


def load_npy(path: str | os.PathLike[str], mmap_mode: Literal["r", "c"] | None = None) -> Array:
    """Load an array of numbers, or of texts, from an .npy file.

    Args:
        path: path of the file.
        mmap_mode: 'r' or 'c' maps the file, see `numpy.load`. If None, it is read.

    Raises:
        OSError, ValueError: no regular file, or not an array; objects are never unpickled.
    """
    path = check_regular(path)
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(
                f"'{path}' cannot be read as an array of numbers: it is not an .npy file"
            )
    try:
        # An ordinary view: indexing a np.memmap costs microseconds a call.
        array: Array = np.load(path, mmap_mode, allow_pickle=False).view(np.ndarray)
    except (ValueError, OverflowError, EOFError) as error:
        # NumPy's message advises to allow pickles.
        reason = str(error)
        if "pickle" in reason or "object" in reason.lower():
            reason = "it holds Python objects, or a header that NumPy does not write for numbers"
        raise ValueError(f"'{path}' cannot be read as an array of numbers: {reason}") from None
    return array
