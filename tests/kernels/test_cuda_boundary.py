"""Where khop meets CUDA's runtime: lifetimes, errors, the current device, memory of the host.

On the tests' own runtime, which does what a GPU may do, not what it usually does.
"""

import ctypes
import gc
import mmap
import sys
import threading

import numpy as np
import pytest

from fake_cuda import control
from khop import _native
from khop.sampler.device.collect import EdgeNames
from support.devices import address_of, empty, fake, get, open_device, put
from support.kernels import hop_calls, runs
from support.kernels.device_batches import hub_graph, read
from support.reference.sampler import Options, Seeds

LARGE = 33 << 20
"""Bytes of an array that is registered; smaller ones may share pages with others."""


@pytest.fixture(params=[pytest.param("lazy", marks=fake), pytest.param("threads", marks=fake)])
def gpu(request):
    """A device whose work is done when somebody waits, or by a thread as soon as it can."""
    control.set_mode(request.param)
    return open_device("fake")


@pytest.fixture
def lazy():
    """A device whose work is done when somebody waits for it."""
    control.set_mode("lazy")
    return open_device("fake")


def gathered(device, table, rows, shape, dtype):
    out = empty(device, shape, dtype)
    table.gather(put(device, rows), out)
    return get(out)


def in_thread(run):
    """Runs it in a new thread, on no device yet; raises what it raises."""
    failures = []

    def caught():
        try:
            run()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def draw_batches(graph, device=None):
    """Three batches, two of them played from a recording, and their features.

    Returns what they were drawn with.
    """
    device = device or open_device("fake")
    graphs = [_native.DeviceGraph(device, csr, "ZERO_COPY") for csr in graph.csrs()]
    batch = _native.DeviceSubgraph(device, graph.num_nodes, graph.pairs(), True, room=64)
    table = _native.DeviceTable(device, np.arange(graph.num_nodes[0]), "CPU")
    for number in range(3):
        batch.begin()
        batch.add_seeds(0, np.arange(5))
        hop_calls.sample(batch, graphs, [[3, 2]], False, [False], False, 1, number, True)
        nodes = empty(device, batch.num_nodes(0), np.int64)
        batch.write([address_of(nodes)], [], [], [], [])
        out = empty(device, batch.num_nodes(0), np.int64)
        table.gather(nodes, out)
        assert np.array_equal(get(out), get(nodes))
    return [nodes, out, table, batch, graphs]


def work_on(index):
    """Asks a device for everything; returns what it gave."""
    device = _native.cuda_device(index)
    array = np.arange(LARGE // 8)
    held = [device]
    for mode in ("CUDA", "ZERO_COPY", "CPU"):
        held.append(_native.DeviceTable(device, array, mode))
        rows = np.array([5, 0, len(array) - 1])
        out = empty(device, 3, np.int64)
        held[-1].gather(put(device, rows), out)
        assert np.array_equal(get(out), rows)
    held.append(_native.DeviceMemory.allocate_shared(device, 8))
    assert held[-1].handle
    pages = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)  # that nobody else has a part of
    held.append(_native.LockedPages(device, pages))
    assert held[-1].is_locked
    return held + draw_batches(hub_graph(100, 20), device)


@fake
def test_a_thread_creates_the_context_of_its_device_alone():
    """Also where it has chosen none before: that would be another process's half gigabyte.

    What a device gave is given back by other threads, which have chosen none either.
    """
    gc.collect()  # devices of other tests
    control.reset()
    held = []
    in_thread(lambda: held.extend(work_on(1)))
    gc.collect()
    while held:
        in_thread(held.pop)
    assert control.contexts() == {1: "cudaSetDevice"}


@fake
def test_the_current_device_stays_what_it_was():
    """If anybody uses it."""
    current = ctypes.c_int()
    assert control.runtime().cudaSetDevice(0) == 0
    work_on(1)
    assert control.runtime().cudaGetDevice(ctypes.byref(current)) == 0
    assert current.value == 0


CALLS = [
    "cudaStreamCreateWithPriority",
    "cudaMallocAsync",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "cudaStreamSynchronize",
    "cudaHostAlloc",
    "cudaStreamBeginCapture",
    "cudaStreamEndCapture",
    "cudaGraphInstantiate",
    "cudaGraphLaunch",
]


@fake
@pytest.mark.parametrize("function", CALLS)
def test_a_call_that_failed_fails_once(function):
    """What comes next works, nothing is left of the error, and no memory either."""
    graph = hub_graph(100, 20)
    draw_batches(graph)
    gc.collect()
    used = control.used_memory()
    before = control.calls(function)
    draw_batches(graph)
    gc.collect()
    made = control.calls(function) - before
    assert made > 0
    for nth in sorted({1, (made + 1) // 2}):
        control.fail(function, nth, "cudaErrorMemoryAllocation")
        try:
            with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
                draw_batches(graph)
        finally:
            gc.collect()
        assert control.runtime().cudaPeekAtLastError() == 0
        draw_batches(graph)
        gc.collect()
        assert control.used_memory() == used


@fake
def test_a_device_that_is_short_of_memory_goes_on(lazy):
    """A smaller request, or a gather from the host, after one that was refused."""
    array = np.arange(1000)
    control.set_options(memory=1 << 20)
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        _native.DeviceMemory.allocate(lazy, 2 << 20)
    assert control.runtime().cudaPeekAtLastError() == 0
    table = _native.DeviceTable(lazy, array, "ZERO_COPY")
    assert gathered(lazy, table, np.array([7, 999]), (2,), np.int64).tolist() == [7, 999]


@fake
@pytest.mark.parametrize("mode", ["CUDA", "pinned", "registered", "group"])
def test_tables_wait_for_what_still_reads_them(mode):
    """Gathers that nobody waited for are done before their table's memory goes."""
    control.set_mode("lazy")
    device, other = open_device("fake"), _native.cuda_device(1)
    size = LARGE // 8 if mode == "registered" else 1000
    array = np.arange(size)
    hot = None
    if mode == "group":
        hot = _native.HotRows(_native.DeviceGroup([device, other]), array)
    where = "CUDA" if mode in ("CUDA", "group") else "ZERO_COPY"
    table = _native.DeviceTable(device, array, where, hot)
    assert table.place == {"pinned": "pinned copy", "registered": "mapped"}.get(mode, "device")
    rows = np.random.default_rng(0).integers(0, size, 300)
    ids, out = put(device, rows), empty(device, 300, np.int64)
    table.gather(ids, out, wait=False)
    del table, hot
    array[:] = -1  # it may be: nobody reads it any more
    assert np.array_equal(get(out), rows)


@fake
@pytest.mark.parametrize("own_stream", [True, False])
def test_graphs_wait_for_what_is_drawn_from_them(own_stream):
    """Also on another stream of their GPU, and though the batch is never asked for."""
    control.set_mode("lazy")
    device = open_device("fake")
    reader = device if own_stream else open_device("fake")
    graph = hub_graph(100, 20)
    for mode in ("CUDA", "ZERO_COPY"):
        graphs = [_native.DeviceGraph(device, csr, mode) for csr in graph.csrs()]
        batch = _native.DeviceSubgraph(reader, [100], [(0, 0)], True)
        batch.begin()
        batch.add_seeds(0, np.arange(5))
        hop_calls.sample(batch, graphs, [[3]], False, [False], False, 1, 0)
        asked = control.count("launches")
        assert control.count("kernels_run") < asked
        batch.begin()
        del graphs
        gc.collect()
        assert control.count("kernels_run") == asked
        del batch


@fake
def test_devices_that_cannot_be_opened_leave_nothing():
    control.fail("cudaMallocAsync")
    with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
        open_device("fake")
    made, gone = (control.calls(f"cudaStream{call}") for call in ("CreateWithPriority", "Destroy"))
    assert made == gone == 1


@fake
def test_memory_that_other_threads_drop_while_a_batch_is_recorded(lazy):
    """The driver would take it for the graph's, and end the recording."""
    graph = hub_graph(100, 20)
    graphs = [_native.DeviceGraph(lazy, csr) for csr in graph.csrs()]
    dropped = [_native.DeviceMemory.allocate(lazy, 8) for _ in range(4000)]
    gathers = threading.Thread(target=dropped.clear)
    batches = [_native.DeviceSubgraph(lazy, [100], [(0, 0)], True, room=64) for _ in range(60)]
    for batch in batches:
        batch.begin()
        batch.add_seeds(0, np.arange(5))
        hop_calls.sample(batch, graphs, [[3, 2]], False, [False], False, 1, 0, True)
    gathers.start()
    for batch in batches:
        batch.begin()
        batch.add_seeds(0, np.arange(5))
        hop_calls.sample(batch, graphs, [[3, 2]], False, [False], False, 1, 0, True)
        assert batch.num_nodes(0) > 5
    gathers.join()


@pytest.mark.parametrize("finish", ["induced", "bidirectional"])
def test_recordings_keep_their_memory(gpu, finish):
    """What is made of a batch after it was drawn needs more and more memory."""
    graph = hub_graph(40_000, 2000)
    extra = {"induced": True} if finish == "induced" else {"reversals": ((0, 0, False),)}
    fanouts = [[5, 2]]
    on_cpu = graph.subgraph(False)
    batch = _native.DeviceSubgraph(gpu, graph.num_nodes, graph.pairs(), True, room=1 << 18)
    graphs = [_native.DeviceGraph(gpu, csr) for csr in graph.csrs()]
    few, some, many = [20] * 500, [*range(20, 120)] * 5, [*range(500)]
    for number, ids in enumerate([few, few, few, some, few, many, few]):
        seeds = [Seeds(0, ids, None)]
        options = Options(fanouts, [False], False, run=5, batch=number, **extra)
        runs.at_once(on_cpu, graph.csrs(), seeds, options)
        runs.begin(batch, seeds, options)
        hop_calls.sample(batch, graphs, fanouts, False, [False], False, 5, number, True)
        runs.complete(batch, graphs, options)
        assert read(gpu, batch, graph, options) == runs.read(on_cpu, graph, options)
    control.finish()
    assert control.violations() == []


@fake
def test_recorded_kernels_are_not_launched():
    """Twenty-five kernels of a batch; then one launch, also of the batch that records."""
    device = open_device("fake")
    graph = hub_graph(100, 20)
    graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
    batch = _native.DeviceSubgraph(device, [100], [(0, 0)], True)
    launches = []
    for number in range(4):
        batch.begin()
        batch.add_seeds(0, np.arange(5))
        before = device.num_launches
        hop_calls.sample(batch, graphs, [[15, 10, 5]], False, [False], False, 1, number, True)
        launches.append(device.num_launches - before)
        assert batch.num_nodes(0) > 5
    assert launches[0] > 10
    assert launches[1:] == [1, 1, 1]


@fake
def test_an_allocator_that_is_interrupted(monkeypatch):
    """Ctrl-C in it is told like that of any destructor: it does not end the process."""
    told, cuda = [], control.runtime()
    monkeypatch.setattr(sys, "unraisablehook", lambda about: told.append(about.exc_type))

    def allocate(nbytes):
        memory = ctypes.c_void_p()
        assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(nbytes)) == 0
        return memory.value

    def release(address):
        assert cuda.cudaFree(ctypes.c_void_p(address)) == 0
        raise KeyboardInterrupt

    device = _native.cuda_device(0, 0, allocate, release)
    memory = _native.DeviceMemory.allocate(device, 100)
    memory.upload(0, np.arange(3))
    device.synchronize()  # the allocator does not take it back in the stream's order
    del memory
    assert told == [KeyboardInterrupt]


@fake
def test_gpus_that_khop_was_not_built_for():
    control.set_options(major=7, minor=5)
    message = r"GPU 0 has compute capability 7\.5, but khop was built for 8\.0 and later"
    with pytest.raises(RuntimeError, match=message):
        _native.cuda_device(0)
    control.set_options(major=8, minor=0)
    _native.cuda_device(0)


def memory_taken_by(degree):
    """Bytes of device memory that a weighted graph on the host and a batch of it take."""
    graph = hub_graph(20_000, 20)
    relation = graph.relations[0]
    relation.indptr = np.arange(20_001) * degree
    relation.indices = np.arange(20_000 * degree, dtype=np.int32) % 20_000
    relation.weights = np.ones(20_000 * degree, np.float32)
    gc.collect()
    control.finish()
    before = control.used_memory()
    device = open_device("fake")
    graphs = [_native.DeviceGraph(device, csr, "ZERO_COPY") for csr in graph.csrs()]
    names = EdgeNames(device, {0: np.arange(20_000 * degree)}, 1, "ZERO_COPY")
    batch = _native.DeviceSubgraph(device, graph.num_nodes, graph.pairs(), True)
    batch.begin()
    batch.add_seeds(0, np.arange(10))
    hop_calls.sample(batch, graphs, [[3, 2]], False, [True], False, 1, 0)
    edges = empty(device, 100, np.int64)
    batch.write([], [], [address_of(edges)], [], names.entries)
    num_edges = batch.num_edges(0)
    assert len(np.unique(get(edges)[:num_edges])) == num_edges > 30
    return control.used_memory() - before


@fake
def test_nothing_on_the_device_grows_with_the_edges_of_a_graph_on_the_host():
    """Rows, neighbours, weights and the users' ids of edges are read in place."""
    assert 0 < memory_taken_by(10) == memory_taken_by(40) < 20_000 * 10 * 4
