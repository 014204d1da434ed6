"""Fan-outs, in every form that PyG takes them, and what is wrong with the others."""

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NumNeighbors

from khop.sampler import SamplingSpec

_A, _B = ("a", "to", "b"), ("b", "to", "a")


@pytest.mark.parametrize(
    "given",
    [
        [3, -1, 0],
        (3, -1, 0),
        np.array([3, -1, 0]),
        torch.tensor([3, -1, 0]),
        NumNeighbors([3, -1, 0]),
        {_A: [3, -1, 0], _B: [3, -1, 0]},
        {("a", "b"): [3, -1, 0], "b__to__a": [3, -1, 0]},
        NumNeighbors({_A: [3, -1, 0]}, default=[3, -1, 0]),
        NumNeighbors({("b", "a"): [3, -1, 0]}, default=[3, -1, 0]),
    ],
    ids=lambda g: type(g).__name__,
)
def test_every_form(given):
    spec = SamplingSpec.create(given, [_A, _B])
    assert spec.fanouts == ((3, -1, 0), (3, -1, 0))
    assert spec.num_hops == 3


def test_no_hops():
    assert SamplingSpec.create([], [_A]).num_hops == 0


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (10, TypeError, "must be a list of fan-outs, one per hop"),
        ("10", TypeError, "must be a list of fan-outs"),
        ([1.5], TypeError, "must hold integers"),
        ([None], TypeError, "must hold integers"),
        (torch.tensor(3), TypeError, r"a list of fan-outs.* \(got tensor\(3\)\)"),
        (torch.tensor([[3]]), TypeError, "a list of fan-outs"),
        ([5, -2], ValueError, "holds -2: a fan-out is -1"),
        ({_A: [1, 2], _B: [1]}, ValueError, "hops must be the same across all edge types"),
        ([5, 2**63], ValueError, r"holds 9223372036854775808: .* below 2\^63"),
        ({_A: [1]}, ValueError, "no fan-outs for edge types"),
        ({_A: [1], _B: [1], ("x", "y", "z"): [1]}, ValueError, "names edge types"),
        (NumNeighbors({("x", "y", "z"): [1]}, default=[1]), ValueError, "names edge types"),
        (NumNeighbors({_A: [1]}), ValueError, "no fan-outs for edge types"),
    ],
)
def test_bad_input(given, error, message):
    with pytest.raises(error, match=message):
        SamplingSpec.create(given, [_A, _B])
