"""The tests' own CUDA runtime refuses what a GPU would: pointers, memory, faults, forks."""

import ctypes
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fake_cuda import control
from fake_cuda.caching import CachingAllocator
from khop import _native
from support.devices import FakeArray, empty, fake, get, open_device, put
from support.kernels.fake_calls import (
    OUT_OF_MEMORY,
    TO_DEVICE,
    address,
    allocate,
    copy,
    cuda,
    download,
    new_stream,
    own_pages,
    pinned,
    pointer,
)

pytestmark = fake

ILLEGAL_ADDRESS, NOT_INITIALIZED = 700, 3
IS_ASAN = "asan" in os.environ.get("LD_PRELOAD", "")
BY_SANITIZER = 1
"""Exit status of programs that a sanitizer ends, where the extension was built with one."""


def take_violations():
    """The rules that were broken so far, which are forgotten."""
    found = control.violations()
    control.reset()
    return found


def run_program(code, *arguments):
    """The exit status of a program with khop and the runtime's `control`."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    program = "import ctypes, os, sys\nimport numpy as np\nfrom fake_cuda import control\n" + code
    command = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(command, check=False, env=environment, stderr=subprocess.DEVNULL)
    return ended.returncode


class Gathered:
    """A gather of rows 0 to 9 of a device's table of 100, with any of its arrays elsewhere."""

    def __init__(self, device):
        self.device = device
        self.table = put(device, np.arange(100))
        self.rows, self.out = put(device, np.arange(10)), empty(device, 10, np.int64)

    def run(self, wait=True):
        self.device.gather(self.table, self.rows, self.out, wait)


class OnHost(FakeArray):
    """An array of the host that says it were the device's."""

    def __init__(self, memory, array):
        super().__init__(memory, 0, array.shape, array.dtype)
        self.array = array

    def __dlpack__(self, **options):
        capsule = super().__dlpack__()
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        ctypes.c_void_p.from_address(address(capsule, b"dltensor")).value = self.array.ctypes.data
        return capsule


@pytest.mark.process
def test_the_host_cannot_touch_memory_of_a_device():
    code = (
        "from khop import _native\n"
        "device = _native.cuda_device(0)\n"
        "memory = _native.DeviceMemory.allocate(device, 800)\n"
        "memory.upload(0, np.arange(100))\n"
        "out = np.empty(100, np.int64)\n"
        "memory.download(0, out)\n"
        "assert out[99] == 99\n"
        "if sys.argv[1] == 'write': ctypes.memset(memory.address, 0, 1)\n"
        "if sys.argv[1] == 'read': ctypes.string_at(memory.address, 1)\n"
    )
    assert run_program(code, "neither") == 0
    for access in ("read", "write"):
        assert run_program(code, access) in (-signal.SIGSEGV, BY_SANITIZER)


def test_kernels_cannot_read_pageable_memory():
    gather = Gathered(open_device("fake"))
    memory = _native.DeviceMemory.allocate(gather.device, 800)
    for array in (np.arange(100), pinned(800).view(np.int64)):
        gather.table = OnHost(memory, array)
        array[:] = np.arange(100)
        gather.run()
        assert get(gather.out).tolist() == [*range(10)]
    (violation,) = take_violations()
    assert "an argument of a kernel leads to memory of the host that no device can" in violation
    control.set_options(pageable_reads_late=1)  # such devices read whatever the process can
    gather.table = OnHost(memory, np.arange(100))
    gather.run()
    assert take_violations() == []


@pytest.mark.parametrize(
    "how",
    ["unregistered", pytest.param("freed", marks=pytest.mark.skipif(IS_ASAN, reason="ASan's own"))],
)
def test_memory_that_goes_under_a_kernel(how):
    """Nothing waits for the kernel: not cudaHostUnregister, nor cudaFreeHost."""
    gather = Gathered(open_device("fake"))
    memory = _native.DeviceMemory.allocate(gather.device, 800)
    array = own_pages(1) if how == "unregistered" else pinned(4096)
    size = ctypes.c_size_t(array.nbytes)
    if how == "unregistered":
        assert cuda.cudaHostRegister(address(array), size, 3) == 0
    gather.table = OnHost(memory, array[:800].view(np.int64))
    gather.run(wait=False)
    gone = cuda.cudaHostUnregister if how == "unregistered" else cuda.cudaFreeHost
    assert gone(address(array)) == 0
    gather.device.synchronize()
    violations = take_violations()
    assert any("a kernel that runs leads to memory" in what for what in violations)


@pytest.mark.skipif(IS_ASAN, reason="padding of tables holds addresses of the host")
def test_pointers_in_tables():
    """What was uploaded leads there where kernels look for it, and may be gone when they do."""
    device, other = open_device("fake"), _native.cuda_device(1)
    array = np.arange(1000)
    group = _native.DeviceGroup([device, other])
    table = _native.DeviceTable(device, array, "CUDA", _native.HotRows(group, array))
    rows, out = put(device, np.arange(10)), empty(device, 10, np.int64)
    table.gather(rows, out)
    assert get(out).tolist() == [*range(10)]
    assert control.violations() == []
    del table
    table = _native.DeviceTable(device, array, "CUDA", _native.HotRows(group, array))
    forget_peers()
    table.gather(rows, out)
    assert "a table of a kernel that runs leads to another device's memory" in take_violations()


def forget_peers():
    """As if nobody had enabled them, with all work done."""
    control.finish()
    control.reset()


@pytest.mark.parametrize("is_pooled", [False, True])
def test_peers_reach_by_kernels_what_cudamalloc_gave(is_pooled):
    gather = Gathered(_native.cuda_device(1))
    memory = _native.DeviceMemory.allocate(gather.device, 800)
    assert cuda.cudaSetDevice(0) == 0
    gather.table = OnHost(memory, At(allocate(800, new_stream() if is_pooled else None)))
    for is_enabled in (False, True):
        if is_enabled:
            assert cuda.cudaSetDevice(1) == 0
            assert cuda.cudaDeviceEnablePeerAccess(0, 0) == 0
            assert cuda.cudaSetDevice(0) == 0
        gather.run(wait=False)
        gather.device.synchronize()
        is_refused = any("another device's memory" in what for what in take_violations())
        assert is_refused == (is_pooled or not is_enabled)


class At:
    """100 numbers at an address, as an array has them."""

    shape, dtype = (100,), np.dtype(np.int64)

    def __init__(self, value):
        self.ctypes = self
        self.data = value


@pytest.mark.skipif(IS_ASAN, reason="ends the process at once")
def test_memory_that_is_written_beyond_its_end():
    gather = Gathered(open_device("fake"))
    memory = _native.DeviceMemory.allocate(gather.device, 72)  # of 80
    gather.out = OnHost(put(gather.device, np.arange(10)).memory, At(memory.address))
    gather.out.shape = (10,)
    gather.run()
    del memory
    control.finish()
    assert any("beyond its end: 72 bytes" in what for what in take_violations())


@pytest.mark.process
def test_misaligned_accesses_end_the_process():
    """As they end a GPU's context."""
    code = (
        "from khop import _native\n"
        "device = _native.cuda_device(0)\n"
        "table = _native.DeviceTable(device, np.arange(100), 'CUDA')\n"
        "memory = _native.DeviceMemory.allocate(device, 800)\n"
        "memory.upload(0, np.zeros(100, np.int64))\n"
        "table.gather_at(memory.address + int(sys.argv[1]), 8, 10, memory.address + 400)\n"
        "device.synchronize()\n"
    )
    assert run_program(code, "8") == 0
    assert run_program(code, "4") in (-signal.SIGILL, BY_SANITIZER)


def order_of(seed, blocks, threads):
    """In which order the threads of a grid run."""
    control.reset()
    control.set_options(seed=seed)
    order = np.empty(blocks * threads, np.uint32)
    cuda.fake_cuda_order(blocks, threads, ctypes.c_void_p(order.ctypes.data))
    return order


def test_threads_and_blocks_run_in_any_order():
    """Each once, in another order from block to block and seed to seed."""
    order = order_of(1, 5, 64)
    assert sorted(order) == [*range(320)]
    assert np.array_equal(order_of(1, 5, 64), order)
    assert not np.array_equal(order_of(2, 5, 64), order)
    blocks = (order // 64).reshape(5, 64)
    assert (blocks == blocks[:, :1]).all()  # one block after the other
    assert len({tuple(threads) for threads in (order % 64).reshape(5, 64)}) > 1


def test_a_lost_device_answers_nothing_else():
    """The kernel that failed is reported by what waits for it, then by every call."""
    control.set_mode("lazy")
    gather = Gathered(open_device("fake"))
    control.lose(0, "cudaErrorIllegalAddress")
    gather.run(wait=False)  # asynchronous
    assert cuda.cudaDeviceSynchronize() == ILLEGAL_ADDRESS
    memory = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(8)) == ILLEGAL_ADDRESS
    for _ in range(2):
        assert cuda.cudaGetLastError() == ILLEGAL_ADDRESS
    assert cuda.cudaSetDevice(1) == 0  # the other one goes on
    assert allocate(8)
    assert cuda.cudaSetDevice(0) == ILLEGAL_ADDRESS
    control.reset()
    assert cuda.cudaDeviceSynchronize() == 0


def test_not_all_pages_can_be_locked():
    gc.collect()  # arrays of other tests, which are registered as long as they live
    array = own_pages(8)
    size = ctypes.c_size_t(4 * 4096)
    control.set_options(lockable=6 * 4096)
    assert cuda.cudaHostRegister(address(array), size, 3) == 0
    assert cuda.cudaHostRegister(address(array, 4 * 4096), size, 3) == OUT_OF_MEMORY
    assert cuda.cudaHostUnregister(address(array)) == 0
    assert cuda.cudaHostRegister(address(array, 4 * 4096), size, 3) == 0
    assert cuda.cudaHostUnregister(address(array, 4 * 4096)) == 0


@pytest.mark.process
def test_children_of_a_process_that_has_used_a_device_can_use_none():
    child = (
        "cuda, out = control.runtime(), ctypes.c_void_p()\n"
        "size = ctypes.c_size_t(8)\n"
        "if sys.argv[1] == 'used': assert cuda.cudaMalloc(ctypes.byref(out), size) == 0\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(cuda.cudaMalloc(ctypes.byref(out), size))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert run_program(child, "used") == NOT_INITIALIZED
    assert run_program(child, "not used") == 0


def test_a_caching_allocator_gives_a_block_again_at_once():
    """In the stream's order, so with other content by then, and to nobody else meanwhile."""
    stream = new_stream()
    blocks = CachingAllocator(stream.value)
    first, second = blocks.allocate(100), blocks.allocate(100)
    assert first != second
    source = pinned(100)
    source[:] = 7
    assert copy(first, source, 100, TO_DEVICE, stream) == 0
    blocks.release(first)
    assert blocks.allocate(300) == first  # of the same size as it is rounded
    assert set(download(first, 100, stream)) == {CachingAllocator.PATTERN}
    blocks.release(first)
    blocks.release(second)
    blocks.close()
    assert cuda.cudaFree(pointer(first)) != 0
    cuda.cudaGetLastError()
