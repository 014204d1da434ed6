"""Batches and gathers of a device after some that failed or that nobody asked for.

What comes next is whole, recorded or not. Memory runs out on the tests' own CUDA runtime, call by
call; the graph that changes is one that any device reads in place.
"""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fake_cuda import control
from khop import _native
from support.devices import KINDS, empty, fake, get, open_device, put
from support.kernels import hop_calls, runs
from support.kernels.device_batches import hub_graph, read
from support.reference.sampler import Options, Seeds

LARGE = 33 << 20
"""Bytes of an array that is read in place."""

GROWING = ("cudaMallocAsync", "cudaHostAlloc", "cudaMemsetAsync")
"""What is called where a batch needs more memory than those before it."""


class Drawing:
    """Batches of one object, each compared with the CPU's.

    Args:
        device: that draws them.
        room: entries that memory is taken for at once.
        fanouts: of each hop.
        replays: batches are recorded and replayed.
        weighted: draws follow weights of the edges.
    """

    def __init__(self, device, room, fanouts=(4, 3), replays=True, weighted=False):
        self.graph = hub_graph(300, 250, weighted)
        self.weighted = [weighted]
        self.device = device
        self.fanouts = [[*fanouts]]
        self.replays = replays
        self.on_cpu = self.graph.subgraph(False)
        self.graphs = [_native.DeviceGraph(device, csr) for csr in self.graph.csrs()]
        self.batch = _native.DeviceSubgraph(
            device, self.graph.num_nodes, self.graph.pairs(), True, room=room
        )
        self.number = 0

    def draw(self, num_seeds, num_excluded=0, is_asked_for=True, labor=False):
        """Draws a batch, and waits for it unless nobody asks for it."""
        self.number += 1
        seeds = [Seeds(0, [*range(num_seeds)], None)]
        excluded = {(0, int(n)) for n in self.graph.relations[0].indices[:num_excluded]}
        options = Options(
            *(self.fanouts, self.weighted, False),
            run=3,
            batch=self.number,
            excluded={0: excluded} if excluded else {},
            labor=labor,
        )
        runs.begin(self.batch, seeds, options)
        hop_calls.sample(
            *(self.batch, self.graphs, self.fanouts, False, self.weighted, False, 3, self.number),
            method=options.method,
            cuda_graph=self.replays,
        )
        if not is_asked_for:
            return
        drawn = read(self.device, self.batch, self.graph, options)
        runs.at_once(self.on_cpu, self.graph.csrs(), seeds, options)
        assert drawn == runs.read(self.on_cpu, self.graph, options)


SMALL = (6, 0)
LARGER = {"seeds": ((4, 3), (250, 0)), "exclusions": ((-1, 3), (6, 200))}
"""Why a batch needs more memory: fan-outs, and its numbers of seeds and of excluded edges."""


def drawing_of_three(reason, room):
    """Three small batches, two of them replayed, and what a larger one needs more of."""
    fanouts, larger = LARGER[reason]
    drawing = Drawing(open_device("fake"), room, fanouts)
    for _ in range(3):
        drawing.draw(*SMALL)
    return drawing, larger


@fake
@pytest.mark.parametrize("function", GROWING)
@pytest.mark.parametrize("room", [16, 1 << 16])
@pytest.mark.parametrize("reason", LARGER)
def test_batches_after_each_allocation_that_fails(function, room, reason):
    """Of all that a larger batch makes: smaller and larger batches come whole.

    None is replayed from memory that was given back meanwhile.
    """
    drawing, larger = drawing_of_three(reason, room)
    before = control.calls(function)
    drawing.draw(*larger)
    made = control.calls(function) - before
    assert made > 0 or function == "cudaMemsetAsync"
    for nth in range(1, made + 1):
        drawing, larger = drawing_of_three(reason, room)
        control.fail(function, nth)
        with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
            drawing.draw(*larger)
        for sizes in (SMALL, SMALL, SMALL, (90, 0), SMALL, larger, larger, SMALL):
            drawing.draw(*sizes)
        del drawing
        gc.collect()


@fake
@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize(
    ("room", "fanouts", "left"), [(1 << 16, (4, 3), 64 << 10), (16, (-1, 3), 512 << 10)]
)
def test_a_batch_that_is_too_large_for_the_memory(replays, room, fanouts, left):
    """It alone fails: later ones do not ask for as much, nor for what it has turned out to need."""
    drawing = Drawing(open_device("fake"), room, fanouts, replays)
    drawing.draw(6)
    control.set_options(memory=control.used_memory() + 1000)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cudaErrorMemoryAllocation"):
            drawing.draw(300)
        control.set_options(memory=control.used_memory() + left)
        for _ in range(3):
            drawing.draw(6)


@fake
def test_a_batch_whose_draw_failed_has_no_size():
    """Whoever asks for it all the same gets an error, not the sizes of an earlier one."""
    drawing = Drawing(open_device("fake"), 16)
    drawing.draw(6)
    control.fail("cudaLaunchKernelExC", 3, "cudaErrorLaunchFailure")
    with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
        drawing.draw(6)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="could not be drawn"):
            drawing.batch.sizes()
    drawing.draw(6)


ROWS = LARGE // 8
"""Of a graph whose row pointers are large enough to be read in place."""


@pytest.mark.parametrize("kind", KINDS)
def test_recordings_are_of_one_method(kind):
    """Weighted draws of one fan-out have the same bounds by either method, and other kernels."""
    drawing = Drawing(open_device(kind), 1 << 16, weighted=True)
    for number in range(8):
        drawing.draw(6, labor=number // 2 % 2 == 1)


@pytest.fixture(params=["lazy", "threads"])
def late(request):
    """A device whose work is done when somebody waits, or by a thread as soon as it can."""
    control.set_mode(request.param)
    return open_device("fake")


@fake
@pytest.mark.parametrize("replays", [False, True])
def test_batches_that_nobody_asks_for(late, replays):
    """What was uploaded for them has arrived before it is written over, or its memory goes."""
    drawing = Drawing(late, 16, replays=replays)
    for num_seeds in (6, 90, 6, 250, 30, 6):
        drawing.draw(num_seeds, is_asked_for=False)
        drawing.draw(num_seeds + 20)
    drawing.draw(6, is_asked_for=False)
    del drawing.batch  # the graph, which would wait, is still there
    control.finish()
    assert control.violations() == []


@fake
@pytest.mark.process
def test_memory_of_another_process_is_closed_when_its_work_is_done():
    """The process that opened it has asked for a copy to it, and drops it at once."""
    shared = _native.DeviceMemory.allocate_shared(open_device("fake"), 800)
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from fake_cuda import control\n"
        "from khop import _native\n"
        "control.set_mode('lazy')\n"
        "device = _native.cuda_device(0)\n"
        "memory = _native.DeviceMemory.open(device, bytes.fromhex(sys.argv[1]), 800)\n"
        "memory.upload(0, np.arange(100))\n"
        "del memory\n"
        "control.finish()\n"
        "assert control.violations() == [], control.violations()\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "-c", code, shared.handle.hex()],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    found = np.empty(100, np.int64)
    shared.download(0, found)
    assert found.tolist() == [*range(100)]


@fake
def test_gathers_after_a_sort_that_found_no_memory():
    """Sorts keep four arrays to work in; a smaller gather than the one that failed needs them."""
    array = np.arange(3000)
    rows = np.random.default_rng(0).integers(0, 3000, 2000)
    for nth in range(1, 6):
        device = open_device("fake")
        table = _native.DeviceTable(device, array, "ZERO_COPY", sorts_from=1)
        out = empty(device, 2000, np.int64)
        some, all_of_them = put(device, rows[:10]), put(device, rows)
        table.gather(some, out[:10])
        control.fail("cudaMallocAsync", nth)
        try:
            table.gather(all_of_them, out)
        except RuntimeError as error:
            assert "cudaErrorMemoryAllocation" in str(error)
        for count, wanted in ((10, some), (2000, all_of_them)):
            table.gather(wanted, out[:count])
            assert np.array_equal(get(out)[:count], rows[:count])


@fake
def test_a_table_waits_for_a_gather_that_failed_half_way():
    """Rows are sorted and read a piece at a time: the first piece was asked for, the next fails."""
    control.set_mode("lazy")
    device = open_device("fake")
    array = np.arange(LARGE // 8)
    table = _native.DeviceTable(device, array, "ZERO_COPY")
    assert table.place == "mapped"
    count = (1 << 20) + 3
    rows = np.random.default_rng(0).integers(0, len(array), count)
    wanted, out = put(device, rows), empty(device, count, np.int64)
    before = control.calls("cudaLaunchKernelExC")
    table.gather(wanted, out, wait=False)
    launches = control.calls("cudaLaunchKernelExC") - before
    device.synchronize()
    control.fail("cudaLaunchKernelExC", launches, "cudaErrorLaunchFailure")
    table = _native.DeviceTable(device, array, "ZERO_COPY")
    out = empty(device, count, np.int64)
    with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
        table.gather(wanted, out, wait=False)
    del table
    array[:] = -1  # it may be: nobody reads it any more
    assert np.array_equal(get(out)[: 1 << 20], rows[: 1 << 20])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [4, 8])
def test_arrays_that_begin_between_two_entries(kind, width):
    """Of a file with a header of some bytes, say. No GPU reads entries there: they are copied."""
    device = open_device(kind)
    entries = np.arange(LARGE // width).astype(f"i{width}")
    file = np.empty(LARGE + width, np.uint8)
    array = file[1 : LARGE + 1].view(entries.dtype)
    array[:] = entries
    memory = _native.DeviceMemory.mapped(device, array)
    assert memory.address % width == 0
    indptr = np.arange(0, len(array) + 1, 1 << 10)
    csr = _native.Csr(indptr, np.minimum(array, 99, out=array))
    batch = _native.DeviceSubgraph(device, [len(indptr) - 1], [(0, 0)], True)
    batch.begin()
    batch.add_seeds(0, np.array([0]))
    graphs = [_native.DeviceGraph(device, csr, "ZERO_COPY")]
    hop_calls.sample(batch, graphs, [[-1]], False, [False], False, 1, 0)
    assert batch.num_nodes(0) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_changes_while_it_is_read_in_place(kind):
    """A row has more edges than any had when the device got the graph.

    It is an error, not a batch that is drawn again and again.
    """
    indptr = np.arange(ROWS + 1)
    csr = _native.Csr(indptr, np.zeros(ROWS, np.int32))
    graphs = [_native.DeviceGraph(open_device(kind), csr, "ZERO_COPY")]
    batch = _native.DeviceSubgraph(open_device(kind), [ROWS], [(0, 0)], True, room=4)
    draw_all(batch, graphs)
    assert batch.num_edges(0) == 1
    indptr[1:10] = 9
    draw_all(batch, graphs)
    with pytest.raises(RuntimeError, match="more edges than its graph had"):
        batch.sizes()


def draw_all(batch, graphs):
    """All in-edges of node 0."""
    batch.begin()
    batch.add_seeds(0, np.array([0]))
    hop_calls.sample(batch, graphs, [[-1]], False, [False], False, 1, 0)
