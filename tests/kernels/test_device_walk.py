"""Walks on devices: those of the CPU, bit for bit."""

import numpy as np
import pytest

from khop import _native
from support.devices import KINDS, open_device
from support.kernels.walks import ONE, chances_of, star, walked

BIASES = [(1, 1), (0.5, 2), (100, 100), (0.01, 20), (30, 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtypes", [(np.int32, np.int32), (np.int64, np.int64)])
@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY"])
def test_walks_are_those_of_the_cpu(kind, dtypes, mode):
    indptr, indices = star(5)
    original = np.random.default_rng(0).permutation(202)
    csr = _native.Csr(
        indptr.astype(dtypes[0]), indices.astype(dtypes[1]), row_ids=original, first_edge=70
    )
    device = open_device(kind, 3)
    graph = _native.DeviceGraph(device, csr, mode)
    starts = np.arange(202)
    for length in (0, 1, 7):
        stops = [0, ONE // 5, 0, ONE // 2, 0, 0, 0][:length]
        for p, q in BIASES:
            expected = walked(csr, starts, length, chances_of(p, q), stops)
            found = walked(graph, starts, length, chances_of(p, q), stops, device.random_walks)
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert walked(graph, [], 3, walk=device.random_walks)[0].shape == (0, 4)


def test_without_edges(device):
    csr = _native.Csr(*star(0))
    nodes = np.empty((9, 4), np.int64)
    starts, chances = np.arange(9), (ONE, ONE, ONE)
    graph = _native.DeviceGraph(device, csr)
    device.random_walks([graph], [0] * 3, [0] * 3, chances, 5, 0, 0, starts, nodes, None)
    expected = np.empty_like(nodes)
    _native.random_walks([csr], [0] * 3, [0] * 3, chances, 5, 0, 0, starts, expected, None)
    assert np.array_equal(nodes, expected)


@pytest.mark.parametrize("chances", [(ONE, ONE, ONE), chances_of(4, 0.25)])
def test_damaged_graphs(device, chances):
    for neighbor in (-1, 2, 2**40):
        csr = _native.Csr(np.array([0, 1, 2]), np.array([1, neighbor]))
        with pytest.raises(RuntimeError, match="damaged: walk 1 comes to a node"):
            walked(
                _native.DeviceGraph(device, csr),
                [0, 1],
                2,
                chances,
                stops=[0, ONE // 1000],
                walk=device.random_walks,
            )
    csr = _native.Csr(np.array([0, 9, 2]), np.array([1, 0]))
    with pytest.raises(RuntimeError, match="damaged: walk 0"):
        walked(_native.DeviceGraph(device, csr), [0], 4, chances, walk=device.random_walks)


def test_bad_arguments(device):
    other = _native.DeviceGraph(device, _native.Csr(*star(0)))
    two = np.zeros(2, np.int64), np.empty((2, 4), np.int64), None
    for given, error, message in (
        (([other], [0, 0], [0, 0], (ONE, ONE, ONE), 0, 0, 0, *two), ValueError, r"shape \[2, 3\]"),
        (([other], [0, 1, 0], [0] * 3, (1, 1, 1), 0, 0, 0, *two), IndexError, "no such edge"),
        (([other], [0] * 3, [0] * 3, (0, 1, 1), 0, 0, 0, *two), ValueError, "from 1 to"),
        (([None], [0] * 3, [0] * 3, (1, 1, 1), 0, 0, 0, *two), TypeError, "graphs must hold"),
    ):
        with pytest.raises(error, match=message):
            device.random_walks(*given)
