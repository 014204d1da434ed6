"""Weights in the dtype that kernels read."""

import math

import numpy as np
import pytest
import torch

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
