"""Weights in the dtype that kernels read."""

import math

import numpy as np
import pytest
import torch

from khop.data import Topology
from khop.data.weights import weight_values


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (torch.tensor([1.0, 0.5]), np.float32),
        (torch.tensor([1.0, 0.5], dtype=torch.float64), np.float64),
        (torch.tensor([1.0, 0.5], dtype=torch.float16), np.float32),
        (torch.tensor([1.0, 0.5], dtype=torch.bfloat16), np.float32),
        (torch.tensor([3, 2**40]), np.float64),
        (np.array([True, False]), np.float32),
        ([], np.float64),
    ],
)
def test_values_stay(values, dtype):
    weights = weight_values(values)
    assert weights.dtype == dtype
    assert weights.tolist() == (values if isinstance(values, list) else values.tolist())


def test_strided():
    weights = weight_values(torch.arange(6.0).view(3, 2)[:, 1])
    assert weights.tolist() == [1, 3, 5]
    assert weights.flags.c_contiguous


@pytest.mark.parametrize("bad", [-1.0, -math.inf, math.inf, math.nan])
def test_bad_weights(bad):
    with pytest.raises(ValueError, match=f"edge_weight holds {bad} at position 2"):
        weight_values([0.0, 1.0, bad, -5.0], "edge_weight")


def test_one_dimension():
    with pytest.raises(ValueError, match=r"one dimension .got shape \(2, 1\)"):
        weight_values(np.ones((2, 1)))


def test_weights_of_entries():
    """As they were given, in the order of rows; a table alone does not say them."""
    edges, weights = np.array([[0, 1, 2, 0], [1, 0, 1, 0]]), np.array([4, 3, 2, 1], np.int16)
    topology = Topology(edges, weights=weights)
    assert topology.weights_of(np.array([0, 1, 2, 3, 2])).tolist() == [3, 1, 4, 2, 4]
    assert topology.weights_of(np.array([0])).dtype == np.float64
    bare = Topology.compressed(
        topology.indptr,
        topology.indices,
        3,
        weight_sums=topology.weight_sums,
        weight_guide=topology.weight_guide,
    )
    for without in (bare, Topology(edges)):
        with pytest.raises(ValueError, match="not known, only their table"):
            without.weights_of(np.array([0]))
