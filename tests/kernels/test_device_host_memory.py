"""Memory of the host that devices read in place or copy: what is registered, and what is copied.

On the tests' own runtime, which does what a GPU may do, not what it usually does.
"""

import ctypes
import subprocess
import sys

import numpy as np
import pytest
import torch

from fake_cuda import control
from khop import _native
from support.devices import empty, fake, get, open_device, put
from support.kernels import runs
from support.kernels.device_batches import hub_graph, read
from support.reference.sampler import Options, Seeds

LARGE = 33 << 20
"""Bytes of an array that is registered; smaller ones may share pages with others."""


@pytest.fixture
def lazy():
    """A device whose work is done when somebody waits for it."""
    control.set_mode("lazy")
    return open_device("fake")


def gathered(device, table, rows, shape, dtype):
    out = empty(device, shape, dtype)
    table.gather(put(device, rows), out)
    return get(out)


def pages_of(array):
    """The array's whole pages."""
    first = -array.ctypes.data % 4096
    return array.view(np.uint8)[first : first + (array.nbytes - first) // 4096 * 4096]


@fake
def test_memory_that_others_see_waits_for_what_writes_it(lazy):
    """It is given back at once, wherever the device's work has got to."""
    shared = _native.DeviceMemory.allocate_shared(lazy, 8)
    shared.upload(0, np.array([3]))
    del shared
    control.finish()
    assert control.violations() == []


@fake
def test_memory_that_is_registered_in_part(lazy):
    """The driver copies none of it as it is; whose it is has nothing to do with khop."""
    base = np.arange(LARGE // 4, dtype=np.int32)
    locked = _native.LockedPages(lazy, pages_of(base[1000 : LARGE // 8]))
    assert locked.is_locked
    memory = _native.DeviceMemory.allocate(lazy, base.nbytes)
    memory.upload(0, base)
    assert np.array_equal(control_download(memory, base.shape, base.dtype), base)
    target = base.copy()
    target[:] = 0
    some_pages = _native.LockedPages(lazy, pages_of(target[: LARGE // 8]))
    assert some_pages.is_locked
    memory.download(0, target)
    assert np.array_equal(target, base)
    table = _native.DeviceTable(lazy, base, "CUDA")
    rows = np.array([0, len(base) - 1, 77_777])
    assert np.array_equal(gathered(lazy, table, rows, (3,), np.int32), rows)


@fake
def test_graphs_of_memory_that_is_registered_in_part(lazy):
    graph = hub_graph()
    indices = graph.relations[0].indices
    locked = _native.LockedPages(lazy, pages_of(indices[: len(indices) // 2]))
    assert locked.is_locked
    on_cpu = graph.subgraph(False)
    batch = _native.DeviceSubgraph(lazy, graph.num_nodes, graph.pairs(), True, room=1 << 10)
    seeds, options = [Seeds(0, [0, 5, 7], None)], Options([[5, 5]], [False], False, run=1)
    runs.at_once(on_cpu, graph.csrs(), seeds, options)
    graphs = [_native.DeviceGraph(lazy, csr) for csr in graph.csrs()]
    runs.at_once(batch, graphs, seeds, options)
    assert read(lazy, batch, graph, options) == runs.read(on_cpu, graph, options)


def control_download(memory, shape, dtype):
    """What lies in a device's memory, copied to an array that nobody has registered."""
    array = np.empty(shape, dtype)
    memory.download(0, array)
    return array


@fake
def test_only_own_pages_are_registered_for_tables(lazy):
    """Arrays on pages of their own. No neighbour's memory is refused for it."""
    small = _native.DeviceTable(lazy, np.arange(LARGE // 16), "ZERO_COPY")
    assert small.place == "pinned copy"
    assert control.calls("cudaHostRegister") == 0
    base = np.arange(2 * LARGE // 8 + 1000)
    half = LARGE // 8 + 600
    few = _native.DeviceTable(lazy, base[: LARGE // 8], "ZERO_COPY")
    assert few.place == "pinned copy"  # of less than half of what would have to be locked
    first = _native.DeviceTable(lazy, base[1:][: half - 1], "ZERO_COPY")
    second = _native.DeviceTable(lazy, base[half:], "ZERO_COPY")
    part = _native.DeviceTable(lazy, base[500:900], "ZERO_COPY")
    assert [t.place for t in (first, second, part)] == ["mapped"] * 3
    assert control.calls("cudaHostRegister") == 1
    for array in (base, base[half:], base[: LARGE // 8]):
        assert can_be_copied(array)
    del first, second
    assert gathered(lazy, part, np.array([0, 399]), (2,), np.int64).tolist() == [500, 899]


def can_be_copied(array):
    """Whether other code, which knows nothing of khop, can copy it to a GPU."""
    stream, address, cuda = ctypes.c_void_p(), ctypes.c_void_p(), control.runtime()
    size, source = ctypes.c_size_t(array.nbytes), ctypes.c_void_p(array.ctypes.data)
    assert cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    assert cuda.cudaMalloc(ctypes.byref(address), size) == 0
    error = cuda.cudaMemcpyAsync(address, source, size, 1, stream)
    assert cuda.cudaStreamSynchronize(stream) == 0
    assert cuda.cudaFree(address) == cuda.cudaStreamDestroy(stream) == 0
    return error == 0


@fake
@pytest.mark.parametrize("whose", ["numpy", "torch", "file"])
def test_parts_of_what_others_own(lazy, whose, tmp_path):
    """The user's array, tensor or mapped file can be copied as a whole, with a part in use."""
    count = LARGE // 8 + 5000
    if whose == "torch":
        tensor = torch.arange(count)
        base = tensor.numpy()
        array = tensor[4000:].reshape(-1, 1).numpy()
    elif whose == "numpy":
        base = np.arange(count)
        array = base[4000:].reshape(-1, 1)
    else:
        np.save(tmp_path / "x.npy", np.arange(count))
        base = np.load(tmp_path / "x.npy", mmap_mode="r")
        array = base[4000:].reshape(-1, 1)
    table = _native.DeviceTable(lazy, array, "ZERO_COPY")
    assert table.place == "mapped"
    assert can_be_copied(base)
    indptr = np.linspace(0, len(array), 100).astype(np.int64)
    graph = _native.DeviceGraph(lazy, _native.Csr(indptr, array[:, 0]), "ZERO_COPY")
    assert control.calls("cudaHostRegister") == 1
    del table
    assert can_be_copied(base)
    del graph
    assert control.calls("cudaHostUnregister") == 1


@fake
def test_memory_of_others_that_has_a_hole(lazy):
    """Only its first and last pages are locked: it is copied, for no kernel reads the rest."""
    base = np.arange(LARGE // 8)
    pages = pages_of(base)
    locked = [_native.LockedPages(lazy, pages[part]) for part in (slice(4096), slice(-4096, None))]
    assert all(one.is_locked for one in locked)
    table = _native.DeviceTable(lazy, pages, "ZERO_COPY")
    assert table.place == "pinned copy"
    whole = _native.LockedPages(lazy, pages[4096:-4096])
    assert whole.is_locked
    assert _native.DeviceTable(lazy, pages, "ZERO_COPY").place == "mapped"
    rows = np.array([0, 5000, len(pages) - 1])
    assert np.array_equal(gathered(lazy, table, rows, (3,), np.uint8), pages[rows])


@fake
def test_sources_may_change_after_an_upload():
    """Also where devices read pageable memory themselves, when they come so far."""
    control.set_options(pageable_reads_late=1)
    control.set_mode("lazy")
    device = open_device("fake")
    for size in (3, 10_000, 5 << 20):
        array = np.arange(size)
        memory = _native.DeviceMemory.allocate(device, array.nbytes)
        memory.upload(0, array)
        array[:] = -1
        got = control_download(memory, (size,), np.int64)
        assert np.array_equal(got, np.arange(size))


@fake
def test_batches_where_pageable_memory_is_read_late():
    """Seeds, keys, times and exclusions are uploaded from memory that is used for the next."""
    control.set_options(pageable_reads_late=1)
    graph = hub_graph(200, 100)
    device = open_device("fake")
    on_cpu = graph.subgraph(False)
    batch = _native.DeviceSubgraph(device, graph.num_nodes, graph.pairs(), True, room=1 << 10)
    excluded = {0: {(0, int(n)) for n in graph.relations[0].indices[:50]}}
    for number in range(4):
        seeds = [Seeds(0, [number, 3, 0], None)]
        options = Options([[5, 3]], [False], False, run=2, batch=number, excluded=excluded)
        runs.at_once(on_cpu, graph.csrs(), seeds, options)
        graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
        runs.at_once(batch, graphs, seeds, options)
        assert read(device, batch, graph, options) == runs.read(on_cpu, graph, options)


@pytest.mark.process
def test_arrays_whose_end_runs_python():
    """What an array's end runs may wait for another thread, which registers memory meanwhile."""
    code = (
        "import ctypes, threading, time, weakref\n"
        "import numpy as np\n"
        "from khop import _native\n"
        "device = _native.emulated_device()\n"
        "begun = threading.Event()\n"
        "def end():\n"
        "    begun.set()\n"
        "    time.sleep(0.3)\n"
        "array, other = np.arange(1 << 13), np.arange(1 << 13)\n"
        "weakref.finalize(array, end)\n"
        "same = (ctypes.c_int64 * len(array)).from_address(array.ctypes.data)\n"
        "first = _native.DeviceMemory.mapped(device, array)\n"
        "last = _native.DeviceMemory.mapped(device, np.ctypeslib.as_array(same))\n"
        "del array, first\n"
        "def map_other():\n"
        "    begun.wait()\n"
        "    _native.DeviceMemory.mapped(device, other)\n"
        "thread = threading.Thread(target=map_other)\n"
        "thread.start()\n"
        "del last\n"
        "thread.join()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@fake
def test_rows_that_begin_anywhere(lazy):
    """Rows of 8 bytes at odd addresses are read in place, byte by byte."""
    base = np.random.default_rng(0).integers(0, 256, LARGE + 8).astype(np.uint8)
    array = base[1 : LARGE + 1].reshape(-1, 8)
    table = _native.DeviceTable(lazy, array, "ZERO_COPY")
    assert table.place == "mapped"
    rows = np.array([0, 77, len(array) - 1])
    assert np.array_equal(gathered(lazy, table, rows, (3, 8), np.uint8), array[rows])


@fake
@pytest.mark.parametrize(("begin", "place"), [(1, "pinned copy"), (2, "mapped")])
def test_values_of_two_bytes_that_begin_anywhere(lazy, begin, place):
    """Values that are widened are read whole: those at odd addresses in a copy."""
    base = np.random.default_rng(0).integers(0, 120, LARGE + 8).astype(np.uint8)
    array = base[begin : LARGE + begin].reshape(-1, 8)
    table = _native.DeviceTable(lazy, array, "ZERO_COPY", encoding="float16")
    assert table.place == place
    rows = np.array([0, 77, len(array) - 1])
    expected = array[rows].copy().view(np.float16).astype(np.float32)
    assert np.array_equal(gathered(lazy, table, rows, (3, 4), np.float32), expected)
