"""Division of rows among devices and the host, against all divisions there are."""

import itertools

import numpy as np
import pytest

from khop.data.row_division import Rates, divide_rows, shards_of


def seconds(heat, order, num_devices, replicated, count, rates):
    """Return the mean time of a batch's rows, row by row."""
    total = 0.0
    for place, row in enumerate(order):
        if place >= count:
            total += heat[row] / rates.host
        elif place < replicated:
            total += heat[row] / rates.device
        else:
            own = 1 / num_devices
            total += heat[row] * (own / rates.device + (1 - own) / rates.peer)
    return total


@pytest.mark.parametrize("num_devices", [1, 2, 3, 4])
def test_no_division_is_faster(num_devices):
    """Of all that fit, the hottest rows first."""
    rng = np.random.default_rng(num_devices)
    rates = [Rates(), Rates(10, 3, 1), Rates(10, 1, 1), Rates(10, 10, 1)]
    for rate, capacity in itertools.product(rates, (1, 3, 8, 20)):
        heat = rng.random(24) ** 4
        budget = capacity * 40 + 4 * 24
        division = divide_rows(24, 40, num_devices, budget=budget, hotness=heat, rates=rate)
        order = np.argsort(-heat, kind="stable")
        rows = np.arange(24) if division.rows is None else division.rows
        count = len(rows)
        assert division.rows is None or rows.tolist() == order[:count].tolist()
        found = seconds(
            heat, [*rows, *order[count:]], num_devices, division.replicated, count, rate
        )
        for replicated in range(capacity + 1):
            most = min(24, replicated + num_devices * (capacity - replicated))
            assert found <= seconds(heat, order, num_devices, replicated, most, rate) + 1e-12
        parts = [division.part(i, 24) for i in range(num_devices)]
        places = 0 if division.rows is None else 4 * 24
        assert 40 * max(map(len, parts)) + places <= budget
        for part in parts:
            assert part[: division.replicated].tolist() == rows[: division.replicated].tolist()
        shared = np.concatenate([part[division.replicated :] for part in parts])
        assert sorted(shared) == sorted(rows[division.replicated :])
        report = shards_of(division, 24, 40)
        assert report.device_bytes == [40 * len(part) for part in parts]


def test_hot_rows_are_replicated_if_peers_are_slow():
    """With peers as fast as the own memory nothing is, with peers as slow as the host all is."""
    heat = np.arange(100.0, 0, -1) ** 8
    options = {"budget": 10 * 40 + 400, "hotness": heat}
    assert divide_rows(100, 40, 4, rates=Rates(10, 10, 1), **options).replicated == 0
    assert divide_rows(100, 40, 4, rates=Rates(10, 1, 1), **options).replicated == 10
    some = divide_rows(100, 40, 4, rates=Rates(60, 2, 1), **options)
    assert 0 < some.replicated < 10


def test_choices():
    """Everything, nothing, a share; what fits on each device is on each."""
    heat = np.arange(10.0)
    assert divide_rows(10, 4, 2)[:3] == (None, 2, 0)
    assert divide_rows(10, 4, 2).expected == (0.5, 0.5, 0.0)
    assert divide_rows(10, 4, 2, budget="1GB", hotness=heat)[:3] == (None, 2, 10)
    assert divide_rows(10, 4, 2, budget=20)[:3] == (None, 2, 0)  # half of the rows each
    assert divide_rows(10, 4, 2, split_ratio=0.3, hotness=heat).rows.tolist() == [9, 8, 7]
    for options in ({"split_ratio": 0.0}, {"budget": 3}):
        nothing = divide_rows(10, 4, 2, **options)
        assert (len(nothing.rows), nothing.expected) == (0, (0.0, 0.0, 1.0))
    with pytest.raises(ValueError, match="pass hotness"):
        divide_rows(10, 4, 2, split_ratio=0.3)
    with pytest.raises(ValueError, match="pass hotness"):
        divide_rows(100, 40, 2, budget=800)
