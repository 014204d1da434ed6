"""Pickling of objects that have arrays: arrays of mapped files travel as names of the files."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.files import check_regular, mapped_file
from khop.typing import Array


class PicklableByPath:
    """Object whose arrays of mapped files are pickled as the paths of these files.

    The process that unpickles it maps the files again, under the same paths. Arrays in memory
    travel as they are.
    """

    def __getstate__(self) -> dict[str, object]:
        return {name: file_region_of(value) or value for name, value in self.__dict__.items()}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        for name, value in state.items():
            self.__dict__[name] = value.map() if isinstance(value, FileRegion) else value


@dataclass(frozen=True)
class FileRegion:
    """Bytes of a mapped file that an array lies in."""

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
            ValueError: the file has another size here.
        """
        machine = socket.gethostname()
        try:
            size = check_regular(self.path).stat().st_size
        except FileNotFoundError:
            raise FileNotFoundError(
                f"machine {machine} does not see '{self.path}': the input must lie on storage "
                "that all machines share, under one path"
            ) from None
        if size != self.file_bytes:
            raise ValueError(
                f"'{self.path}' has {size:,} bytes on machine {machine}, but {self.file_bytes:,} "
                "where the work was started: the input must lie on storage that all machines share"
            )
        content = np.memmap(self.path, np.uint8, "r")
        array: Array = np.ndarray(self.shape, self.dtype, content, self.offset, self.strides)
        return array


def file_region_of(value: Any) -> FileRegion | None:
    """Return the region of a file that an array lies in. If it lies in memory, None."""
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
    return FileRegion(str(path), size, offset, value.dtype.str, value.shape, value.strides)
