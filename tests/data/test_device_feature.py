"""Feature tables on devices: what torch would have selected, wherever the rows lie."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from khop import _native
from khop.data import DeviceFeature, DeviceGroup, Feature
from khop.data.arrays import DTYPES
from khop.data.encoding import STORED, Encoding
from khop.data.feature import DecodedFeature, DecodedRows
from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler
from support.devices import HAS_FAKE, HAS_GPU, KINDS, empty, get, gpu, open_device, put, torch_place

PLACEMENTS = {
    "CUDA": {"mode": "CUDA"},
    "ZERO_COPY": {"mode": "ZERO_COPY"},
    "CPU": {"mode": "CPU"},
    "none hot": {"split_ratio": 0.0},
    "some hot": {"split_ratio": 0.4},
    "all hot": {"split_ratio": 1.0},
    "within a budget": {"budget": 60},
}


@pytest.fixture(params=KINDS)
def device(request):
    """A device: emulated, or a GPU where there is one."""
    return open_device(request.param)


def mapped(device):
    """Where a small table of the host is read: a GPU has a copy of it."""
    return "pinned copy" if device.is_cuda else "mapped"


def others(device, count):
    """More devices, which can read that one's memory."""
    return [open_device("cuda" if device.is_cuda else "emulated", 1 + i) for i in range(count)]


def wait_for_torch(device):
    """Wait for torch's work: the device has a CUDA stream of its own."""
    if HAS_GPU and device.is_cuda:
        torch.cuda.synchronize()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_dtypes(device, placement):
    rows = np.array([7, 0, 7, 9, 5])
    for name, row_shape in itertools.product(DTYPES, [(), (3,), (2, 2), (0,)]):
        values = (torch.arange(10 * int(np.prod(row_shape))) % 100).view(10, *row_shape)
        feature = Feature(values.to(getattr(torch, name)))
        table = DeviceFeature(feature, device, hotness=np.arange(10.0), **PLACEMENTS[placement])
        assert (table.num_rows, table.row_shape, table.dtype) == (10, row_shape, name)
        out = empty(device, (5, *row_shape), feature.array.dtype)
        assert table.gather(put(device, rows), out) is out
        assert np.array_equal(get(out), feature.array[rows]), (name, row_shape)


def test_torch_dtypes(device):
    """bfloat16 goes to torch's own, and to the uint16 that NumPy has for it, nowhere else."""
    values = torch.randn(20, 6).bfloat16()
    table = DeviceFeature(Feature(values), device)
    rows = np.array([3, 19, 3])
    out = empty(device, (3, 6), np.uint16)
    table.gather(put(device, rows), out)
    assert np.array_equal(get(out), values[rows].view(torch.uint16).numpy())
    if HAS_GPU and device.is_cuda:
        own = torch.empty(3, 6, dtype=torch.bfloat16, device="cuda")
        table.gather(put(device, rows), own)
        assert torch.equal(own.cpu(), values[rows])
    with pytest.raises(TypeError, match=r"dtype 'bfloat16' \(got 'float16'\)"):
        table.gather(put(device, rows), empty(device, (3, 6), np.float16))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_tensors(device, placement):
    """Tensors of torch, of any layout, are what arrays are; what does not fit is refused."""
    where = torch_place(device)
    values = torch.randn(20, 6, 2).bfloat16()
    table = DeviceFeature(Feature(values), device, hotness=np.arange(20.0), **PLACEMENTS[placement])
    rows = torch.tensor([19, 0, 3, 3, 8, 1], device=where)
    for index in (rows, rows.int(), rows[::2], rows[:0]):
        out = torch.empty(len(index), 6, 2, dtype=torch.bfloat16, device=where)
        wait_for_torch(device)  # which made the rows on another stream
        assert table.gather(index, out) is out
        assert torch.equal(out.cpu(), values[index.cpu().long()])
    out = torch.empty(6, 6, 2, dtype=torch.bfloat16, device=where)
    with pytest.raises(TypeError, match="rows must be int32 or int64"):
        table.gather(rows.short(), out)
    with pytest.raises(ValueError, match=r"axis|dimension"):
        table.gather(rows[:, None], out)
    with pytest.raises(TypeError):
        table.gather(rows, torch.empty(6, 2, 6, dtype=torch.bfloat16, device=where).mT)
    rows[2] = 20
    wait_for_torch(device)
    with pytest.raises(IndexError, match=r"row 20 \(entry 2 of rows\)"):
        table.gather(rows, out)


def test_tensors_are_taken_by_their_addresses(device):
    """Where all of a tensor lies is known without DLPack, which takes longer."""
    values = np.random.default_rng(0).random((20, 6))
    table = DeviceFeature(Feature(values), device)
    taken, native = [], table._table

    class Counted:
        gather = native.gather

        def gather_at(self, *args):
            taken.append(args[2])
            native.gather_at(*args)

    table._table = Counted()
    where = torch_place(device)
    rows = torch.tensor([19, 0, 3, 4], device=where)
    for index in (rows, rows[::2], rows.int()):
        out = torch.empty(len(index), 6, dtype=torch.float64, device=where)
        wait_for_torch(device)
        table.gather(index, out)
        assert np.array_equal(out.cpu().numpy(), values[index.cpu().numpy()])
    table.gather(put(device, np.array([5])), empty(device, (1, 6), float))
    assert taken == ([4, 4, 1] if device.is_cuda else [4, 4])


def test_hottest_rows_come_from_the_device(device):
    """The hottest rows, as many as were asked for, come from the device."""
    values = np.arange(50.0).reshape(10, 5)
    hotness = np.array([0, 9, 1, 8, 2, 7, 3, 6, 4, 5]) / 10
    table = DeviceFeature(Feature(values), device, split_ratio=0.3, hotness=hotness)
    assert table.hot_rows.tolist() == [1, 3, 5]
    assert (table.num_hot, table.place) == (3, f"device, {mapped(device)}")
    assert table.expected_share == pytest.approx(24 / 45)
    rows = np.array([5, 5, 0, 9, 3])
    table.gather(put(device, rows), empty(device, (5, 5), float))
    assert (table.served.device, table.served.host, table.served.share) == (3, 2, 0.6)
    table.reset_served()
    assert (table.served, table.served.share) == ((0, 0), 0)


def test_places(device):
    feature = Feature(np.arange(40.0).reshape(10, 4))
    places = {
        "CUDA": ("device", 10, 1),
        "ZERO_COPY": (mapped(device), 0, 0),
        "CPU": ("host", 0, 0),
        "none hot": (mapped(device), 0, 0),
        "some hot": (f"device, {mapped(device)}", 4, 0.4),
        "all hot": ("device", 10, 1),
        "within a budget": (mapped(device), 0, 0),
    }
    for name, (place, num_hot, share) in places.items():
        table = DeviceFeature(feature, device, hotness=np.ones(10), **PLACEMENTS[name])
        assert (table.place, table.num_hot, table.expected_share) == (place, num_hot, share)
    # 40 bytes of places and three rows of 32
    table = DeviceFeature(feature, device, budget="0.14K", hotness=np.ones(10))
    assert table.num_hot == 3


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("store", [DecodedFeature, DecodedRows])
def test_encoded_rows(device, placement, store):
    """Rows of a folder lie as they are stored, and batches have what the CPU widens them to."""
    values = np.random.default_rng(0).standard_normal((20, 3, 4)).astype(np.float32)
    rows = np.array([7, 0, 7, 19, 5])
    for name in STORED:
        encoding = Encoding(name)
        if name == "int8":
            flat = values.reshape(20, 12)
            encoding = Encoding.of_range(flat.min(0), flat.max(0))
        stored = Feature(encoding.encode(values)[0], encoding.dtype)
        feature = store(stored, encoding)
        table = DeviceFeature(feature, device, hotness=np.arange(20.0), **PLACEMENTS[placement])
        assert (table.dtype, table.row_shape) == ("float32", (3, 4))
        out = empty(device, (5, 3, 4), np.float32)
        table.gather(put(device, rows), out)
        assert get(out).tobytes() == feature.gather(rows).tobytes()
        assert "array" not in vars(feature)  # all rows in float32
        narrow = DeviceFeature(feature.as_stored, device)  # nobody asks for float32
        out = empty(device, (5, 3, 4), stored.array.dtype)
        narrow.gather(put(device, rows), out)
        assert get(out).tobytes() == stored.array[rows].tobytes()


def test_budgets_count_rows_as_they_are_stored(device):
    """In bytes of the device: four times as many rows of one byte as of float32."""
    codes = Feature(np.zeros((1000, 100), np.uint8))
    encoded = DecodedFeature(codes, Encoding("float8_e4m3fn"))
    table = DeviceFeature(encoded, device, budget="50KB", hotness=np.arange(1000.0))
    assert table.num_hot == 4 * 118  # float32: `test_budgets_of_groups`


@pytest.mark.parametrize("size", [1, 2, 3])
def test_groups(device, size):
    """Devices of a group hold hot rows once and gather the same."""
    group = DeviceGroup(0, [device, *others(device, size - 1)])
    assert group.size == size
    values = np.random.default_rng(0).standard_normal((200, 7)).astype(np.float32)
    hotness = np.random.default_rng(1).random(200)
    table = DeviceFeature(Feature(values), device, "CUDA", 0.25, None, hotness, group)
    rows = np.random.default_rng(2).integers(0, 200, 300)
    num_hot = int(np.isin(rows, np.argsort(-hotness)[:50]).sum())
    for member in group.devices:
        shared = table.on(member)
        out = empty(member, (300, 7), np.float32)
        shared.gather(put(member, rows), out)
        assert np.array_equal(get(out), values[rows])
        assert shared.served == (num_hot, 300 - num_hot)
    assert table.served == (0, 0)
    with pytest.raises(ValueError, match="is not one of those of DeviceGroup"):
        table.on(others(device, 1)[0])


def test_budgets_of_groups(device):
    """With twice the devices a group holds twice the rows."""
    feature, hotness = Feature(np.zeros((1000, 100), np.float32)), np.arange(1000.0)
    rows = []
    for size in (1, 2, 4):
        group = DeviceGroup(0, [device, *others(device, size - 1)])
        table = DeviceFeature(feature, device, budget="50KB", hotness=hotness, group=group)
        rows.append(table.num_hot)
    assert rows == [118, 236, 472]


def test_bad_groups():
    device, far = _native.emulated_device(), _native.emulated_device(island=1)
    with pytest.raises(ValueError, match="group 3 needs at least one device"):
        DeviceGroup(3, [])
    with pytest.raises(ValueError, match="group 3 names a device twice"):
        DeviceGroup(3, [device, device])
    with pytest.raises(RuntimeError, match=r"'emulated' cannot read .* 'emulated:1'"):
        DeviceGroup(0, [device, far])
    with pytest.raises(ValueError, match="'emulated' is not one of those of DeviceGroup"):
        DeviceFeature(Feature(np.zeros(3)), device, group=DeviceGroup(0, [far]))
    if not HAS_GPU and not HAS_FAKE:
        with pytest.raises(RuntimeError):
            DeviceGroup(0, [0])


@pytest.mark.parametrize("kind", [pytest.param("cuda", marks=gpu)])
def test_groups_by_index(kind):
    group = DeviceGroup(0, [0])
    table = DeviceFeature(Feature(np.arange(5.0)), group.devices[0], group=group)
    out = empty(table.device, (1,), float)
    assert get(table.gather(put(table.device, np.array([3])), out)).tolist() == [3.0]


def test_bad_options(device):
    feature = Feature(np.zeros((10, 2)))
    for options, message in (
        ({"mode": "GPU"}, "mode must be 'CPU', 'ZERO_COPY' or 'CUDA'"),
        ({"split_ratio": 0.2, "budget": 5}, "not both"),
        ({"split_ratio": 0.2, "mode": "ZERO_COPY"}, "use mode 'CUDA'"),
        ({"budget": 10, "mode": "CPU"}, "use mode 'CUDA'"),
        ({"split_ratio": 1.2}, "between 0 and 1"),
        ({"budget": "many"}, "not a number of bytes"),
        ({"split_ratio": 0.2}, "2 of 10 rows are to lie in device memory: pass hotness"),
        ({"split_ratio": 0.2, "hotness": np.ones(9)}, "each of the 10 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            DeviceFeature(feature, device, **options)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_bad_arrays(device, placement):
    feature = Feature(np.zeros((10, 2), np.float32))
    table = DeviceFeature(feature, device, hotness=np.ones(10), **PLACEMENTS[placement])
    rows = put(device, np.array([1, 10]))
    with pytest.raises(IndexError, match=r"row 10 \(entry 1 of rows\)"):
        table.gather(rows, empty(device, (2, 2), np.float32))
    with pytest.raises(TypeError, match=r"'float32' \(got 'int32'\)"):
        table.gather(rows, empty(device, (2, 2), np.int32))
    for shape in ((2,), (2, 3), (3, 2), (2, 2, 1)):
        with pytest.raises(ValueError, match=r"out must have shape \(2, 2\)"):
            table.gather(rows, empty(device, shape, np.float32))


@pytest.mark.parametrize("split_ratio", [0.05, 0.2, 0.5])
def test_the_share_served_is_as_hotness_predicts(power_law, split_ratio):
    """Within two points, over an epoch of batches."""
    num_nodes = 4000
    edges = torch.from_numpy(power_law(num_nodes, 30000))
    data = Data(edge_index=edges, num_nodes=num_nodes)
    seeds = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(0))[:800]
    hotness = NeighborSampler(data, [5, 5]).sample_prob(seeds, batch_size=32)
    device = _native.emulated_device()
    feature = Feature(np.arange(num_nodes, dtype=np.float32))
    table = DeviceFeature(feature, device, split_ratio=split_ratio, hotness=hotness)
    for batch in NeighborLoader(data, [5, 5], input_nodes=seeds, batch_size=32, seed=5):
        out = np.empty(batch.num_nodes, np.float32)
        table.gather(batch.n_id.numpy(), out)
        assert np.array_equal(out, batch.n_id.numpy())
    assert split_ratio + 0.05 < table.expected_share < 0.99
    assert abs(table.served.share - table.expected_share) < 0.02


@pytest.mark.process
def test_no_torch():
    """Samplers and servers may use it."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from khop import _native\n"
        "from khop.data import DeviceFeature, Feature\n"
        "x = DeviceFeature(Feature(np.arange(9.)), _native.emulated_device(), split_ratio=0.5,\n"
        "                  hotness=np.arange(9))\n"
        "assert x.gather(np.array([4, 8]), np.empty(2)).tolist() == [4, 8]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
