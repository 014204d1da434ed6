"""Memory of a device that sampler and trainer share: what is written, read, and given back when."""

import gc
import os
from collections import deque

import numpy as np
import pytest
from torch.utils.dlpack import from_dlpack

from khop import _native
from khop.channel import device_arena
from khop.channel.device_arena import (
    DeviceArenaReader,
    DeviceArray,
    Scratch,
    arrays_of,
    open_device_arena,
)
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record
from khop.errors import ProtocolError

CAPACITY = 16 * 4096
LAYOUT = Layout(
    3,
    [ArrayLayout("ids", "int64", (-1,)), ArrayLayout("x", "bfloat16", (-1, 2))],
    [CounterLayout("batch", 1)],
)


class Moment:
    """A moment in the work of a device that passes when the test says so."""

    def __init__(self):
        self.has_passed = False

    def query(self):
        return self.has_passed

    def synchronize(self):
        self.has_passed = True


@pytest.fixture
def device():
    return _native.emulated_device(0)


def make_device_arena(device, mark=lambda: ()):
    """Both sides of a slab."""
    reader = DeviceArenaReader(device, CAPACITY, mark)
    descriptors = [os.dup(d) for d in reader.descriptors]
    writer = open_device_arena(device, reader.described, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    reader.passed_on()
    return writer, reader


def write(writer, count, batch=0):
    """A batch of so many rows; returns what there is to say of it."""
    record = Record(LAYOUT, [count])
    offset = writer.allocate(record.nbytes)
    head = bytearray(LAYOUT.head_bytes)
    record.write_head(memoryview(head))
    record.note("batch", batch)
    arrays = arrays_of(record, writer.memory, offset)
    ids, ones = np.arange(count) + 10 * batch, np.full((count, 2), 0x3F80, np.uint16)  # bfloat16
    arrays["ids"].upload(ids)
    arrays["x"].upload(ones)
    writer.memory.device.synchronize()
    return offset, record.nbytes, bytes(head)


def test_reader_gets_arrays_by_name_dtype_and_shape(device):
    """By name, dtype and shape, through DLPack; numbers come from the head."""
    writer, reader = make_device_arena(device)
    places = [write(writer, count, batch) for batch, count in enumerate((5, 0, 700))]
    for batch, (place, count) in enumerate(zip(places, (5, 0, 700), strict=True)):
        received = reader.lease(*place, {3: LAYOUT}, lambda slot: None)
        assert received.counter("batch") == [batch]
        ids, x = (from_dlpack(array.capsule()) for array in received.arrays)
        assert ids.tolist() == [10 * batch + i for i in range(count)]
        assert x.shape == (count, 2)
        assert str(x.dtype) == "torch.bfloat16"
        assert bool((x == 1).all())


def test_a_slot_is_free_when_the_device_has_done_with_it(device):
    """Not before the last tensor is gone, nor before the mark made then has been passed."""
    moments, freed = [], []

    def mark():
        moments.append(Moment())
        return moments[-1:]

    writer, reader = make_device_arena(device, mark)
    places = [write(writer, 10, batch) for batch in range(2)]
    first, second = (reader.lease(*p, {3: LAYOUT}, freed.append) for p in places)
    view = from_dlpack(first.arrays[0].capsule())[3:]
    del first
    gc.collect()
    assert moments == []
    del view
    del second
    gc.collect()
    assert len(moments) == 2
    reader.give_back()
    assert freed == []
    assert reader.bytes_leased == 2 * places[0][1]
    moments[1].has_passed = True
    reader.give_back()
    assert freed == [places[1][0]]
    moments[0].has_passed = True
    reader.give_back()
    assert sorted(freed) == [p[0] for p in places]
    assert reader.bytes_leased == 0
    for offset in freed:
        writer.free(offset)
    assert writer.allocate(CAPACITY) == 0


class Captured:
    """An event that belongs to a graph which the user was recording: to ask for it is an error."""

    def query(self):
        raise RuntimeError("operation not permitted on an event of a capturing stream")


def test_memory_that_the_device_still_reads_is_kept(device):
    """An arena goes when its users' queued work is done, or never if nobody can tell."""
    moment, answers = Moment(), deque([RuntimeError("being captured")])

    def mark():
        if answers:
            raise answers.popleft()
        return [moment]

    for is_known in (True, False):
        moment.has_passed = False
        writer, reader = make_device_arena(device, mark)
        lease = reader.lease(*write(writer, 10), {3: LAYOUT}, lambda slot: None)
        del lease
        gc.collect()
        answers.extend([] if is_known else [RuntimeError("being captured")] * 9)
        kept = len(device_arena._UNMARKED)
        del reader, writer
        gc.collect()
        assert moment.has_passed == is_known
        assert len(device_arena._UNMARKED) - kept == (not is_known)
        answers = deque([RuntimeError("being captured")])


def test_a_slot_whose_moment_cannot_be_had(device):
    """It is marked again until that succeeds: no slot is lost, and others do not wait for it."""
    marks, freed = deque([Captured(), RuntimeError("being captured"), RuntimeError(), None]), []

    def mark():
        found = marks.popleft()
        if isinstance(found, Exception):
            raise found
        return [] if found is None else [found]

    writer, reader = make_device_arena(device, mark)
    places = [write(writer, 10, batch) for batch in range(2)]
    leases = [reader.lease(*place, {3: LAYOUT}, freed.append) for place in places]
    leases.pop(0)  # Captured
    leases.pop(0)  # not marked at all
    gc.collect()
    assert len(marks) == 2
    reader.give_back()  # the first cannot be marked, the second can: all is done
    assert freed == []
    assert list(marks) == []
    marks.append(None)
    reader.give_back()
    assert freed == [places[1][0]]
    reader.give_back()
    assert freed == [places[1][0], places[0][0]]
    assert reader.bytes_leased == 0


def test_batches_kept_beyond_half_of_the_slab_are_copied(device):
    """From half of the slab on."""
    writer, reader = make_device_arena(device)
    kept = [reader.lease(*write(writer, 700), {3: LAYOUT}, lambda slot: None) for _ in range(5)]
    assert [received.must_copy for received in kept] == [
        2 * i * kept[0].layout.shapes([700])[2] > CAPACITY for i in range(5)
    ]


def test_tensors_outlive_both_sides(device):
    writer, reader = make_device_arena(device)
    received = reader.lease(*write(writer, 10, 4), {3: LAYOUT}, lambda slot: None)
    ids = from_dlpack(received.arrays[0].capsule())
    del writer, reader, received
    gc.collect()
    assert ids.tolist() == list(range(40, 50))


def test_batches_that_are_none(device):
    """Heads that are too short, of unknown layouts, slots outside the slab, and sizes that lie."""
    writer, reader = make_device_arena(device)
    offset, nbytes, head = write(writer, 10)
    for place, message in [
        ((offset, nbytes, b"abc"), "no layout"),
        ((offset, nbytes, head[:20]), "too few"),
        ((CAPACITY, nbytes, head), "lies outside"),
        ((offset, 64, head), "promises"),
        ((offset, nbytes, b"\x04" + head[1:]), "unknown layout"),
        ((offset, nbytes, head[:16] + b"\xff" * 8 + head[24:]), "axes of"),
    ]:
        with pytest.raises(ProtocolError, match=message):
            reader.lease(*place, {3: LAYOUT}, lambda slot: None)
    assert reader.bytes_leased == 0


def test_views_stay_within_their_memory(device):
    memory = _native.DeviceMemory.allocate(device, 64)
    assert memory.nbytes == 64
    assert memory.device.name == device.name
    for offset, shape in [(0, (9,)), (60, (1,)), (0, (2**40, 2**40)), (65, (0,))]:
        with pytest.raises(ValueError, match=r"outside a memory of 64|larger than any memory"):
            memory.view(offset, shape, "int64", memory)
    with pytest.raises(ValueError, match="outside a memory"):
        memory.upload(60, np.arange(1))
    with pytest.raises(ValueError, match="outside a memory"):
        memory.download(8, np.empty(8))
    with pytest.raises(TypeError, match="no dtype 'float33'"):
        memory.view(0, (1,), "float33", memory)
    with pytest.raises(ValueError, match="only memory from allocate_shared"):
        _ = memory.handle


def test_handles_of_emulated_devices(device):
    """Memory lasts as long as somebody has it. A handle leads nowhere once its owner has not."""
    memory = _native.DeviceMemory.allocate_shared(device, 64)
    memory.upload(0, np.arange(8))
    handle = memory.handle
    opened = _native.DeviceMemory.open(device, handle, 64)
    del memory
    found = np.empty(8, np.int64)
    opened.download(0, found)
    assert found.tolist() == [*range(8)]
    with pytest.raises(RuntimeError, match="has this device memory no more"):
        _native.DeviceMemory.open(device, handle, 64)
    with pytest.raises(ValueError, match="has 32 bytes"):
        _native.DeviceMemory.open(device, bytes(31), 64)


def test_memory_is_read_and_written(device):
    """Up, down, as an argument of a kernel, and read in place where the host has it."""
    scratch = Scratch(device)
    rows = DeviceArray(scratch.take(64), 0, (3,), "int64")
    assert scratch.take(16) is scratch.take(64)
    rows.upload(np.array([2, 0, 2]))
    table = np.arange(6.0).reshape(3, 2)
    mapped = _native.DeviceMemory.mapped(device, table)
    memory = _native.DeviceMemory.allocate(device, 48)
    out = DeviceArray(memory, 0, (3, 2), "float64")
    device.gather(DeviceArray(mapped, 0, (3, 2), "float64"), rows, out)
    got = np.empty((3, 2))
    memory.download(0, got)
    assert got.tolist() == table[[2, 0, 2]].tolist()
    assert (len(out), out.nbytes) == (3, 48)
    assert np.from_dlpack(rows).tolist() == [2, 0, 2]


def test_memory_that_grows_is_not_in_use(monkeypatch):
    """A device that works beside the host may still be reading it."""
    done = []

    class Device:
        def synchronize(self):
            done.append("waited")

    class Memory:
        nbytes = 64

        def __del__(self):
            done.append("freed")

    monkeypatch.setattr(_native.DeviceMemory, "allocate", lambda device, nbytes: Memory())
    scratch = Scratch(Device())
    scratch.take(64)
    scratch.take(10)
    assert done == []
    scratch.take(65)
    assert done == ["waited", "freed"]


@pytest.mark.parametrize("maps_host", [True, False])
def test_locked_pages(maps_host):
    device = _native.emulated_device(0, maps_host=maps_host)
    assert _native.LockedPages(device, np.zeros(4096, np.uint8)).is_locked == maps_host
