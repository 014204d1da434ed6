"""Counts that no memory holds: a MemoryError with the numbers, not a product that wraps."""

import numpy as np
import pytest

from khop import _native
from support import devices
from support.devices import empty, get, put
from support.kernels import hop_calls

TWO = np.array([0, 1])
# Their rows of four and eight bytes are beyond 2^47 bytes, 2^63 bytes, 2^64 bytes, and 64 bits.
HUGE = [2**50, 2**61, 2**62 - 1, 2**62, 2**63 - 1]


@pytest.mark.parametrize("count", HUGE)
def test_rows_that_no_memory_holds(count):
    """2^62 + 1 row pointers of four bytes are four bytes, if the product wraps."""
    with pytest.raises(MemoryError, match=r"no room for \d+ entries of 4 bytes|no room for 9223"):
        _native.coo_to_csr(TWO, TWO, count, 2)


@pytest.mark.parametrize("count", HUGE)
def test_permutations_that_no_memory_holds(count):
    with pytest.raises(MemoryError, match=f"no room for {count} entries of 8 bytes"):
        _native.permutation(count, 1)


def test_rows_beyond_64_bits_on_a_device(device):
    arrays = [put(device, TWO) for _ in range(4)]
    with pytest.raises(MemoryError, match="no room for 9223372036854775807"):
        device.coo_to_csr(*arrays[:2], 2**63 - 1, 2, *arrays[2:])


@pytest.mark.parametrize("num_bytes", [2**50, 2**63, 2**64 - 1])
def test_memory_that_a_device_has_not(num_bytes):
    device = _native.emulated_device()
    with pytest.raises(MemoryError, match=f"no room for {num_bytes} entries of 1 byte"):
        _native.DeviceMemory.allocate(device, num_bytes)


def test_rows_of_a_table_without_rows(device):
    """Nothing is staged for them, however wide they would be."""
    table = np.empty((0, 2**50), np.uint8)
    assert _native.DeviceTable(device, table, "CUDA").place == "device"


def test_rows_without_a_byte_in_several_threads():
    rows = np.zeros(5 << 20, np.int32)
    _native.gather(np.empty((1, 0)), rows, np.empty((len(rows), 0)), num_threads=2)


@pytest.mark.parametrize("kind", devices.KINDS)
def test_trees_that_do_not_fit_beside_those_of_another_batch(kind):
    """Recorded batches have room for the most seeds of each type so far: for twice five trees.

    Ids of 2^60 nodes leave three bits for trees. Ten trees wrap to a number that fits 32 bits, with
    which keys would be compared by their lower halves: there, no two neighbours differ.
    """
    device = devices.open_device(kind, 0)
    neighbors = (np.random.default_rng(0).permutation(2**20)[:1000] << 32) + 1
    graph = _native.DeviceGraph(device, _native.Csr(np.array([0, 1000]), neighbors))
    batch = _native.DeviceSubgraph(device, [2**60] * 2, [(0, 0), (1, 1)], False, True)
    for node_type in (0, 1):
        batch.begin()
        batch.add_seeds(node_type, np.zeros(5, np.int64))
        hop_calls.sample(batch, [graph] * 2, [[-1], [-1]], False, [False] * 2, False, 1, 1, True)
        nodes = empty(device, batch.num_nodes(node_type), np.int64)
        addresses = [0, 0]
        addresses[node_type] = devices.address_of(nodes)
        batch.write(addresses, [], [], [], [])
        device.synchronize()
        assert get(nodes).tolist() == [0] * 5 + neighbors.tolist() * 5


@pytest.mark.parametrize("num_parts", HUGE)
def test_parts_that_no_memory_holds(num_parts):
    """One bound more than there are parts: of 2^63 - 1 that wraps."""
    with pytest.raises(MemoryError, match="no room for"):
        _native.number_by_owner(np.zeros(3, np.int32), num_parts)


@pytest.mark.parametrize("first", [-1, 2**63 - 2, 2**63 - 1])
def test_numbers_that_lead_beyond_64_bits(first):
    """Where the nodes of rows begin, or the edges of a piece: two of each."""
    ids, two = np.arange(2, dtype=np.int32), np.empty(2, np.int32)
    message = "must not be negative, nor lead beyond"
    with pytest.raises(ValueError, match=f"first_node {message}"):
        _native.undirected(np.array([0, 1, 2]), ids, first)
    split = _native.RowSplit(ids, ids, 2)
    with pytest.raises(ValueError, match=f"first {message}"):
        split.count(ids, ids, first, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=f"first {message}"):
        split.split(ids, ids, first, np.array([0, 2]), two, two, two)
    for option in ("first_row", "first_edge"):
        with pytest.raises(ValueError, match=f"{option} {message}"):
            _native.Csr(np.array([0, 1, 2]), ids, **{option: first})
