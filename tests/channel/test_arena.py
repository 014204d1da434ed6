"""Slots of shared memory: allocation, leases, and what is seen across descriptors."""

import fcntl
import gc
import os

import numpy as np
import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from khop.channel.arena import ArenaReader, ArenaWriter, SlotAllocator, create_memory
from khop.errors import ProtocolError

_PAGE = 4096
_CAPACITY = 16 * _PAGE


class Slots(RuleBasedStateMachine):
    """Model: a map of pages, each taken by at most one slot."""

    slots = Bundle("slots")

    def __init__(self):
        super().__init__()
        self.allocator = SlotAllocator(_CAPACITY)
        self.pages = np.zeros(_CAPACITY // _PAGE, bool)
        self.sizes = {}

    @rule(target=slots, nbytes=st.integers(0, _CAPACITY + 1))
    def allocate(self, nbytes):
        count = max(1, -(-nbytes // _PAGE))
        room = [
            i for i in range(len(self.pages) - count + 1) if not self.pages[i : i + count].any()
        ]
        offset = self.allocator.allocate(nbytes)
        if not room:
            assert offset is None
            return -1
        assert offset == room[0] * _PAGE  # first fit
        self.pages[room[0] : room[0] + count] = True
        self.sizes[offset] = count
        return offset

    @rule(offset=consumes(slots))
    def free(self, offset):
        if offset < 0:
            return
        self.allocator.free(offset)
        first = offset // _PAGE
        self.pages[first : first + self.sizes.pop(offset)] = False

    @invariant()
    def counts(self):
        assert self.allocator.num_taken == len(self.sizes)

    def teardown(self):
        """All given back: the whole is one slot again."""
        for offset in list(self.sizes):
            self.allocator.free(offset)
        assert self.allocator.allocate(_CAPACITY) == 0


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40)


def test_slots_that_are_not_in_use():
    slots = SlotAllocator(_CAPACITY)
    first = slots.allocate(1)
    slots.free(first)
    for offset in (first, 17):
        with pytest.raises(KeyError):
            slots.free(offset)
    assert SlotAllocator(0).allocate(1) is None


@pytest.fixture
def ring():
    """Writer and reader of a ring of 16 pages."""
    descriptor = create_memory(_CAPACITY)
    try:
        return ArenaWriter(descriptor), ArenaReader(descriptor)
    finally:
        os.close(descriptor)  # mappings outlive it


def test_reader_sees_what_the_writer_wrote_uncopied(ring):
    """Uncopied: writes after the lease was taken are seen too."""
    writer, reader = ring
    offset, memory = writer.allocate(100)
    assert len(memory) == 100
    memory[:] = bytes(range(100))
    got = reader.lease(offset, 100, None)
    assert got.tolist() == list(range(100))
    memory[0] = 77
    assert got[0] == 77


def test_a_slot_is_free_when_the_last_view_is_collected(ring):
    """Arrays, slices of them and tensors over them all hold it."""
    writer, reader = ring
    freed = []
    offset, _ = writer.allocate(800)
    raw = reader.lease(offset, 800, freed.append)
    tensor = torch.from_numpy(raw.view(np.int64))[5:]
    piece = raw[3:4]
    del raw
    gc.collect()
    assert (freed, reader.bytes_leased) == ([], 800)
    del piece
    assert freed == []
    assert tensor.numel() == 95
    del tensor
    gc.collect()
    assert (freed, reader.bytes_leased) == ([offset], 0)


def test_memory_outlives_the_reader(ring):
    writer, reader = ring
    offset, memory = writer.allocate(8)
    memory[:] = b"12345678"
    tensor = torch.from_numpy(reader.lease(offset, 8, None))
    del reader, writer, memory, ring
    gc.collect()
    assert bytes(tensor.tolist()) == b"12345678"


def test_full(ring):
    writer, _ = ring
    offset, _ = writer.allocate(_CAPACITY)
    assert writer.allocate(1) is None
    writer.free(offset)
    assert writer.allocate(1)[0] == 0


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(-1, 1), (0, _CAPACITY + 1), (_CAPACITY, 1), (2**62, 2**62), (8, -1)]
)
def test_leases_outside_the_ring(ring, offset, nbytes):
    """What another process claims is checked."""
    with pytest.raises(ProtocolError, match="exceeds an arena"):
        ring[1].lease(offset, nbytes, None)


def test_memory_cannot_be_resized():
    """A ring cannot be cut under its readers: that would be a bus error."""
    descriptor = create_memory(_PAGE)
    for size in (0, 2 * _PAGE):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(descriptor, size)
    os.close(descriptor)


def test_memory_keeps_its_size():
    """A process that could cut another's memory off could end it: touching what is gone does."""
    memory = create_memory(8192)
    try:
        for size in (0, 4096, 10_000):
            with pytest.raises(PermissionError):
                os.ftruncate(memory, size)
        with pytest.raises(PermissionError):  # seals can be neither added nor taken away
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        assert os.fstat(memory).st_size == 8192
    finally:
        os.close(memory)


@pytest.mark.parametrize("kind", ["unsealed memory", "file", "empty memory", "pipe"])
def test_memory_that_can_shrink_is_not_mapped(kind, tmp_path):
    """Whoever passes on such memory could end the process that maps it."""
    descriptors = []
    if kind == "pipe":
        descriptors += os.pipe()
    elif kind == "file":
        (tmp_path / "file").write_bytes(bytes(4096))
        descriptors.append(os.open(tmp_path / "file", os.O_RDWR))
    else:
        descriptors.append(os.memfd_create("test", os.MFD_ALLOW_SEALING))
        if kind == "empty memory":
            fcntl.fcntl(descriptors[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        else:
            os.ftruncate(descriptors[0], 4096)
    try:
        with pytest.raises(ProtocolError, match="can be made smaller"):
            ArenaReader(descriptors[0])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
