"""Batches come back as they went; layouts and batches that are malformed are refused."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, strategies as st

from khop.channel.arena import create_memory
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record, read_record
from khop.data.arrays import DTYPES, storage_dtype
from khop.errors import ProtocolError

_SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=3)
_COUNTERS = st.dictionaries(st.text(max_size=5), st.integers(0, 4), max_size=3)


def layouts(sizes):
    """Strategies of arrays some of whose axes are among `sizes`."""
    axes = st.integers(-len(sizes), 3)
    arrays = st.tuples(st.sampled_from(DTYPES), st.lists(axes, max_size=3).map(tuple))
    return st.dictionaries(st.text(max_size=8), arrays, max_size=5)


def make_layout(arrays, counters, number=0):
    named = [ArrayLayout(name, dtype, shape) for name, (dtype, shape) in arrays.items()]
    return Layout(number, named, [CounterLayout(*c) for c in counters.items()])


def travelled(layout):
    return Layout.from_json(json.loads(json.dumps(layout.to_json())))


def filled(shape, dtype, seed):
    raw = np.random.default_rng(seed).integers(0, 2, (*shape, dtype.itemsize), dtype=np.uint8)
    return raw.view(dtype)[..., 0] if raw.size else np.zeros(shape, dtype)


@given(st.data(), _SIZES, _COUNTERS, st.integers(0, 100))
def test_batches_round_trip(data, sizes, counters, slack):
    """Names, dtypes, shapes, values and counters; arrays aligned, memory shared."""
    arrays = data.draw(layouts(sizes))
    layout = make_layout(arrays, counters, number=7)
    record = Record(layout, sizes[: layout.num_sizes])
    memory = np.zeros(record.nbytes + slack, np.uint8)
    written = record.write(memory.data)
    expected = {}
    for i, (name, (dtype, axes)) in enumerate(arrays.items()):
        shape = tuple(sizes[-1 - axis] if axis < 0 else axis for axis in axes)
        expected[name] = filled(shape, storage_dtype(dtype), i)
        np.copyto(written[name], expected[name])
    for i, (name, length) in enumerate(counters.items()):
        record.note(name, [i * 10 + j - 1 for j in range(length)])
    received = read_record(memory, {7: travelled(layout)})
    assert list(received.layout.index) == list(arrays)
    for name, array in zip(arrays, received.arrays, strict=True):
        dtype = received.layout.arrays[received.layout.index[name]].dtype
        assert dtype == arrays[name][0]
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        assert array.tobytes() == expected[name].tobytes()
        start = array.__array_interface__["data"][0] - memory.ctypes.data
        assert array.size == 0 or start % 64 == 0
    for i, (name, length) in enumerate(counters.items()):
        assert received.counter(name) == [i * 10 + j - 1 for j in range(length)]


def test_counters_are_zero_until_noted():
    """Memory that held another batch does not show through."""
    layout = make_layout({"x": ("int8", (-1,))}, {"hops": 2, "times": 3})
    record = Record(layout, [4])
    memory = np.full(record.nbytes, 255, np.uint8)
    record.write(memory.data)
    record.note("times", [1, 2, 3])
    received = read_record(memory, {0: layout})
    assert received.counter("hops") == [0, 0]
    assert received.counter("times") == [1, 2, 3]


def test_layouts_travel_in_memory():
    """Also those longer than a control message."""
    arrays = {f"n{i}.{'long name ' * 10}": ("float32", (-1 - i, 3)) for i in range(1000)}
    layout = make_layout(arrays, {"rows": 3})
    got = Layout.read_shared(layout.share())
    assert (got.arrays, got.counters, got.id) == (layout.arrays, layout.counters, 0)


_GOOD = {"id": 0, "arrays": [["x", "int64", [-1, 2]]], "counters": [["rows", 3]]}
_BAD = [
    ("id", -1), ("id", True), ("id", None), ("id", "0"),
    ("arrays", None), ("arrays", {}), ("arrays", [["x", "int64"]]), ("arrays", [5]),
    ("arrays", [["x", "object", [1]]]), ("arrays", [["x", "int64", [1.0]]]),
    ("arrays", [["x", "int64", [2**60]]]), ("arrays", [["x", "int64", [-(2**40)]]]),
    ("arrays", [["x", "int64", [1] * 40]]), ("arrays", [[1, "int64", [1]]]),
    ("arrays", [["x", "int64", [1]], ["x", "int64", [1]]]),
    ("counters", None), ("counters", [["rows"]]), ("counters", [["rows", -1]]),
    ("counters", [["rows", True]]), ("counters", [["rows", 2**40]]), ("counters", [[3, 1]]),
    ("counters", [["rows", 1], ["rows", 1]]), ("counters", [["a", 60_000], ["b", 60_000]]),
]  # fmt: skip


def test_a_good_layout_is_accepted():
    assert Layout.from_json(_GOOD).num_numbers == 4


@pytest.mark.parametrize(("name", "value"), _BAD)
def test_malformed_layouts_are_refused(name, value):
    with pytest.raises(ProtocolError):
        Layout.from_json({**_GOOD, name: value})


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_memory_without_a_layout_is_refused(text):
    descriptor = create_memory(len(text))
    os.pwrite(descriptor, text, 0)
    with pytest.raises(ProtocolError):
        Layout.read_shared(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def written():
    layout = Layout.from_json(_GOOD)
    record = Record(layout, [3])
    memory = np.zeros(record.nbytes, np.uint8)
    record.write(memory.data)
    return memory, {0: layout}


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1), (0, -1), (1, 3), (1, 5), (1, -1), (2, -1), (2, 4), (2, 2**62), (2, -(2**62))],
)
def test_batches_with_other_numbers_are_refused(place, value):
    """Of a layout that nobody described, with too few or many numbers, larger than its memory."""
    memory, known = written()
    read_record(memory, known)
    memory[:24].view(np.int64)[place] = value
    with pytest.raises(ProtocolError):
        read_record(memory, known)


@given(st.integers(0, 200))
def test_batches_cut_short_are_refused(length):
    memory, known = written()
    if length < len(memory):
        with pytest.raises(ProtocolError):
            read_record(memory[:length], known)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_stay_within_the_batch(noise):
    _, known = written()
    memory = np.frombuffer(noise or b"\0", np.uint8)
    try:
        received = read_record(memory, known)
    except ProtocolError:
        return
    assert received.arrays[0].nbytes <= len(memory)
