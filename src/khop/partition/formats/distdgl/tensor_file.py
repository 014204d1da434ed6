"""Files of named arrays, as `dgl.data.save_tensors` writes them. Imports no torch.

uint64 magic, uint64 number of arrays, uint64 the same number again
for each: a text, its name; an array
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from khop.partition.formats.distdgl.byte_stream import ByteReader, Tensor, open_writer

_MAGIC = 0xDD5A9FBE3FA2443F


def read_tensors(root: Path, path: str) -> dict[str, Tensor]:
    """Map the arrays of a file of a folder.

    Raises:
        FolderError: the file is missing, damaged, or outside the folder.
    """
    stream = ByteReader(root, path)
    stream.expect(_MAGIC, "the begin of a file of tensors")
    stream.count(least=0)
    return stream.tensors()


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write named arrays, or `Tensor`s, to a new file."""
    with open_writer(path) as stream:
        stream.number(_MAGIC)
        stream.number(len(tensors))
        stream.tensors(tensors)
