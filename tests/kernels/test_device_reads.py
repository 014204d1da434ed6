"""How tables of a device are read: by lines, in order, by addresses, and who waits meanwhile."""

import sys
import threading
import time

import numpy as np
import pytest

from khop import _native
from support.devices import address_of, empty, get, put
from support.kernels import damaged_tables
from support.kernels.device_tables import MODES, gathered, group_of, hot_ids, open_table


@pytest.fixture(params=MODES)
def mode(request):
    """Where rows lie."""
    return request.param


WIDTHS = [*range(1, 141), *range(250, 260), 384, 400, 404, 512, 640, 999, 1000]


def test_rows_of_any_bytes(device, mode):
    """Wherever rows begin and end in the lines of memory, and nothing beside them is written."""
    rng = np.random.default_rng(0)
    for width in WIDTHS:
        begin, before, after = rng.integers(0, 130, 3)
        base = rng.integers(0, 256, begin + 11 * width).astype(np.uint8)
        array = base[begin:].reshape(11, width)
        table = open_table(device, array, mode)
        rows = rng.integers(0, 11, 15).astype(rng.choice([np.int32, np.int64]))  # some twice
        out = empty(device, (before + 15 * width + after,), np.uint8)
        table.gather(put(device, rows), out[before : before + 15 * width].reshape(15, width))
        written = get(out)
        assert np.array_equal(written[before : before + 15 * width], array[rows].ravel()), width
        assert (written[:before] == 77).all(), width
        assert (written[before + 15 * width :] == 77).all(), width


@pytest.mark.parametrize("at_end", [False, True])
def test_nothing_beside_a_table_is_read(at_end):
    """The lines of its first and last rows reach beyond it, where nothing may be read."""
    device = _native.emulated_device()
    rng = np.random.default_rng(0)
    rows = np.array([8, 0, 4, 0, 8])
    for width in (1, 63, 65, 100, 127, 129, 400, 404, 1000):
        flat = damaged_tables.guarded(rng.integers(0, 256, 9 * width).astype(np.uint8), at_end)
        array = flat.reshape(9, width)
        for sorts_from in (1, 100):
            table = _native.DeviceTable(device, array, "ZERO_COPY", sorts_from=sorts_from)
            got = gathered(device, table, rows, (5, width), np.uint8)
            assert np.array_equal(got, array[rows])
        del table
    damaged_tables.release()


@pytest.mark.parametrize("seed", range(3))
def test_the_first_of_several_missing_rows(device, mode, seed):
    """Whatever order rows are read in, and however missing ones compare with those that exist."""
    rng = np.random.default_rng(seed)
    table = open_table(device, rng.random((100, 50)), mode)
    rows = rng.integers(0, 100, 300)
    bad = np.sort(rng.choice(300, 4, replace=False))
    rows[bad] = rng.permutation([-1, -(2**40), 100, 2**33 + 5])
    message = rf"row {rows[bad[0]]} \(entry {bad[0]} of rows\) is outside a table of 100 rows"
    with pytest.raises(IndexError, match=message):
        table.gather(put(device, rows), empty(device, (300, 50), float))


@pytest.mark.parametrize("mode", ["ZERO_COPY", "split"])
def test_rows_are_sorted_from_the_threshold_on(device, mode):
    """From `sorts_from` rows on, where some lie on the host, and it takes more launches."""
    array = np.random.default_rng(0).random((100, 20))
    group = group_of(device)
    hot = _native.HotRows(group, array, hot_ids(100)) if mode == "split" else None
    table_mode = "CUDA" if mode == "split" else mode
    table = _native.DeviceTable(device, array, table_mode, hot, sorts_from=10)
    all_hot = _native.DeviceTable(device, array, "CUDA", sorts_from=10)
    for gathers, count, is_sorted in ((table, 9, False), (table, 10, True), (all_hot, 10, False)):
        rows = np.random.default_rng(count).integers(0, 100, count)
        before = device.num_launches
        assert np.array_equal(gathered(device, gathers, rows, (count, 20), float), array[rows])
        assert (device.num_launches > before + 1) == is_sorted
    with pytest.raises(ValueError, match="sorts_from must be at least 1"):
        _native.DeviceTable(device, array, "ZERO_COPY", sorts_from=0)


def test_more_rows_than_are_sorted_at_a_time(device):
    """Pieces are sorted one after the other, and entries are those of the whole."""
    array = np.random.default_rng(0).integers(0, 256, (300, 1)).astype(np.uint8)
    table = _native.DeviceTable(device, array, "ZERO_COPY")
    count = (1 << 20) + 3
    rows = np.random.default_rng(1).integers(0, 300, count)
    before = device.num_launches
    assert np.array_equal(gathered(device, table, rows, (count, 1), np.uint8), array[rows])
    assert device.num_launches >= before + 6
    rows[-2] = 300
    with pytest.raises(IndexError, match=rf"row 300 \(entry {count - 2} of rows\)"):
        table.gather(put(device, rows), empty(device, (count, 1), np.uint8))


@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY", "split"])
def test_gathers_that_nobody_waits_for(device, mode):
    """They add up; what is asked for the first time afterwards says that a row did not exist."""
    table = np.arange(40_000, dtype=np.float32).reshape(10_000, 4)
    hot = None
    if mode == "split":
        group = _native.DeviceGroup([device])
        hot = _native.HotRows(group, table, np.arange(100))
    gathers = _native.DeviceTable(
        device, table, "ZERO_COPY" if mode == "ZERO_COPY" else "CUDA", hot
    )
    outs = [empty(device, (300, 4), np.float32) for _ in range(3)]
    rows = [put(device, np.arange(first, first + 300)) for first in range(3)]
    for index, out in zip(rows, outs, strict=True):
        gathers.gather(index, out, wait=False)
    hot_rows = {"CUDA": 900, "ZERO_COPY": 0, "split": 100 + 99 + 98}[mode]
    assert gathers.served == (hot_rows, 900 - hot_rows)
    for first, out in enumerate(outs):
        assert np.array_equal(get(out), table[first : first + 300])
    missing, out = put(device, np.array([1, 10_000])), empty(device, (2, 4), np.float32)
    gathers.gather(missing, out, wait=False)
    with pytest.raises(IndexError, match="entry 1"):
        gathers.served  # noqa: B018
    gathers.gather(put(device, np.array([5, 6])), outs[0][:2])
    assert sum(gathers.served) == 902


def test_errors_of_gathers_that_nobody_waited_for(device):
    """The next one that waits reports them as such, not as its own, and the one after is clean."""
    table = _native.DeviceTable(device, np.arange(40.0).reshape(10, 4), "ZERO_COPY")
    bad, out = put(device, np.append(np.zeros(30, np.int64), 10)), empty(device, (31, 4), float)
    table.gather(bad, out, wait=False)
    rows, out = put(device, np.array([3])), out[:1]
    with pytest.raises(IndexError, match="entry 30 of rows that were gathered without waiting"):
        table.gather(rows, out)
    table.gather(rows, out)
    assert get(out).tolist() == [[12, 13, 14, 15]]


def test_addresses(device, mode):
    """Arrays may be named by where they lie; rows that do not exist are named all the same."""
    array = np.random.default_rng(0).random((50, 6))
    table = open_table(device, array, mode)
    for index in (np.int32, np.int64):
        rows = np.array([49, 0, 7, 7], index)
        here, out = put(device, rows), empty(device, (4, 6), float)
        table.gather_at(address_of(here), rows.itemsize, 4, address_of(out))
        assert np.array_equal(get(out), array[rows])
        rows[2] = -3
        here = put(device, rows)
        with pytest.raises(IndexError, match=r"row -3 \(entry 2 of rows\)"):
            table.gather_at(address_of(here), rows.itemsize, 4, address_of(out))
    for width, count in ((2, 4), (8, -1)):
        with pytest.raises(ValueError, match=rf"got {width} and {count}"):
            table.gather_at(address_of(here), width, count, address_of(out))


def lets_others_run(call):
    """Whether another thread that waits for the interpreter gets it during one of ten calls."""
    ran, waiting = threading.Event(), threading.Event()

    def other():
        waiting.set()
        time.sleep(0.02)
        ran.set()

    before = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    sys.setswitchinterval(100)  # nobody has to give way
    try:
        thread.start()
        waiting.wait()
        until = time.perf_counter() + 0.1  # by then it waits
        while time.perf_counter() < until:
            pass
        assert not ran.is_set()
        for _ in range(10):
            call()
            if ran.is_set():
                return True
        return False
    finally:
        sys.setswitchinterval(before)
        thread.join()


@pytest.mark.parametrize("where", ["CUDA", "ZERO_COPY", "CPU"])
@pytest.mark.parametrize("wait", [True, False])
def test_calls_that_wait_release_the_gil(where, wait):
    """Calls that wait, or copy on the host, do; to ask for a gather alone takes no time."""
    device = _native.emulated_device()
    array = np.zeros((1000, 64))
    table = _native.DeviceTable(device, array, where)
    rows, out = np.zeros(20_000, np.int64), np.empty((20_000, 64))
    assert lets_others_run(lambda: table.gather(rows, out, wait=wait)) == (wait or where == "CPU")
    if where == "CUDA":
        assert lets_others_run(lambda: device.gather(array, rows, out, wait=wait)) == wait
