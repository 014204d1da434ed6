"""Pooled memory comes back when nothing looks into it, and never before."""

import gc
import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from khop.channel.pool import BufferPool

_BIG = (1 << 20,)
_FLOAT = np.dtype(np.float32)


def test_memory_comes_back():
    pool = BufferPool()
    array = pool.empty(_BIG, _FLOAT)
    address = array.ctypes.data
    assert pool.idle_bytes == 0
    del array
    assert pool.idle_bytes == 4 << 20
    assert pool.empty(_BIG, _FLOAT).ctypes.data == address
    assert pool.empty((1 << 10, 1 << 10), _FLOAT).ctypes.data == address


def test_tensors_hold_their_memory():
    """A tensor, a slice, a view of another dtype: each keeps the memory from being reused."""
    pool = BufferPool()
    tensor = torch.from_numpy(pool.empty(_BIG, _FLOAT))
    tensor.fill_(1)
    piece = tensor[10:20].view(torch.int32)
    address = tensor.data_ptr()
    del tensor
    gc.collect()
    others = [torch.from_numpy(pool.empty(_BIG, _FLOAT)).fill_(2) for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    assert (piece.view(torch.float32) == 1).all()
    del piece, others
    gc.collect()
    assert pool.idle_bytes > 0


def test_idle_memory_is_bounded():
    pool = BufferPool(max_idle=5 << 20)
    arrays = [pool.empty(_BIG, _FLOAT) for _ in range(4)]
    del arrays
    assert pool.idle_bytes == 4 << 20


def test_memory_outlives_the_pool():
    pool = BufferPool()
    array = pool.empty(_BIG, _FLOAT)
    array[:] = 3
    del pool
    gc.collect()
    assert (array == 3).all()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 300), st.booleans()), max_size=12))
def test_living_arrays_never_overlap(requests):
    """Whatever is asked for and kept: each array keeps what was written into it."""
    pool, kept = BufferPool(), []
    for number, (rows, cols, keep) in enumerate(requests):
        array = pool.empty((rows, cols), np.dtype(np.int16))
        assert array.shape == (rows, cols)
        array[...] = number
        if keep:
            kept.append((number, array))
    assert all((array == number).all() for number, array in kept)


def test_many_threads():
    """Arrays made and dropped by eight threads at once stay apart."""
    pool, wrong = BufferPool(), []

    def work(number):
        for _ in range(50):
            array = pool.empty((100_000,), _FLOAT)
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_do_not_share_it():
    """A worker process gets a copy of the pool: what it writes there stays there."""
    pool = BufferPool()
    idle, living = pool.empty(_BIG, _FLOAT), pool.empty(_BIG, _FLOAT)
    living[:] = 1
    del idle
    child = os.fork()
    if child == 0:
        living[:] = 2
        pool.empty(_BIG, _FLOAT)[:] = 2
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (living == 1).all()
    assert (pool.empty(_BIG, _FLOAT) != 2).all()


def test_batches_that_lie_around_a_class_share_a_block():
    """What is a little smaller takes a larger block, once that is free; one much smaller not."""
    pool = BufferPool()
    large = pool.empty((9 << 20,), np.dtype(np.uint8))
    address = large.ctypes.data
    del large
    smaller = pool.empty((8 << 20,), np.dtype(np.uint8))
    assert smaller.ctypes.data == address
    assert len(smaller) == 8 << 20
    del smaller
    assert pool.empty((4 << 20,), np.dtype(np.uint8)).ctypes.data != address


_FAULTS = """
import resource
import numpy as np
from khop.channel.pool import reuse_heaps

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    frames = [np.ones(1 << 17) for _ in range(40)]
    del frames
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

reuse_heaps()
faults()
faults()
print(faults())
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_freed_memory_of_heaps_is_used_again():
    """40 arrays of 1 MiB have 10,240 pages. The second time, nearly none of them is new."""
    output = subprocess.check_output([sys.executable, "-c", _FAULTS], text=True)
    assert int(output) < 500
