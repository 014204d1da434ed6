"""Format of a message with arrays, in the frames of a network connection.

Trainers, samplers, servers and receivers exchange these messages. Imports no torch.

    header frame | frames of the first array | frames of the second | ...

The header is JSON and describes the arrays. Nothing is ever unpickled, and every length is checked
against the bytes received before an array is made of them.

An array is sent in full frames of `FRAME_BYTES` and a shorter last one. An empty array has one
empty frame. ZeroMQ allocates memory for a frame when its length arrives, from any connected peer.
So frames are small: the memory that a peer can claim does not depend on the size of arrays.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from khop.data.arrays import storage_dtype
from khop.errors import ProtocolError
from khop.typing import Array

_MAX_HEADER = 1 << 20
# Most lists and objects of a header, and most values. A name and its value count for four.
_MAX_LISTS, _MAX_VALUES = 1 << 14, 1 << 17
_MAX_AXES = 16
_MAX_BYTES = 1 << 48

MAX_ARRAYS = 4096
"""Maximum number of arrays in a message."""

FRAME_BYTES = 1 << 20
"""Size in bytes of a full frame of a message. `ZMQ_MAXMSGSIZE` is a little more."""

MESSAGE_BYTES = 1 << 30
"""Maximum size in bytes of all arrays of a message together."""

_MAX_FRAMES = 1 + MAX_ARRAYS + MESSAGE_BYTES // FRAME_BYTES


def frame_slices(num_rows: int, row_bytes: int) -> list[slice]:
    """Divide rows into slices, whose arrays fit one frame each. There is at least one slice.

    A sender makes an array of each slice, so that no receiver has to join frames. A row that is
    larger than a frame is a slice of its own.

    Example:
        >>> frame_slices(5, FRAME_BYTES // 2)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(FRAME_BYTES // max(row_bytes, 1), 1)
    return [slice(i, min(i + step, num_rows)) for i in range(0, max(num_rows, 1), step)]


def pack(header: Mapping[str, Any], arrays: Sequence[Array]) -> list[Any]:
    """Convert a header and arrays to the frames of a message. Arrays are not copied.

    Raises:
        ProtocolError: the message is larger than the other end accepts.
    """
    nbytes = sum([a.nbytes for a in arrays])
    if nbytes > MESSAGE_BYTES or len(arrays) > MAX_ARRAYS:
        raise ProtocolError(
            f"a message of {len(arrays)} arrays with {nbytes} bytes is more than the {MAX_ARRAYS} "
            f"arrays and {MESSAGE_BYTES} bytes that are allowed: ask for less, or send less, at a "
            "time"
        )
    described = [[_name_of(a.dtype), a.shape] for a in arrays]
    text = json.dumps({**header, "arrays": described}).encode()
    if len(text) > _MAX_HEADER:
        raise ProtocolError(
            f"a message's header of {len(text)} bytes is longer than the {_MAX_HEADER} that are "
            "allowed: name less, or ask for less, at a time"
        )
    frames: list[Any] = [text]
    for a in arrays:
        data = np.ascontiguousarray(a).data.cast("B") if a.size else b""
        if len(data) <= FRAME_BYTES:
            frames.append(data)
        else:
            frames += [data[i : i + FRAME_BYTES] for i in range(0, len(data), FRAME_BYTES)]
    return frames


def unpack(frames: Sequence[Any]) -> tuple[dict[str, Any], list[Array]]:
    """Return header and arrays of a message, read-only.

    An array in one frame shares the frame's memory, unless its elements are not aligned there:
    ZeroMQ leaves small frames where it received them. An array in several frames is copied.

    Args:
        frames: objects with the buffer protocol, as received.

    Raises:
        ProtocolError: the header is malformed, or the frames do not match it.
    """
    if not 1 <= len(frames) <= _MAX_FRAMES or len(frames[0]) > _MAX_HEADER:
        raise ProtocolError("a message has no header, one that is too long, or too many frames")
    header = _parse(bytes(frames[0]))
    arrays, used, total = [], 1, 0
    for entry in header.pop("arrays"):
        if type(entry) is not list or len(entry) != 2:
            raise ProtocolError("an array is not described by dtype and shape")
        dtype, nbytes = _check_described(*entry)
        total += nbytes
        end = used + max(1, -(-nbytes // FRAME_BYTES))
        if total > MESSAGE_BYTES or end > len(frames):
            raise ProtocolError(
                f"a message of {len(frames)} frames describes arrays of more than these hold"
            )
        memory = frames[used]
        if end > used + 1 or len(memory) != nbytes:
            memory = _joined(frames, used, end, nbytes)
        array = np.frombuffer(memory, np.uint8).view(dtype).reshape(entry[1])
        if not array.flags.aligned:  # compiled code relies on it
            array = array.copy()
            array.flags.writeable = False
        if dtype == np.bool_:
            check_booleans(array)
        arrays.append(array)
        used = end
    if used != len(frames):
        raise ProtocolError(f"a message has {len(frames)} frames, but its arrays fill {used - 1}")
    return header, arrays


def _joined(frames: Sequence[Any], begin: int, end: int, nbytes: int) -> Any:
    """Join frames `begin` to `end` - 1, which hold one array, in new memory of `nbytes` bytes.

    Raises:
        ProtocolError: a frame before the last is not full.
    """
    of_array = frames[begin:end]
    for i, frame in enumerate(of_array):
        size = min(nbytes - i * FRAME_BYTES, FRAME_BYTES)
        if len(frame) != size:
            raise ProtocolError(f"a frame has {len(frame)} bytes instead of {size}")
    joined = np.empty(nbytes, np.uint8)  # NumPy lets other threads run while it copies
    for i, frame in enumerate(of_array):
        at = i * FRAME_BYTES
        joined[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
    joined.flags.writeable = False
    return joined


def check_booleans(array: Array) -> None:
    """Raise ProtocolError for booleans that are not 0 or 1: compiled code relies on it."""
    if array.size and int(array.view(np.uint8).max()) > 1:
        raise ProtocolError("an array of booleans holds other bytes than 0 and 1")


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype. Cached, because NumPy takes 10 us to make it."""
    return str(dtype.name)


def _parse(text: bytes) -> dict[str, Any]:
    # Values and lists take more time than bytes: a mebibyte of lists 0.1 s, of numbers 0.02 s.
    num_lists = text.count(b"[") + text.count(b"{")
    num_values = num_lists + text.count(b",") + 4 * text.count(b":")
    if num_lists > _MAX_LISTS or num_values > _MAX_VALUES:
        raise ProtocolError("a header holds too many values: name less, or ask for less, at a time")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a header is not JSON: {error}") from None
    arrays = header.get("arrays") if isinstance(header, dict) else None
    if not isinstance(arrays, list) or len(arrays) > MAX_ARRAYS:
        raise ProtocolError("a header does not list its arrays")
    assert isinstance(header, dict)
    return header


def _check_described(name: Any, shape: Any) -> tuple[np.dtype[Any], int]:
    """Check the dtype name and shape of an array in a header. Return its dtype and size in bytes.

    Raises:
        ProtocolError: they are malformed.
    """
    if type(name) is not str or type(shape) is not list or len(shape) > _MAX_AXES:
        raise ProtocolError("an array is not described by dtype and shape")
    try:
        dtype = storage_dtype(name)
    except TypeError as error:
        raise ProtocolError(str(error)) from None
    # NumPy counts an empty array's other axes, too.
    largest = size = dtype.itemsize
    for length in shape:
        if type(length) is not int or not 0 <= length < _MAX_BYTES:
            raise ProtocolError("an array's shape is malformed")
        size *= length
        largest *= length or 1
    if largest >= _MAX_BYTES:
        raise ProtocolError(f"an array of shape {shape} does not fit any memory")
    return dtype, size
