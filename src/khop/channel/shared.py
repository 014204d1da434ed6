"""Read-only arrays shared by several processes: written once into a memfd, mapped by each.

Used by trainers, samplers, receivers and graph servers. Imports no torch. The memory has an 8-byte
length, a `Layout` in JSON of this length, and a `Record` at the next multiple of 64 bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import numpy as np

from khop.channel.arena import create_memory, map_memory
from khop.channel.layout import ArrayLayout, Layout, Record, read_record
from khop.channel.message import check_booleans
from khop.errors import ProtocolError
from khop.typing import Array

_ALIGNMENT = 64
_MAX_HEADER = 1 << 20
_LENGTH = struct.Struct("<Q")


def share(arrays: Mapping[str, Array]) -> int:
    """Copy arrays into a new memfd, and return its descriptor.

    The caller passes it to other processes and closes it.
    """
    described = [ArrayLayout(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    layout = Layout(0, described, [])
    header = json.dumps(layout.to_json()).encode()
    record, begin = Record(layout, []), _record_offset(len(header))
    memory = create_memory(begin + record.nbytes, "khop-shared")
    mapped = memoryview(map_memory(memory))
    mapped[: _LENGTH.size + len(header)] = _LENGTH.pack(len(header)) + header
    written = record.write(mapped[begin : begin + record.nbytes])
    for name, array in arrays.items():
        np.copyto(written[name], array)
    return memory


def read_shared(descriptor: int) -> dict[str, Array]:
    """Map the arrays of a memfd that `share` wrote, by name. They outlive the descriptor.

    Raises:
        ProtocolError: the memory is malformed.
    """
    return read_arrays(np.frombuffer(map_memory(descriptor), np.uint8))


def read_arrays(raw: Array) -> dict[str, Array]:
    """Return views of the arrays, by name, in memory that `share` wrote, `raw` [nbytes] uint8."""
    if len(raw) < _LENGTH.size:
        raise ProtocolError(f"shared memory of {len(raw)} bytes holds no header")
    (length,) = _LENGTH.unpack_from(raw.data)
    if length > min(_MAX_HEADER, len(raw) - _LENGTH.size):
        raise ProtocolError(f"a header of {length} bytes does not fit its shared memory")
    layout = Layout.from_text(raw[_LENGTH.size : _LENGTH.size + length].tobytes())
    received = read_record(raw[_record_offset(length) :], {layout.id: layout})
    for array in received.arrays:
        if array.dtype == np.bool_:
            check_booleans(array)
    return {of.name: array for of, array in zip(layout.arrays, received.arrays, strict=True)}


def _record_offset(length: int) -> int:
    return -(-(_LENGTH.size + length) // _ALIGNMENT) * _ALIGNMENT
