"""Chances of minimal variance sampling, against enumeration of all draws and other chances."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from khop.nn import mvs_chances


def estimates(gradients, chances):
    """Mean and variance of the sum of drawn gradients, each divided by its chance.

    All 2^n draws are enumerated, with their probabilities.
    """
    mean, square = np.zeros(gradients.shape[1]), 0.0
    for draw in itertools.product([0, 1], repeat=len(chances)):
        drawn = np.array(draw, bool)
        probability = np.where(drawn, chances, 1 - chances).prod()
        if probability > 0:
            found = (gradients[drawn] / chances[drawn, None]).sum(0)
            mean += probability * found
            square += probability * (found**2).sum()
    return mean, square - (mean**2).sum()


@pytest.mark.parametrize("count", [0.5, 2, 3.7, 6])
def test_gradients_have_no_bias_and_the_least_variance(count):
    """Less than with any of 200 other chances of the same sum, and with uniform ones."""
    draw = np.random.default_rng(0)
    gradients = draw.normal(size=(7, 3)) * draw.exponential(size=(7, 1)) ** 2
    norms = np.linalg.norm(gradients, axis=1)
    chances = mvs_chances(torch.from_numpy(norms), count).numpy()
    mean, variance = estimates(gradients, chances)
    assert np.allclose(mean, gradients.sum(0))
    # The variance of independent draws, checked against the enumeration, is cheap for others.
    of = lambda p: ((1 / p - 1) * norms**2).sum()  # noqa: E731
    assert np.isclose(variance, of(chances))
    others = [np.full(7, count / 7)]
    while len(others) < 200:
        other = mvs_chances(torch.from_numpy(draw.lognormal(size=7)), count).numpy()
        step = draw.random()
        others.append((1 - step) * chances + step * other)
    assert all(of(chances) <= of(other) + 1e-9 for other in others)


@given(
    st.lists(st.floats(0, 1e6) | st.just(0.0), min_size=1, max_size=20),
    st.floats(0.01, 1),
    st.floats(0, 1),
)
@settings(max_examples=200)
def test_chances_are_chances(norms, share, explore):
    """Of the wanted sum, in the order of norms, and proportional to them below 1."""
    count = share * len(norms)
    chances = mvs_chances(torch.tensor(norms), count, explore)
    assert chances.shape == (len(norms),) and chances.min() >= 0 and chances.max() <= 1 + 1e-9
    assert float(chances.sum()) == pytest.approx(count, rel=1e-6)
    by_norm = chances[torch.tensor(norms).argsort()]
    assert (by_norm.diff() >= -1e-9).all()
    assert explore < 1e-9 or chances.min() > 0


def test_chances_of_all_and_of_zeros():
    assert mvs_chances(torch.tensor([3.0, 0.0]), 2).tolist() == [1, 1]
    assert mvs_chances(torch.zeros(4), 1).tolist() == [0.25] * 4
    assert mvs_chances(torch.tensor([1.0, 0.0, 0.0]), 2).tolist() == [1, 0.5, 0.5]
    assert mvs_chances(torch.tensor([8.0, 1.0, 1.0]), 2, explore=0.5).tolist() == pytest.approx(
        [5 / 6, 7 / 12, 7 / 12]
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (torch.ones(2, 2), 1), (torch.tensor([-1.0]), 1), (torch.tensor([torch.nan]), 1),
        (torch.ones(2), 0), (torch.ones(2), 3), (torch.ones(2), 1, 1.5), (torch.ones(0), 1),
    ],
)  # fmt: skip
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="must be"):
        mvs_chances(*arguments)
