"""State of objects that go to another process or machine: mapped files go by name.

Any process; imports no torch.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.files import check_regular, mapped_file
from khop.typing import Array


class Carried:
    """Object whose arrays of mapped files are, where it is pickled, names of these files.

    They are mapped again where it is read, and must be there under the same path. Arrays in memory
    travel as they are.
    """

    def __getstate__(self) -> dict[str, Any]:
        state = {}
        for name, value in self.__dict__.items():
            place = place_of(value)
            state[name] = value if place is None else place
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            self.__dict__[name] = value.map() if isinstance(value, Place) else value


@dataclass(frozen=True)
class Place:
    """Place of an array in a file that is mapped."""

    path: str
    file_bytes: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def map(self) -> Array:
        """Map the array.

        Raises:
            FileNotFoundError: this machine does not see the file.
            ValueError: it has another size here.
        """
        machine = socket.gethostname()
        try:
            found = check_regular(self.path).stat().st_size
        except FileNotFoundError:
            raise FileNotFoundError(
                f"machine {machine} does not see '{self.path}': the input must lie on storage "
                "that all machines share, under one path"
            ) from None
        if found != self.file_bytes:
            raise ValueError(
                f"'{self.path}' has {found:,} bytes on machine {machine}, but {self.file_bytes:,} "
                "where the work was started: the input must lie on storage that all machines share"
            )
        content = np.memmap(self.path, np.uint8, "r")
        array: Array = np.ndarray(self.shape, self.dtype, content, self.offset, self.strides)
        return array


def place_of(value: Any) -> Place | None:
    """Return where an array lies; None if it is in memory, or no array."""
    if not isinstance(value, np.ndarray) or value.size == 0:
        return None
    mapped = mapped_file(value)
    # What a private mapping ("c") holds may be in no file.
    if mapped is None or mapped.filename is None or mapped.mode not in ("r", "r+"):
        return None
    path = Path(mapped.filename).resolve()
    first, begin = (array.__array_interface__["data"][0] for array in (value, mapped))
    offset = mapped.offset + first - begin
    size = path.stat().st_size
    return Place(str(path), size, offset, value.dtype.str, value.shape, value.strides)
