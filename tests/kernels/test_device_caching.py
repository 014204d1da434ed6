"""Devices whose memory comes from an allocator such as torch's, and groups of devices.

On the tests' own CUDA runtime. A block that khop releases is somebody else's at once, in the order
of the stream.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fake_cuda import control
from fake_cuda.caching import CachingAllocator
from khop import _native
from support.devices import empty, fake, get, open_device, put
from support.kernels import hop_calls, runs
from support.kernels.device_batches import hub_graph, read
from support.kernels.device_tables import MODES, gathered, open_table
from support.reference.sampler import Options, Seeds

pytestmark = fake


@pytest.fixture(params=["lazy", "threads"])
def cached(request):
    """A device with a caching allocator and a stream of its own."""
    control.set_mode(request.param)
    stream, cuda = ctypes.c_void_p(), control.runtime()
    assert cuda.cudaStreamCreateWithFlags(ctypes.byref(stream), 1) == 0
    blocks = CachingAllocator(stream.value)
    device = _native.cuda_device(0, stream.value, blocks.allocate, blocks.release)
    yield device
    device.synchronize()
    blocks.close()


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("finish", ["drawn", "induced", "bidirectional", "excluded"])
def test_batches(cached, finish, replays):
    """They grow and shrink, so that their memory is released under queued work."""
    graph = hub_graph(3000, 250)
    extra = {"induced": {"induced": True}, "bidirectional": {"reversals": ((0, 0, False),)}}
    on_cpu = graph.subgraph(False)
    batch = _native.DeviceSubgraph(cached, graph.num_nodes, graph.pairs(), True, room=64)
    graphs = [_native.DeviceGraph(cached, csr) for csr in graph.csrs()]
    for number, num_seeds in enumerate((5, 60, 60, 7, 200, 7)):
        seeds = [Seeds(0, [*range(num_seeds)], None)]
        excluded = {(0, int(n)) for n in graph.relations[0].indices[: 20 * number]}
        options = Options(
            *([[5, 2]], [False], False),
            run=5,
            batch=number,
            excluded={0: excluded} if finish == "excluded" and number else {},
            **extra.get(finish, {}),
        )
        runs.begin(batch, seeds, options)
        hop_calls.sample(batch, graphs, [[5, 2]], False, [False], False, 5, number, replays)
        runs.complete(batch, graphs, options)
        drawn = read(cached, batch, graph, options)
        runs.at_once(on_cpu, graph.csrs(), seeds, options)
        assert drawn == runs.read(on_cpu, graph, options)


@pytest.mark.parametrize("mode", [mode for mode in MODES if not set(mode) & {"2", "3"}])
def test_gathers(cached, mode):
    """Tables are opened and dropped with gathers in flight."""
    rng = np.random.default_rng(0)
    for size in (100, 3000, 200):
        array = rng.random((size, 5))
        rows = rng.integers(0, size, 300)
        table = open_table(cached, array, mode)
        assert np.array_equal(gathered(cached, table, rows, (300, 5), float), array[rows])
        ids, out = put(cached, rows), empty(cached, (300, 5), float)
        table.gather(ids, out, wait=False)
        del table
        assert np.array_equal(get(out), array[rows])


def test_host_gathers(cached):
    """Their staging memory is written again only when its copy has been made."""
    array = np.arange(4000)
    table = _native.DeviceTable(cached, array, "CPU")
    outs = [empty(cached, 1000, np.int64) for _ in range(4)]
    for number, out in enumerate(outs):
        table.gather(array[1000 * number :][:1000].copy(), out)
    for number, out in enumerate(outs):
        assert np.array_equal(get(out), array[1000 * number :][:1000])


@pytest.mark.parametrize("mode", ["lazy", "threads"])
def test_peers(mode):
    """Rows of a table in the memory of two devices, read by both, in chunks of staging memory."""
    control.set_mode(mode)
    devices = [_native.cuda_device(number) for number in (0, 1)]
    array = np.random.default_rng(0).integers(0, 1 << 60, (5000, 1000))  # 40 MB
    hot = _native.HotRows(_native.DeviceGroup(devices), array)
    rows = np.array([0, 1, 4999, 2500, 2501])
    for device in devices:
        table = _native.DeviceTable(device, array, "CUDA", hot)
        assert np.array_equal(gathered(device, table, rows, (5, 1000), np.int64), array[rows])


def draw(batch, graphs, replays=False):
    batch.begin()
    batch.add_seeds(0, np.arange(5))
    hop_calls.sample(batch, graphs, [[3, 2]], False, [False], False, 1, 0, replays)


def use_lost(device):
    """Loses a device under a gather, and asks everything for something."""
    graph = hub_graph(100, 20)
    graphs = [_native.DeviceGraph(device, csr) for csr in graph.csrs()]
    batch = _native.DeviceSubgraph(device, [100], [(0, 0)], True)
    table = _native.DeviceTable(device, np.arange(100), "CUDA")
    host = _native.DeviceTable(device, np.arange(33 << 17), "ZERO_COPY")
    rows, out = put(device, np.arange(5)), empty(device, 5, np.int64)
    kept = [_native.DeviceMemory.allocate_shared(device, 8), put(device, np.arange(9))]
    device.synchronize()
    control.lose(0, "cudaErrorIllegalAddress")
    for call in (
        lambda: device.gather(kept[1], rows, out),
        lambda: draw(batch, graphs),
        lambda: draw(batch, graphs, True),
        device.synchronize,
        lambda: table.gather(rows, out),
        lambda: host.gather(rows, out),
        lambda: open_device("fake"),
        lambda: _native.DeviceTable(device, np.arange(100), "ZERO_COPY"),
        lambda: _native.DeviceMemory.allocate_shared(device, 8),
    ):
        with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
            call()


@pytest.mark.process
@pytest.mark.parametrize("mode", ["lazy", "threads"])
def test_a_lost_device_is_an_error_of_everything(mode):
    """Of all calls, until the process ends. What it had is dropped without a word."""
    code = (
        "import gc, sys\n"
        "import numpy as np\n"
        "from fake_cuda import control\n"
        "from khop import _native\n"
        "from support.devices import get, open_device, put\n"
        "from kernels.test_device_caching import use_lost\n"
        "control.set_mode(sys.argv[1])\n"
        "use_lost(open_device('fake'))\n"
        "gc.collect()\n"
        "assert get(put(_native.cuda_device(1), np.arange(3))).tolist() == [0, 1, 2]\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code, mode], check=True, timeout=120, env=environment)
