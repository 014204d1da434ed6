"""Frames and shared arrays come back as they went; malformed ones are refused before use."""

import json
import os
import struct

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop.channel import message
from khop.channel.message import (
    FRAME_BYTES,
    MESSAGE_BYTES,
    pack,
    unpack,
)
from khop.channel.shared import read_arrays, read_shared, share
from khop.data.arrays import DTYPES, storage_dtype
from khop.errors import ProtocolError

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_NUMPY = [name for name in DTYPES if name != "bfloat16"]
_SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def values_of(shape, dtype, seed):
    raw = np.random.default_rng(seed).integers(0, 2, (*shape, dtype.itemsize), dtype=np.uint8)
    return raw.view(dtype)[..., 0] if raw.size else np.zeros(shape, dtype)


@given(
    st.dictionaries(st.text(max_size=8), st.tuples(st.sampled_from(_NUMPY), _SHAPES), max_size=5)
)
def test_shared_arrays_round_trip(described):
    """Names, dtypes, shapes and values; arrays aligned."""
    arrays = {
        name: values_of(shape, storage_dtype(dtype), i)
        for i, (name, (dtype, shape)) in enumerate(described.items())
    }
    descriptor = share(arrays)
    got = read_shared(descriptor)
    os.close(descriptor)
    assert list(got) == list(arrays)
    for name, array in arrays.items():
        read = got[name]
        assert (read.dtype, read.shape, read.tobytes()) == (
            array.dtype,
            array.shape,
            array.tobytes(),
        )
        assert read.size == 0 or read.__array_interface__["data"][0] % 64 == 0


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), _SHAPES), max_size=5),
    st.dictionaries(st.text(max_size=5).filter(lambda k: k != "arrays"), _JSON, max_size=4),
    st.integers(0, 8),
)
def test_frames_round_trip(layout, header, place):
    """Wherever a frame lies, its array is aligned: ZeroMQ leaves it in the bytes it received."""
    arrays = [values_of(shape, storage_dtype(dtype), i) for i, (dtype, shape) in enumerate(layout)]
    frames = [memoryview(bytes(place) + bytes(frame))[place:] for frame in pack(header, arrays)]
    got_header, got = unpack(frames)
    assert got_header == header
    for a, b in zip(arrays, got, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        assert b.flags.aligned
        assert not b.flags.writeable


def test_frames_of_strided_arrays():
    base = np.arange(24).reshape(4, 6)
    arrays = [base[:, ::2], base.T, base[::-1]]
    _, got = unpack([bytes(frame) for frame in pack({}, arrays)])
    for a, b in zip(arrays, got, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("extra", [-1, 0, 1, FRAME_BYTES, FRAME_BYTES + 1])
def test_no_frame_is_longer_than_allowed(extra):
    """An array is cut into full frames and a rest; one that fits a frame is not copied."""
    arrays = [np.arange(FRAME_BYTES + extra, dtype=np.uint8), np.arange(3), np.zeros((0, 4))]
    frames = pack({"id": 1}, arrays)
    assert max(map(len, frames)) <= FRAME_BYTES
    assert len(frames) == 3 + -(-len(arrays[0]) // FRAME_BYTES)
    header, got = unpack(frames)
    assert header == {"id": 1}
    for a, b in zip(arrays, got, strict=True):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        assert not b.size or np.shares_memory(a, b) == (a.nbytes <= FRAME_BYTES)
        assert not b.flags.writeable or np.shares_memory(a, b)


@given(st.lists(st.integers(0, 40), max_size=5), st.data())
def test_frames_of_other_sizes_are_refused(lengths, data):
    """Whatever is cut elsewhere, left out, added or longer than a frame is no message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "FRAME_BYTES", 8)
        arrays = [np.arange(n, dtype=np.uint8) for n in lengths]
        frames = [bytes(frame) for frame in pack({}, arrays)]
        _, got = unpack(frames)
        assert [a.tobytes() for a in got] == [a.tobytes() for a in arrays]
        at = data.draw(st.integers(1, len(frames)))
        if at == len(frames):
            frames.append(b"")
        else:
            other = data.draw(st.integers(0, 20).filter(lambda n: n != len(frames[at])))
            frames[at : at + 1] = data.draw(st.sampled_from([[bytes(other)], []]))
        with pytest.raises(ProtocolError):
            unpack(frames)


def test_oversized_message_is_refused_before_memory_is_taken():
    """With its size, the limit, and what to do; before memory is taken."""
    large = np.broadcast_to(np.zeros(1, np.uint8), MESSAGE_BYTES + 1)
    with pytest.raises(ProtocolError, match=rf"{MESSAGE_BYTES + 1} bytes is more .* at a time"):
        pack({}, [large])
    with pytest.raises(ProtocolError, match=r"5000 arrays .* 4096 arrays"):
        pack({}, [np.zeros(1)] * 5000)
    with pytest.raises(ProtocolError, match=r"header of 1048.* longer than the 1048576"):
        pack({"names": "x" * (1 << 20)}, [])
    with pytest.raises(ProtocolError, match="more than these hold"):
        unpack([json.dumps({"arrays": [["uint8", [2**40]]]}).encode(), b""])


def memory_of(header, body=b""):
    """Memory of shared arrays with a header and what follows it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return np.frombuffer(struct.pack("<Q", len(text)) + text + body, np.uint8)


def shared_of(entry, body=b""):
    return memory_of({"id": 0, "arrays": [entry], "counters": []}, body)


_ENTRIES = [
    [],
    [1],
    "abc",
    None,
    {"a": 1},
    ["x", "float32"],
    ["x", "float32", [1], 1],
    [1, "float32", [1]],
    ["x", "object", [1]],
    ["x", "complex64", [1]],
    ["x", 7, [1]],
    ["x", "float32", 3],
    ["x", "float32", [-1]],
    ["x", "float32", [1.5]],
    ["x", "float32", [True]],
    ["x", "float32", [2**60]],
    ["x", "float32", [2**47] * 16],
    ["x", "float32", [1] * 17],
    ["x", "float32", [10**6]],
]


@pytest.mark.parametrize("entry", _ENTRIES, ids=str)
def test_malformed_descriptions(entry):
    """Wrong fields, unknown dtypes, shapes that promise more than there is."""
    with pytest.raises(ProtocolError):
        read_arrays(shared_of(entry, bytes(100)))
    if isinstance(entry, list):
        with pytest.raises(ProtocolError):
            unpack([json.dumps({"arrays": [entry[1:]]}).encode(), bytes(100)])


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"[]", b"\xff\xfe", b"{}", b'{"arrays": 3}', b'{"arrays": [], "meta": 3}',
     b'{"arrays": []}', b"[" * 100_000, b"1" * 10_000],
    ids=lambda h: str(h[:20]),
)  # fmt: skip
def test_malformed_headers(header):
    with pytest.raises(ProtocolError):
        read_arrays(memory_of(header))
    if b"[]" not in header or header == b"[]":
        with pytest.raises(ProtocolError):
            unpack([header])


def test_lengths_that_do_not_fit():
    for raw in (b"", b"1234567", struct.pack("<Q", 2**63), struct.pack("<Q", 9) + b"{}"):
        with pytest.raises(ProtocolError):
            read_arrays(np.frombuffer(raw, np.uint8) if raw else np.empty(0, np.uint8))
    frames = [bytes(frame) for frame in pack({}, [np.arange(3), np.arange(2)])]
    for wrong in ([], frames[:2], [*frames, b""], [frames[0], frames[1], frames[2] + b"1"]):
        with pytest.raises(ProtocolError):
            unpack(wrong)
    with pytest.raises(ProtocolError, match="too long"):
        unpack([b" " * (2 << 20)])


@given(st.binary(max_size=200))
def test_random_frames_are_refused(noise):
    with pytest.raises(ProtocolError):
        unpack([noise, noise])
    with pytest.raises(ProtocolError):
        read_arrays(np.frombuffer(noise, np.uint8) if noise else np.empty(0, np.uint8))


@given(st.data())
def test_damaged_shared_memory_never_crashes(data):
    """A byte of good memory changed: it is read, or refused as a protocol error."""
    descriptor = share({"x": np.arange(6).reshape(2, 3), "y": np.zeros((0, 4), np.bool_)})
    memory = bytearray(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.close(descriptor)
    memory[data.draw(st.integers(0, len(memory) - 1))] = data.draw(st.integers(0, 255))
    try:
        arrays = read_arrays(np.frombuffer(memory, np.uint8))
    except ProtocolError:
        return
    for array in arrays.values():
        assert array.nbytes <= len(memory)


@pytest.mark.parametrize("value", [0, 1, 2, 255])
def test_booleans_of_shared_memory_are_0_or_1(value):
    descriptor = share({"y": np.zeros(1, np.bool_)})
    memory = bytearray(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.close(descriptor)
    memory[-1] = value
    raw = np.frombuffer(memory, np.uint8)
    if value < 2:
        assert read_arrays(raw)["y"].tolist() == [bool(value)]
    else:
        with pytest.raises(ProtocolError, match="booleans"):
            read_arrays(raw)
