"""Where khop meets CUDA: memory of recordings, errors that were caught, lifetimes, several GPUs.

The emulated device has no counterpart of most of this; the tests run there, too, so that they
themselves are tested. Those of two GPUs look at one process each: a context that once exists stays.
"""

import contextlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import khop.data.device
from khop import _native
from support.devices import HAS_GPU, KINDS, address_of, empty, get, gpu, open_device, put
from support.kernels import hop_calls

NUM_GPUS = _native.cuda_status()["devices"] if HAS_GPU else 0


def in_torch(kind):
    """A device that has its memory where torch's tensors have it, and a scope of its stream."""
    if kind != "cuda":
        return open_device(kind), contextlib.nullcontext()
    stream = torch.cuda.Stream(0)
    return khop.data.device.open_device("cuda:0", stream), torch.cuda.stream(stream)


REGIONS = 8
NODES = 600  # of a region


def growing_graph():
    """Regions that know only themselves: a node of region r has 5 (r + 1)^2 neighbours there."""
    rng = np.random.default_rng(3)
    degrees = np.repeat(5 * np.arange(1, REGIONS + 1) ** 2, NODES)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    first = np.repeat(np.arange(REGIONS) * NODES, NODES)
    indices = np.repeat(first, degrees) + rng.integers(0, NODES, indptr[-1])
    return _native.Csr(indptr, indices.astype(np.int32))


def complete(subgraph, graphs, subgraph_type):
    """Makes of a drawn batch what its type is."""
    if subgraph_type == "induced":
        subgraph.induce(graphs)
    elif subgraph_type == "bidirectional":
        subgraph.add_reverses([(0, 0, False)], False)


def written(device, subgraph, has_edges):
    """Arrays of a device that a batch was written to: nodes, ends, edges; not waited for."""
    (num_nodes,), (num_edges,), _, _ = subgraph.sizes()
    sizes = [num_nodes, 2 * num_edges] + [num_edges] * has_edges
    arrays = [empty(device, size, np.int64) for size in sizes]
    nodes, ends, *edges = ([address_of(array)] for array in arrays)
    subgraph.write(nodes, ends, edges[0] if edges else [], [], [])
    return arrays


def expected_of(csr, seeds, fanouts, batch, subgraph_type):
    """The CPU's batch, as `written` has it."""
    subgraph = _native.Subgraph([REGIONS * NODES], [(0, 0)], True)
    subgraph.add_seeds(0, seeds)
    hop_calls.sample(subgraph, [csr], [fanouts], False, [False], False, 9, batch)
    complete(subgraph, [csr], subgraph_type)
    nodes = np.empty(subgraph.num_nodes(0), np.int64)
    row, col, edges = np.empty((3, subgraph.num_edges(0)), np.int64)
    subgraph.write_nodes(0, nodes)
    subgraph.write_edge_index(0, row, col)
    if subgraph_type == "bidirectional":
        return [nodes, np.concatenate([row, col])]
    subgraph.write_edges(0, edges)
    return [nodes, np.concatenate([row, col]), edges]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subgraph_type", ["directional", "induced", "bidirectional"])
def test_recordings_outlive_larger_batches(kind, subgraph_type):
    """What completes a batch needs ever more memory to work in; recordings of draws stay sound.

    Nor is anything of a batch that was handed out written over by those that follow.
    """
    csr, fanouts = growing_graph(), [4, 4]
    device, scope = in_torch(kind)
    graphs = [_native.DeviceGraph(device, csr)]
    subgraph = _native.DeviceSubgraph(device, [REGIONS * NODES], [(0, 0)], True)
    rng = np.random.default_rng(1)
    expected, found = [], []
    with scope:
        for batch in range(REGIONS + 3):
            region = min(batch, REGIONS - 1)
            seeds = region * NODES + rng.permutation(NODES)[:200]
            expected.append(expected_of(csr, seeds, fanouts, batch, subgraph_type))
            subgraph.begin()
            subgraph.add_seeds(0, seeds)
            hop_calls.sample(
                subgraph, graphs, [fanouts], False, [False], False, 9, batch, cuda_graph=True
            )
            complete(subgraph, graphs, subgraph_type)
            found.append(written(device, subgraph, subgraph_type != "bidirectional"))
        device.synchronize()
        for batch, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            for one, other in zip(ours, theirs, strict=True):
                assert np.array_equal(get(one), other), f"batch {batch}"


def test_after_memory_ran_out(device):
    """An error that was caught is over: gathers and recorded batches go on."""
    array = np.arange(4000.0).reshape(1000, 4)
    rows = np.random.default_rng(0).integers(0, 1000, 300)
    csr = growing_graph()
    graphs = [_native.DeviceGraph(device, csr)]
    subgraph = _native.DeviceSubgraph(device, [REGIONS * NODES], [(0, 0)], True)
    seeds = np.arange(100)
    for batch in range(4):
        with pytest.raises((RuntimeError, MemoryError)):
            _native.DeviceMemory.allocate(device, 1 << 50)
        out = empty(device, (300, 4), np.float64)
        _native.DeviceTable(device, array).gather(put(device, rows), out)
        assert np.array_equal(get(out), array[rows])
        with pytest.raises((RuntimeError, MemoryError)):
            _native.DeviceMemory.allocate_shared(device, 1 << 50)
        subgraph.begin()
        subgraph.add_seeds(0, seeds)
        hop_calls.sample(
            subgraph, graphs, [[5, 5]], False, [False], False, 9, batch, cuda_graph=True
        )
        found = written(device, subgraph, True)
        device.synchronize()
        for one, other in zip(
            found, expected_of(csr, seeds, [5, 5], batch, "directional"), strict=True
        ):
            assert np.array_equal(get(one), other)


@pytest.mark.gpu
@pytest.mark.skipif(NUM_GPUS == 0, reason="no usable CUDA device")
def test_after_a_device_that_does_not_exist():
    device = open_device("cuda")
    with pytest.raises(RuntimeError):
        _native.cuda_device(NUM_GPUS)
    out = empty(device, (2,), np.float64)
    _native.DeviceTable(device, np.arange(10.0)).gather(put(device, np.array([7, 2])), out)
    assert get(out).tolist() == [7, 2]


@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY"])
def test_tables_go_before_their_gathers_end(device, mode):
    """Rows that were asked for without waiting come whole, whatever their memory becomes."""
    rows = put(device, np.random.default_rng(0).integers(0, 40_000, 100_000))
    for turn in range(10 if HAS_GPU else 2):
        array = np.full((40_000, 64), turn, np.int32)
        table = _native.DeviceTable(device, array, mode)
        out = empty(device, (100_000, 64), np.int32)
        table.gather(rows, out, wait=False)
        del table
        array.fill(-1)
        other = _native.DeviceTable(device, array, mode)  # may get the memory of the first
        device.synchronize()
        assert (get(out) == turn).all()
        del other


CONTEXTS = """
    import ctypes, threading
    import numpy as np
    from khop import _native

    driver = ctypes.CDLL("libcuda.so.1")

    def has_context(number):
        device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        assert driver.cuInit(0) == 0
        assert driver.cuDeviceGet(ctypes.byref(device), number) == 0
        state = driver.cuDevicePrimaryCtxGetState
        assert state(device, ctypes.byref(flags), ctypes.byref(active)) == 0
        return active.value != 0
"""


def run_alone(program):
    """Runs a program, after `CONTEXTS`, in a process of its own; it must end well."""
    code = textwrap.dedent(CONTEXTS) + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class TestContexts:
    """A context takes half a gigabyte of a GPU: there is one only where work is done."""

    pytestmark = gpu

    @pytest.mark.process
    def test_asking_makes_none(self):
        run_alone(
            """
            assert _native.cuda_status()["devices"] > 0
            assert not has_context(0)
            """
        )

    @pytest.mark.process
    @pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")
    def test_work_on_the_second_gpu_makes_one_there(self):
        """Draws, gathers, shared memory and locked pages, by two threads."""
        run_alone(
            """
            def work():
                device = _native.cuda_device(1)
                table = np.arange(1 << 18, dtype=np.int64)
                memory = _native.DeviceMemory.allocate(device, 8000)
                memory.upload(0, np.arange(1000))
                rows = memory.view(0, [1000], "int64", memory)
                out = _native.DeviceMemory.allocate_shared(device, 8000)
                assert len(out.handle) > 0
                locked = _native.LockedPages(device, np.empty(1 << 16))
                for mode in ("CUDA", "ZERO_COPY", "CPU"):
                    one = _native.DeviceTable(device, table, mode)
                    one.gather(rows, out.view(0, [1000], "int64", out))
                    found = np.empty(1000, np.int64)
                    out.download(0, found)
                    assert np.array_equal(found, np.arange(1000))
                    del one
                csr = _native.Csr(np.arange(101) * 5, np.arange(500, dtype=np.int32) % 100)
                graphs = [_native.DeviceGraph(device, csr)]
                subgraph = _native.DeviceSubgraph(device, [100], [(0, 0)], True)
                for batch in range(3):
                    subgraph.begin()
                    subgraph.add_seeds(0, np.arange(9))
                    hops = [[_native.HopOptions(3), _native.HopOptions(2)]]
                    subgraph.sample(graphs, hops, 1, batch, cuda_graph=True)
                    assert subgraph.num_nodes(0) > 9

            work()
            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert has_context(1)
            assert not has_context(0)
            """
        )

    @pytest.mark.process
    @pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")
    def test_cuda_is_the_current_device_of_torch(self):
        """After `torch.cuda.set_device(1)` a loader on 'cuda' leaves GPU 0 alone."""
        run_alone(
            """
            import torch
            from torch_geometric.data import Data
            from khop.loader import NeighborLoader

            torch.cuda.set_device(1)
            data = Data(
                x=torch.arange(500.0).view(-1, 1), edge_index=torch.randint(0, 500, (2, 4000))
            )
            loader = NeighborLoader(data, [3, 2], batch_size=50, device="cuda")
            for batch in loader:
                assert batch.edge_index.device == batch.x.device == torch.device("cuda", 1)
                assert torch.equal(batch.x[:, 0], batch.n_id.float())
            assert not has_context(0)
            """
        )


@pytest.mark.gpu
@pytest.mark.skipif(NUM_GPUS < 2, reason="needs two GPUs")
def test_the_hot_rows_of_two_gpus_go_before_their_gathers_end():
    """Each GPU reads the other's memory, which is not given back while it does."""
    devices = [_native.cuda_device(index) for index in range(2)]
    rows = np.random.default_rng(0).integers(0, 40_000, 100_000)
    for turn in range(10):
        array = np.full((40_000, 64), turn, np.int32)
        hot = _native.HotRows(_native.DeviceGroup(devices), array)
        tables = [_native.DeviceTable(device, array, "CUDA", hot) for device in devices]
        outs, wanted = [], []
        for index, device in enumerate(devices):
            with torch.cuda.device(index):
                outs.append(empty(device, (100_000, 64), np.int32))
                wanted.append(put(device, rows))
        for table, some, out in zip(tables, wanted, outs, strict=True):
            table.gather(some, out, wait=False)
        del table, tables, hot
        for device, out in zip(devices, outs, strict=True):
            device.synchronize()
            assert (get(out) == turn).all()
