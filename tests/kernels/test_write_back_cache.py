"""Plan of a write-back cache, against a dictionary that has each block's newest value."""

import os
import tempfile

import numpy as np
import pytest

from khop import _native

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("capacity", [8, 20, 300])
def test_no_change_is_lost(capacity):
    """Blocks of a power law. The file has what was written, and slots have what was read."""
    rng = np.random.default_rng(capacity)
    cache, file = _native.WriteBackCache(300, capacity), np.zeros(300, np.int64)
    memory, newest = np.full(capacity, -1), np.zeros(300, np.int64)
    num_missed = 0
    for turn in range(400):
        blocks = (rng.pareto(1.0, rng.integers(1, 9)) * 5).astype(np.int64) % 300
        changes = bool(turn % 3)
        slots, misses, to, leaving, old = cache.load(blocks, changes)
        assert len(np.unique(misses)) == len(misses) and len(np.unique(leaving)) == len(leaving)
        assert not set(leaving) & set(blocks)
        file[leaving] = memory[old]
        memory[to] = file[misses]
        num_missed += len(misses)
        assert np.array_equal(memory[slots], newest[blocks])
        if changes:
            newest[blocks] = turn
            memory[slots] = turn
    assert num_missed < 1000 or capacity == 8
    assert num_missed <= 300 or capacity < 300


def test_blocks_that_are_used_often_stay():
    cache = _native.WriteBackCache(1000, 10)
    for turn in range(100):
        cache.load(np.arange(4), True)
        _, misses, _, _, _ = cache.load(np.arange(4, 8) + 4 * (turn % 200), False)
        assert len(misses) == 4
    assert len(cache.load(np.arange(4), True)[1]) == 0


@pytest.mark.parametrize("block", [-1, 300])
def test_what_does_not_fit_is_refused(block):
    cache = _native.WriteBackCache(300, 8)
    with pytest.raises(IndexError, match=f"block {block} does not exist"):
        cache.load(np.array([block]), False)
    with pytest.raises(ValueError, match="more blocks than the cache has"):
        cache.load(np.arange(9), False)
    with pytest.raises(ValueError, match=r"1 to 2\^31 - 1"):
        _native.WriteBackCache(300, 0)


def test_blocks_are_written_where_they_belong():
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, (700, 512), np.uint8)
    blocks = np.sort(rng.choice(1000, 700, replace=False))
    expected = np.zeros((1000, 512), np.uint8)
    expected[blocks] = memory
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), 512000)
        _native.write_blocks(file.fileno(), blocks, memory)
        assert os.pread(file.fileno(), 512000, 0) == expected.tobytes()
    with pytest.raises(OSError, match="Bad file descriptor"):
        _native.write_blocks(-1, blocks, memory)
    with pytest.raises(ValueError, match="ascending"):
        _native.write_blocks(-1, blocks[::-1].copy(), memory)
    with pytest.raises(ValueError, match="the bytes of each"):
        _native.write_blocks(-1, blocks, memory[:1])
