"""Which rows are hot and how many fit."""

import numpy as np
import pytest
import torch

from khop.data import expected_share
from khop.data.hot_rows import (
    checked_hotness,
    hottest_rows,
    parse_bytes,
    rows_in_budget,
    rows_in_share,
)


def test_hottest_rows():
    """Hottest first; ties in the order of ids."""
    assert hottest_rows([0.1, 0.5, 0.0, 0.5, 0.2], 4).tolist() == [1, 3, 4, 0]
    assert hottest_rows(np.zeros(3), 2).tolist() == [0, 1]


def test_expected_share():
    hotness = [0.1, 0.5, 0.0, 0.2, 0.2]
    assert expected_share(hotness, [1, 3]) == pytest.approx(0.7)
    assert expected_share(hotness, np.arange(5)) == 1
    assert expected_share(hotness, np.empty(0, np.int64)) == 0
    assert expected_share(np.zeros(4), [0]) == 0


def test_shares():
    assert [rows_in_share(share, 10) for share in (0, 0.2, 0.55, 1)] == [0, 2, 6, 10]
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            rows_in_share(share, 10)


@pytest.mark.parametrize("row_bytes", [0, 1, 4, 400])
@pytest.mark.parametrize("num_devices", [1, 3])
def test_budgets(row_bytes, num_devices):
    """What a device holds is within its budget, and one more row each would not be."""

    def bytes_each(rows):
        places = 0 if rows == 100 else 4 * 100
        return -(-rows // num_devices) * row_bytes + places

    for budget in (0, 399, 400, 404, 1000, 5000, 39999, 40000, "1MB"):
        rows = rows_in_budget(budget, 100, row_bytes, num_devices)
        assert 0 <= rows <= 100
        assert rows == 0 or bytes_each(rows) <= parse_bytes(budget)
        more = min(100, rows + num_devices)
        assert rows == 100 or bytes_each(more) > parse_bytes(budget)
    assert rows_in_budget(10, 0, row_bytes) == 0


def test_hotness_is_checked():
    assert checked_hotness(torch.tensor([1, 2]), 2).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"each of the 3 rows \(got shape \(2,\)\)"):
        checked_hotness([1, 2], 3)
    for bad in ([0.0, -1.0], [np.inf, 1.0], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="negative or non-finite"):
            checked_hotness(bad, 2)


@pytest.mark.parametrize(
    ("text", "count"),
    [(5, 5), ("5", 5), ("1K", 1024), ("1.5 MB", 3 * 2**19), ("2GiB", 2**31), (" 1 tb ", 2**40)],
)
def test_numbers_of_bytes(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MB", "1.2.3K", "-5", "5 XB", "1e3"])
def test_malformed_cache_sizes_are_refused(text):
    with pytest.raises(ValueError, match="is not a number of bytes"):
        parse_bytes(text)
