"""The tests' own CUDA runtime keeps CUDA's rules, without which tests on it would say little."""

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from fake_cuda import control
from support.devices import fake
from support.kernels.fake_calls import (
    CAPTURE_IMPLICIT,
    CAPTURE_INVALIDATED,
    CAPTURE_UNSUPPORTED,
    INVALID_VALUE,
    NOT_READY,
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


class Handle(ctypes.Structure):
    """cudaIpcMemHandle_t."""

    _fields_ = (("reserved", ctypes.c_uint8 * 64),)


def in_thread(run):
    """What a function returns in a new thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def begin_capture(stream):
    assert cuda.cudaStreamBeginCapture(stream, 1) == 0


def end_capture(stream):
    """The error, and the graph."""
    graph = ctypes.c_void_p()
    return cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)), graph


def test_contexts_and_the_current_device_of_a_thread():
    """Choosing a device creates its context, asking for properties does not."""
    number = ctypes.c_int()
    assert cuda.cudaGetDevice(ctypes.byref(number)) == 0
    assert cuda.cudaGetDeviceCount(ctypes.byref(number)) == 0
    assert (number.value, control.contexts()) == (2, {})
    assert cuda.cudaSetDevice(1) == 0

    def of_another_thread():
        cuda.cudaGetDevice(ctypes.byref(number))
        return number.value

    assert in_thread(of_another_thread) == 0
    assert control.contexts() == {1: "cudaSetDevice"}
    in_thread(lambda: allocate(1))
    assert control.contexts() == {1: "cudaSetDevice", 0: "cudaMalloc"}
    assert cuda.cudaSetDevice(2) == 101


def test_last_errors_belong_to_a_thread():
    assert cuda.cudaFree(pointer(64)) == INVALID_VALUE
    assert in_thread(cuda.cudaGetLastError) == 0
    assert allocate(1)  # what succeeds does not clear it
    assert cuda.cudaPeekAtLastError() == INVALID_VALUE
    assert cuda.cudaGetLastError() == INVALID_VALUE
    assert cuda.cudaGetLastError() == 0


def test_planned_failures():
    control.fail("cudaMalloc", 2)
    memory = ctypes.c_void_p()
    errors = [cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(8)) for _ in range(3)]
    assert errors == [0, OUT_OF_MEMORY, 0]


def test_memory_has_an_end():
    used = control.used_memory()
    control.set_options(memory=used + 1000)
    stream = new_stream()
    first, more = allocate(600, stream), ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(more), ctypes.c_size_t(600)) == OUT_OF_MEMORY
    assert cuda.cudaFreeAsync(pointer(first), stream) == 0
    assert control.used_memory() == used
    assert allocate(600, stream)  # the pool has it back at once, for this stream


def test_lazy_streams_work_when_somebody_waits():
    stream = new_stream()
    memory, source = allocate(8, stream), pinned(8)
    source[:] = 1
    copy(memory, source, 8, TO_DEVICE, stream)
    assert cuda.cudaStreamQuery(stream) == NOT_READY
    source[:] = 2  # too early: it is page-locked
    assert download(memory, 8, stream).tolist() == [2] * 8
    assert cuda.cudaStreamQuery(stream) == 0


def test_streams_with_threads():
    stream = new_stream("threads")
    memory, source = allocate(8, stream), pinned(8)
    source[:] = 1
    copy(memory, source, 8, TO_DEVICE, stream)
    while cuda.cudaStreamQuery(stream) == NOT_READY:
        pass
    source[:] = 2
    assert download(memory, 8, stream).tolist() == [1] * 8


@pytest.mark.parametrize("mode", ["lazy", "threads"])
def test_events_order_streams(mode):
    first, second = new_stream(mode), new_stream(mode)
    memory, event = allocate(8, first), ctypes.c_void_p()
    assert cuda.cudaEventCreateWithFlags(ctypes.byref(event), 2) == 0
    cuda.cudaMemsetAsync(pointer(memory), 7, ctypes.c_size_t(8), first)
    assert cuda.cudaEventRecord(event, first) == 0
    assert cuda.cudaStreamWaitEvent(second, event, 0) == 0
    assert download(memory, 8, second).tolist() == [7] * 8
    assert cuda.cudaEventQuery(event) == 0


def test_pageable_sources_are_read_at_once_but_where_the_host_s_page_tables_are_used():
    for late in (0, 1):
        control.set_options(pageable_reads_late=late)
        stream = new_stream()
        memory, source = allocate(8, stream), np.full(8, 1, np.uint8)
        copy(memory, source, 8, TO_DEVICE, stream)
        source[:] = 2
        assert download(memory, 8, stream).tolist() == [1 + late] * 8


def test_what_is_registered():
    """Pages of their own, not twice; memory that is registered in part is not copied."""
    array = own_pages(4)
    register = cuda.cudaHostRegister
    assert register(address(array, 100), ctypes.c_size_t(4096), 3) == 0
    assert register(address(array, 6000), ctypes.c_size_t(100), 3) == 712  # on the same page
    stream = new_stream()
    memory = allocate(8192, stream)
    assert copy(memory, array[100:], 4096, TO_DEVICE, stream) == 0
    assert copy(memory, array[50:], 40, TO_DEVICE, stream) == 0
    assert copy(memory, array[50:], 60, TO_DEVICE, stream) == INVALID_VALUE
    assert copy(memory, array[4000:], 400, TO_DEVICE, stream) == INVALID_VALUE
    cuda.cudaStreamSynchronize(stream)
    assert cuda.cudaHostUnregister(address(array, 101)) == 713
    assert cuda.cudaHostUnregister(address(array, 100)) == 0
    assert copy(memory, array[4000:], 400, TO_DEVICE, stream) == 0


def test_files_mapped_read_only(tmp_path):
    (tmp_path / "x").write_bytes(bytes(8192))
    array = np.memmap(tmp_path / "x", np.uint8, "r")
    size = ctypes.c_size_t(8192)
    assert cuda.cudaHostRegister(address(array), size, 3) == INVALID_VALUE
    assert cuda.cudaHostRegister(address(array), size, 3 | 8) == 0
    assert cuda.cudaHostUnregister(address(array)) == 0


def test_copies_lie_within_memory_that_is_there():
    stream = new_stream()
    memory, array = allocate(64, stream), np.zeros(64, np.uint8)
    assert copy(memory + 8, array, 64, TO_DEVICE, stream) == INVALID_VALUE
    assert copy(array, array, 8, TO_DEVICE, stream) == INVALID_VALUE
    cuda.cudaSetDevice(1)
    foreign = new_stream()
    assert copy(memory, array, 64, TO_DEVICE, foreign) == INVALID_VALUE
    cuda.cudaSetDevice(0)
    assert cuda.cudaFreeAsync(pointer(memory), stream) == 0
    assert cuda.cudaFreeAsync(pointer(memory), stream) == INVALID_VALUE
    cuda.cudaStreamSynchronize(stream)
    assert copy(memory, array, 64, TO_DEVICE, stream) == INVALID_VALUE


def test_peers_reach_what_cudamalloc_gave():
    at_once, pooled, array = allocate(8), allocate(8, new_stream()), np.zeros(8, np.uint8)
    cuda.cudaSetDevice(1)
    stream = new_stream()
    assert copy(at_once, array, 8, TO_DEVICE, stream) == INVALID_VALUE
    assert cuda.cudaDeviceEnablePeerAccess(0, 0) == 0
    assert cuda.cudaDeviceEnablePeerAccess(0, 0) == 704
    assert copy(at_once, array, 8, TO_DEVICE, stream) == 0
    assert copy(pooled, array, 8, TO_DEVICE, stream) == INVALID_VALUE


def test_queued_work_that_uses_what_is_gone_is_reported():
    """cudaFree and cudaFreeHost wait for nothing."""
    stream = new_stream()
    memory, source = allocate(8), pinned(8)
    copy(memory, source, 8, TO_DEVICE, stream)
    cuda.cudaFreeHost(address(source))
    cuda.cudaStreamSynchronize(stream)
    cuda.cudaMemsetAsync(pointer(memory), 1, ctypes.c_size_t(8), stream)
    cuda.cudaFree(pointer(memory))
    cuda.cudaStreamSynchronize(stream)
    first, second = control.violations()
    assert "its source" in first
    assert "fill" in second
    control.reset()


def test_capture():
    """What is captured is done whenever the graph is launched, also after its end."""
    stream = new_stream()
    memory = allocate(8, stream)
    begin_capture(stream)
    cuda.cudaMemsetAsync(pointer(memory), 5, ctypes.c_size_t(8), stream)
    error, graph = end_capture(stream)
    executable = ctypes.c_void_p()
    assert error == cuda.cudaGraphInstantiate(ctypes.byref(executable), graph, 0) == 0
    assert cuda.cudaGraphDestroy(graph) == 0
    assert set(download(memory, 8, stream)) == {0xA5}
    assert cuda.cudaGraphLaunch(executable, stream) == 0
    assert cuda.cudaGraphExecDestroy(executable) == 0
    assert set(download(memory, 8, stream)) == {5}


def refused_in_capture(stream, memory):
    """Calls that end a capture, and their errors."""
    out, size = ctypes.c_void_p(), ctypes.c_size_t(8)
    return [
        (lambda: cuda.cudaMalloc(ctypes.byref(out), size), CAPTURE_UNSUPPORTED),
        (lambda: cuda.cudaHostAlloc(ctypes.byref(out), size, 0), CAPTURE_UNSUPPORTED),
        (lambda: cuda.cudaMallocAsync(ctypes.byref(out), size, stream), CAPTURE_UNSUPPORTED),
        (lambda: cuda.cudaFreeAsync(pointer(memory), stream), INVALID_VALUE),
        (lambda: cuda.cudaStreamSynchronize(stream), CAPTURE_UNSUPPORTED),
        (lambda: cuda.cudaStreamQuery(stream), CAPTURE_UNSUPPORTED),
        (cuda.cudaDeviceSynchronize, CAPTURE_UNSUPPORTED),
        (lambda: cuda.cudaMemsetAsync(pointer(memory), 0, size, None), CAPTURE_IMPLICIT),
    ]


@pytest.mark.parametrize("which", range(8))
def test_what_is_refused_in_capture_ends_it(which):
    stream = new_stream()
    memory = allocate(8, stream)
    begin_capture(stream)
    run, error = refused_in_capture(stream, memory)[which]
    assert run() == error
    ended, graph = end_capture(stream)
    assert (ended, graph.value) == (CAPTURE_INVALIDATED, None)
    cuda.cudaFreeAsync(pointer(memory), stream)


def test_captures_of_a_thread_do_not_bind_others():
    stream = new_stream()
    begin_capture(stream)
    assert in_thread(lambda: allocate(8))
    assert end_capture(stream)[0] == 0


@pytest.mark.process
def test_memory_of_another_process():
    """Opened there by its handle, not here."""
    memory, handle = allocate(64), (ctypes.c_char * 64)()
    assert cuda.cudaIpcGetMemHandle(handle, pointer(allocate(8, new_stream()))) == INVALID_VALUE
    assert cuda.cudaIpcGetMemHandle(handle, pointer(memory)) == 0
    out = ctypes.c_void_p()
    same = Handle.from_buffer_copy(handle.raw)
    assert cuda.cudaIpcOpenMemHandle(ctypes.byref(out), same, 1) == 201
    code = (
        "import ctypes, sys\n"
        "from khop import _native\n"
        "cuda = ctypes.CDLL(_native.__file__)\n"
        "class Handle(ctypes.Structure):\n"
        "    _fields_ = (('reserved', ctypes.c_uint8 * 64),)\n"
        "handle, out = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])), ctypes.c_void_p()\n"
        "assert cuda.cudaIpcOpenMemHandle(ctypes.byref(out), handle, 1) == 0\n"
        "assert cuda.cudaMemsetAsync(out, 9, ctypes.c_size_t(64), None) == 0\n"
        "assert cuda.cudaDeviceSynchronize() == 0\n"
        "assert cuda.cudaIpcCloseMemHandle(out) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code, handle.raw.hex()], check=True)
    assert set(download(memory, 64, new_stream())) == {9}


OPENS = """
import ctypes, sys
from fake_cuda import control
from khop import _native
cuda = ctypes.CDLL(_native.__file__)
class Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_uint8 * 64),)
handle, out = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1])), ctypes.c_void_p()
assert cuda.cudaSetDevice(1) == 0
assert cuda.cudaIpcOpenMemHandle(ctypes.byref(out), handle, 0) == 1  # no lazy access
control.set_options(peers=0)
assert cuda.cudaIpcOpenMemHandle(ctypes.byref(out), handle, 1) == 217
control.set_options(peers=1)
assert cuda.cudaIpcOpenMemHandle(ctypes.byref(out), handle, 1) == 0
assert cuda.cudaDeviceEnablePeerAccess(0, 0) == 704  # opening has done so
print("opened", flush=True)
sys.stdin.readline()
assert cuda.cudaIpcCloseMemHandle(out) == 0
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.process
@pytest.mark.parametrize("is_closed", [False, True])
def test_memory_is_freed_when_others_have_closed_it(is_closed):
    """Another device's process opens it as a peer; to free it meanwhile is a violation."""
    memory, handle = allocate(64), (ctypes.c_char * 64)()
    assert cuda.cudaIpcGetMemHandle(handle, pointer(memory)) == 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", OPENS, handle.raw.hex()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as child:
        assert child.stdout.readline() == "opened\n"
        if is_closed:
            print(file=child.stdin, flush=True)
            assert child.stdout.readline() == "closed\n"
        assert cuda.cudaFree(pointer(memory)) == 0
        child.communicate("\n\n")
    assert child.returncode == 0
    violations = control.violations()
    control.reset()
    assert ("memory was freed that another process has opened: 64 bytes" in violations) != is_closed
