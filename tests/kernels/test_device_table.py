"""Tables that a device gathers from, wherever their rows lie, against NumPy's indexing."""

import ctypes
import weakref

import numpy as np
import pytest

from fake_cuda import control
from khop import _native
from support.devices import HAS_FAKE, empty, get, gpu, open_device, put
from support.kernels.device_tables import MODES, gathered, group_of, hot_ids, open_table


@pytest.fixture(params=MODES)
def mode(request):
    """Where rows lie."""
    return request.param


@pytest.mark.parametrize("width", [1, 3, 4, 7, 16, 100])
def test_gather(device, mode, width):
    """Rows of any width, also from unaligned tables, are those that indexing gives."""
    rng = np.random.default_rng(width)
    for dtype in (np.bool_, np.int8, np.float16, np.float32, np.int64, np.float64):
        whole = rng.integers(0, 100, (61, width)).astype(dtype)
        for array in (whole[:60], whole[1:]):
            table = open_table(device, array, mode)
            for index in (np.int32, np.int64):
                rows = rng.integers(0, 60, 90).astype(index)
                got = gathered(device, table, rows, (90, width), dtype)
                assert np.array_equal(got, array[rows]), (dtype, index)


def test_shapes(device, mode):
    """Rows of one number, of several axes, of none, and tables without rows."""
    rows = np.array([5, 0, 5])
    for shape in ((9,), (9, 2, 3), (9, 0), (9, 4, 0)):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        table = open_table(device, array, mode)
        got = gathered(device, table, rows, (3, *shape[1:]), np.float32)
        assert np.array_equal(got, array[rows])
        assert sum(table.served) == (3 if array.size else 0)
    nothing = open_table(device, np.empty((0, 4), np.float32), mode)
    assert gathered(device, nothing, rows[:0], (0, 4), np.float32).shape == (0, 4)


@pytest.mark.parametrize("width", [0, 4])
def test_missing_rows(device, mode, width):
    """The first row that does not exist is named, with its place."""
    table = open_table(device, np.zeros((10, width), np.float32), mode)
    out = empty(device, (5, width), np.float32)
    for index in (np.int32, np.int64):
        for bad in (10, -1):
            rows = put(device, np.array([0, 3, bad, 77, 9], index))
            message = rf"row {bad} \(entry 2 of rows\) is outside a table of 10 rows"
            with pytest.raises(IndexError, match=message):
                table.gather(rows, out)
    assert table.served == (0, 0)
    nothing = open_table(device, np.zeros((0, width), np.float32), mode)
    with pytest.raises(IndexError, match=r"row 0 .* 0 rows"):
        nothing.gather(put(device, np.array([0])), empty(device, (1, width), np.float32))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_split(device, size):
    """Hot rows come from the devices, all others from the host, in one launch; both are counted."""
    rng = np.random.default_rng(size)
    array = rng.standard_normal((500, 12)).astype(np.float32)
    hot = rng.permutation(500)[:77].astype(np.int64)
    source = array.copy()
    rows_of_group = _native.HotRows(group_of(device, size), source, hot)
    assert rows_of_group.num_rows == 77
    source[hot] = -1  # the copies are those of the devices
    table = _native.DeviceTable(device, source, "CUDA", rows_of_group)
    rows = rng.integers(0, 500, 1000)
    before = device.num_launches
    got = gathered(device, table, rows, (1000, 12), np.float32)
    assert device.num_launches == before + 1
    assert np.array_equal(got, array[rows])
    num_hot = int(np.isin(rows, hot).sum())
    assert table.served == (num_hot, 1000 - num_hot)
    gathered(device, table, hot, (77, 12), np.float32)
    assert table.served == (num_hot + 77, 1000 - num_hot)
    table.reset_served()
    assert table.served == (0, 0)


@pytest.mark.parametrize("replicated", [0, 1, 30, 77])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_of_peers_are_counted(device, size, replicated):
    """The first hot rows lie on each device, row p of the others on device p % size."""
    control_devices(device, size)
    rng = np.random.default_rng(size)
    array = rng.standard_normal((500, 12)).astype(np.float32)
    hot = rng.permutation(500)[:77].astype(np.int64)
    kind = "cuda" if device.is_cuda else "emulated"
    devices = [device, *(open_device(kind, 1 + i) for i in range(size - 1))]
    if device.is_cuda:
        devices[1:] = [_native.cuda_device(i) for i in range(1, size)]
    rows_of_group = _native.HotRows(_native.DeviceGroup(devices), array, hot, replicated)
    rows = rng.integers(0, 500, 1000)
    places = {row: place for place, row in enumerate(hot.tolist())}
    for index, member in enumerate(devices):
        table = _native.DeviceTable(member, array, "CUDA", rows_of_group)
        got = gathered(member, table, rows, (1000, 12), np.float32)
        assert np.array_equal(got, array[rows])
        found = [places[row] for row in rows.tolist() if row in places]
        peers = sum(p >= replicated and (p - replicated) % size != index for p in found)
        assert table.served == (len(found), 1000 - len(found))
        assert table.served_by_peers == peers


def control_devices(device, size):
    """Give the tests' own runtime so many devices. Skip the test if a machine has fewer."""
    if device.is_cuda and HAS_FAKE:
        control.set_options(devices=size)
    elif device.is_cuda and _native.cuda_status()["devices"] < size:
        pytest.skip("needs several GPUs")


@pytest.mark.parametrize("replicated", [0, 5])
def test_parts_of_others(device, replicated):
    """Memory that others have filled is read as they divide it, and stays theirs."""
    rng = np.random.default_rng(replicated)
    array = rng.standard_normal((50, 4)).astype(np.float32)
    hot = rng.permutation(50)[:23]
    parts = []
    for part in range(3):
        rows = array[[*hot[:replicated], *hot[replicated:][part::3]]]
        parts.append(_native.DeviceMemory.allocate_shared(device, rows.nbytes))
        parts[-1].upload(0, rows)
    device.synchronize()
    rows = rng.integers(0, 50, 200)
    places = {row: place for place, row in enumerate(hot.tolist())}
    found = [places[row] for row in rows.tolist() if row in places]
    for own in range(3):
        hot_rows = _native.HotRows.of_parts(device, parts, own, array, hot, replicated)
        table = _native.DeviceTable(device, array, "CUDA", hot_rows)
        got = gathered(device, table, rows, (200, 4), np.float32)
        assert np.array_equal(got, array[rows])
        peers = sum(p >= replicated and (p - replicated) % 3 != own for p in found)
        assert table.served_by_peers == peers
        del hot_rows, table
    parts_of = Parts(parts)
    weak = weakref.ref(parts_of)
    table = _native.DeviceTable(
        device, array, "CUDA", _native.HotRows.of_parts(device, parts_of, 0, array, hot, replicated)
    )
    del parts_of, parts
    assert weak() is not None  # the table keeps them
    assert np.array_equal(gathered(device, table, rows, (200, 4), np.float32), array[rows])
    del table
    assert weak() is None


class Parts(list):
    """A list that can be referred to weakly."""


def test_parts_that_do_not_fit(device):
    """Parts of several processes are checked against the division."""
    array, ids = np.zeros((10, 4), np.float32), np.arange(5)
    part = _native.DeviceMemory.allocate(device, 3 * 16)
    of_parts = _native.HotRows.of_parts
    assert of_parts(device, [part, part], 1, array, ids).num_rows == 5
    with pytest.raises(ValueError, match=r"part 0 of the hot rows needs 64 bytes \(got 48\)"):
        of_parts(device, [part, part], 0, array, ids, 2)
    with pytest.raises(ValueError, match="part 2 is not one of 2"):
        of_parts(device, [part, part], 2, array, ids)
    for replicated in (-1, 6):
        with pytest.raises(ValueError, match="from 0 to the 5 rows in device memory"):
            of_parts(device, [part, part], 0, array, ids, replicated)


def test_devices_of_a_group_share_hot_rows():
    """Each device gathers all rows, and none outlives its rows' owners."""
    devices = [open_device("emulated", i) for i in range(3)]
    array = np.arange(400.0).reshape(100, 4)
    rows = np.random.default_rng(0).integers(0, 100, 300)
    hot = _native.HotRows(_native.DeviceGroup(devices), array, hot_ids(100))
    tables = [_native.DeviceTable(device, array, "CUDA", hot) for device in devices]
    del hot
    while tables:
        for device, table in zip(devices, tables, strict=False):
            assert np.array_equal(gathered(device, table, rows, (300, 4), float), array[rows])
        tables.pop()


def test_places(device):
    """What a table says of where its rows lie; what is all on devices is counted as such."""
    array = np.arange(4.5e6).reshape(1_500_000, 3)  # large enough to be registered with a GPU
    places = {
        "CUDA": "device",
        "ZERO_COPY": "mapped",
        "CPU": "host",
        "split": "device, mapped",
        "CUDA 3": "device",
    }
    for mode, place in places.items():
        table = open_table(device, array, mode)
        assert table.place == place
        rows = np.append(hot_ids(len(array))[:3], np.arange(7))
        gathered(device, table, rows, (10, 3), float)
        num_hot = int(np.isin(rows, hot_ids(len(array))).sum())
        on_device = {"device": 10, "device, mapped": num_hot}.get(place, 0)
        assert table.served == (on_device, 10 - on_device)


def test_host_tables_take_rows_of_the_host(device):
    table = _native.DeviceTable(device, np.arange(10.0), "CPU")
    out = empty(device, (2,), float)
    table.gather(np.array([7, 2]), out)
    assert get(out).tolist() == [7, 2]


def test_arrays_live_as_long_as_they_are_read(device, mode):
    """And no longer."""
    array = np.arange(4.4e6).reshape(-1, 4)  # large enough to be registered with a GPU
    expected, alive = array.copy(), weakref.ref(array)
    table = open_table(device, array, mode)
    del array
    assert (alive() is None) == (mode in ("CUDA", "CUDA 3"))
    rows = np.arange(0, len(expected), 7777)
    got = gathered(device, table, rows, (len(rows), 4), float)
    assert np.array_equal(got, expected[rows])
    del table
    assert alive() is None


def test_mapped_files(device, mode, tmp_path):
    """Files mapped read-only, also when their names and arrays are gone."""
    expected = np.random.default_rng(0).standard_normal((9000, 5))
    np.save(tmp_path / "x.npy", expected)
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    table = open_table(device, array, mode)
    del array
    (tmp_path / "x.npy").unlink()
    rows = np.random.default_rng(1).integers(0, 9000, 500)
    got = gathered(device, table, rows, (500, 5), float)
    assert np.array_equal(got, expected[rows])


@pytest.mark.parametrize("seed", range(5))
def test_arrays_that_share_pages(device, seed):
    """Views that overlap, touch or repeat are mapped and given back in any order."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 2**60, 1 << 17)  # 256 pages
    alive, tables = weakref.ref(base), []
    for _ in range(60):
        if tables and rng.random() < 0.4:
            tables.pop(rng.integers(len(tables)))
            continue
        a, b = sorted(rng.integers(0, len(base) + 1, 2))
        view = base[a:b] if rng.random() < 0.8 or not tables else tables[-1][1]
        tables.append((_native.DeviceTable(device, view, "ZERO_COPY"), view))
        for table, array in tables:
            rows = rng.integers(0, len(array), 20) if len(array) else np.empty(0, np.int64)
            got = gathered(device, table, rows, rows.shape, np.int64)
            assert np.array_equal(got, array[rows])
    del base, view, array, table, tables
    assert alive() is None


def with_its_own_owner(array):
    """The same memory, as an array that knows of no other part of it."""
    return np.ctypeslib.as_array((ctypes.c_int64 * len(array)).from_address(array.ctypes.data))


def test_arrays_that_share_a_page():
    """One of them is registered; the other is copied, and both stay what they were."""
    device = _native.emulated_device()
    base = np.arange(3 << 12)
    first, second, part = map(with_its_own_owner, (base[:5000], base[5000:], base[100:200]))
    alive = [weakref.ref(array) for array in (first, second, part)]
    tables = [_native.DeviceTable(device, array, "ZERO_COPY") for array in (first, second, part)]
    assert [table.place for table in tables] == ["mapped", "pinned copy", "mapped"]
    expected = base.copy()
    del first, second, part
    assert [array() is None for array in alive] == [False, True, False]
    del tables[0]
    assert alive[0]() is not None  # its pages are those of the part
    for table, begin in zip(tables, (5000, 100), strict=True):
        got = gathered(device, table, np.arange(100), (100,), np.int64)
        assert np.array_equal(got, expected[begin : begin + 100])
    del tables, table
    assert alive[0]() is None


def test_a_device_that_registers_only_a_part():
    """It leaves what others registered, and reads that in place."""
    able, unable = _native.emulated_device(), _native.emulated_device(maps_host=False)
    array = np.arange(1 << 14)
    middle = with_its_own_owner(array[5000:9000])
    first = _native.DeviceTable(able, middle, "ZERO_COPY")
    whole = _native.DeviceTable(unable, array, "ZERO_COPY")
    part = _native.DeviceTable(unable, middle[1000:2000], "ZERO_COPY")
    assert [t.place for t in (first, whole, part)] == ["mapped", "pinned copy", "mapped"]
    for device, table, values in ((able, first, middle), (unable, whole, array)):
        got = gathered(device, table, np.arange(50), (50,), np.int64)
        assert np.array_equal(got, values[:50])
    del first
    got = gathered(unable, part, np.arange(50), (50,), np.int64)
    assert np.array_equal(got, array[6000:6050])


@pytest.mark.parametrize("split", [False, True])
def test_memory_that_cannot_be_registered(split):
    """It is copied into memory that can; the array is then free."""
    device = _native.emulated_device(maps_host=False)
    array = np.arange(300.0).reshape(100, 3)
    expected, alive = array.copy(), weakref.ref(array)
    if split:
        table = open_table(device, array, "split")
    else:
        table = _native.DeviceTable(device, array, "ZERO_COPY")
    del array
    assert alive() is None
    assert table.place == ("device, pinned copy" if split else "pinned copy")
    rows = np.arange(0, 100, 3)
    got = gathered(device, table, rows, (34, 3), float)
    assert np.array_equal(got, expected[rows])


def test_large_tables(device):
    """More than is copied at a time, onto one device and onto two."""
    array = np.arange(5 << 20).reshape(-1, 64)  # 40 MiB
    rows = np.random.default_rng(0).integers(0, len(array), 100)
    for size in (1, 2):
        hot = _native.HotRows(group_of(device, size), array)
        table = _native.DeviceTable(device, array, "CUDA", hot)
        got = gathered(device, table, rows, (100, 64), np.int64)
        assert np.array_equal(got, array[rows])
        assert table.served == (100, 0)


def test_devices_without_a_path():
    """Both are named."""
    near, far = _native.emulated_device(), _native.emulated_device(island=2)
    message = "device 'emulated' cannot read the memory of device 'emulated:2'"
    with pytest.raises(RuntimeError, match=message):
        _native.DeviceGroup([near, far])
    with pytest.raises(ValueError, match="at least one device"):
        _native.DeviceGroup([])


def test_arrays_that_do_not_fit(device, mode):
    table = open_table(device, np.zeros((10, 4), np.float32), mode)
    rows = put(device, np.zeros(2, np.int64))
    for shape, dtype in (((3, 4), np.float32), ((2, 3), np.float32), ((2, 4), np.float64)):
        with pytest.raises(ValueError, match="a row of 16 bytes for each of 2 rows"):
            table.gather(rows, empty(device, shape, dtype))
    out = empty(device, (2, 4), np.float32)
    with pytest.raises(TypeError, match="rows must be int32 or int64"):
        table.gather(put(device, np.zeros(2, np.float32)), out)
    with pytest.raises(ValueError, match="one axis"):
        table.gather(put(device, np.zeros((2, 1), np.int64)), out)


def test_bad_arguments(device):
    array = np.zeros((10, 4), np.float32)
    with pytest.raises(ValueError, match="mode must be 'CPU', 'ZERO_COPY' or 'CUDA'"):
        _native.DeviceTable(device, array, "GPU")
    with pytest.raises(ValueError, match="row axis"):
        _native.DeviceTable(device, np.array(1.0))
    group = group_of(device)
    for ids, message in (([3, 10], "row 10 is outside"), ([-1], "row -1"), ([3, 3], "twice")):
        with pytest.raises(ValueError, match=message):
            _native.HotRows(group, array, np.array(ids, np.int64))
    hot = _native.HotRows(group, array, np.array([1]))
    with pytest.raises(ValueError, match="in device memory"):
        _native.DeviceTable(device, array, "ZERO_COPY", hot)
    with pytest.raises(ValueError, match="those of another table: one of 10 rows of 16 bytes"):
        _native.DeviceTable(device, array[:9], "CUDA", hot)
    with pytest.raises(ValueError, match="is not in the group"):
        _native.DeviceTable(open_device("emulated"), array, "CUDA", hot)


@pytest.mark.parametrize("kind", [pytest.param("cuda", marks=gpu)])
def test_rows_of_another_device(kind):
    """Where the device's memory is not the host's, arrays of the host are refused."""
    device = open_device(kind)
    table = _native.DeviceTable(device, np.zeros((10, 4), np.float32))
    with pytest.raises(ValueError, match="rows is not in the memory of device 'cuda:0'"):
        table.gather(np.zeros(2, np.int64), empty(device, (2, 4), np.float32))
