"""Updates of rows by gradients, against torch.optim."""

import numpy as np
import pytest
import torch

from khop import _native

pytestmark = pytest.mark.unit

ROWS, WIDTH, STEPS = 50, 7, 6
_OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.3, eps=1e-8),
    "adam": lambda p: torch.optim.SparseAdam(p, lr=0.3, betas=(0.8, 0.95), eps=1e-8),
}


def rate_of(rule, step):
    return 0.3 * (1 - 0.95**step) ** 0.5 / (1 - 0.8**step) if rule == "adam" else 0.3


@pytest.mark.parametrize("rule", _OPTIMISERS)
def test_updates_are_torchs(rule):
    generator = torch.Generator().manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(ROWS, WIDTH, generator=generator))
    mine, first, second = weight.detach().numpy().copy(), *np.zeros((2, ROWS, WIDTH), np.float32)
    optimiser = _OPTIMISERS[rule]([weight])
    for step in range(1, STEPS + 1):
        rows = torch.randperm(ROWS, generator=generator)[:20].sort().values
        gradients = torch.randn(20, WIDTH, generator=generator)
        weight.grad = torch.sparse_coo_tensor(rows[None], gradients, weight.shape).coalesce()
        optimiser.step()
        rate = rate_of(rule, step)
        states = {"sgd": (None, None), "adagrad": (first, None)}.get(rule, (first, second))
        _native.update_rows(
            mine, rows.numpy(), gradients.numpy(), rule, *states, rate, 1e-8, 0.8, 0.95
        )
        np.testing.assert_allclose(mine, weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_rowwise_adagrad_has_one_sum_for_a_row():
    rng = np.random.default_rng(0)
    table, sums = rng.standard_normal((5, 3)).astype(np.float32), np.zeros(5, np.float32)
    expected = table.astype(np.float64)
    squares = np.zeros(5)
    for _ in range(4):
        rows, gradients = np.array([4, 1]), rng.standard_normal((2, 3)).astype(np.float32)
        squares[rows] += (gradients.astype(np.float64) ** 2).mean(1)
        expected[rows] -= 0.1 * gradients / (np.sqrt(squares[rows])[:, None] + 1e-10)
        arguments = gradients, "rowwise_adagrad", sums, None, 0.1, 1e-10, 0.0, 0.0
        _native.update_rows(table, rows, *arguments)
    np.testing.assert_allclose(table, expected, rtol=1e-5)
    np.testing.assert_allclose(sums, squares, rtol=1e-5)


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_gradients_are_scaled_first(rule):
    """Equal to an update by gradients that NumPy has multiplied, bit by bit."""
    rng = np.random.default_rng(0)
    results = []
    gradients = rng.standard_normal((3, 5)).astype(np.float32)
    for values, scale in ((gradients, np.float32(0.3)), (gradients * np.float32(0.3), 1.0)):
        table, first, second = (np.ones((4, 5), np.float32) for _ in range(3))
        first = np.ones(4, np.float32) if rule == "rowwise_adagrad" else first
        arguments = np.array([3, 0, 1]), values, rule, first, second, 0.1, 1e-8, 0.9, 0.99, scale
        _native.update_rows(table, *arguments)
        results.append(b"".join(array.tobytes() for array in (table, first, second)))
    assert results[0] == results[1]


def test_distinct_rows_are_numbered_by_first_appearance():
    rng = np.random.default_rng(0)
    distinct = _native.DistinctRows(1000)
    pushes = [rng.integers(0, 1000, n) for n in (0, 1, 700, 3000)]
    numbers = np.concatenate([distinct.add(rows) for rows in pushes])
    rows, first = np.unique(np.concatenate(pushes), return_index=True)
    assert np.array_equal(distinct.rows(), rows[np.argsort(first)])
    assert np.array_equal(distinct.rows()[numbers], np.concatenate(pushes))
    for row in (-1, 1000):
        with pytest.raises(IndexError, match=f"{row} does not exist"):
            distinct.add(np.array([row]))


def test_bfloat16_rows_are_rounded_to_nearest():
    rows = torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    bits = rows.view(torch.int16).numpy().view(np.uint16).copy()
    gradients = np.array([[0.013, -0.017]], np.float32)
    _native.update_rows(bits, np.array([0]), gradients, "sgd", None, None, 1.0, 0, 0, 0)
    expected = (rows.float() - torch.from_numpy(gradients)).bfloat16()
    assert torch.equal(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), expected)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"rows": np.array([3])}, IndexError, "row 3"),
        ({"rows": np.array([-1])}, IndexError, "row -1"),
        ({"gradients": np.ones((2, 2), np.float32)}, ValueError, "a gradient for each"),
        ({"table": np.zeros((3, 2))}, TypeError, "float32 or bfloat16"),
        ({"rule": "lion"}, ValueError, "'rowwise_adagrad' or 'adam'"),
        ({"first": None}, TypeError, "first must have 6 float32"),
        ({"first": np.zeros((2, 2), np.float32)}, TypeError, "first must have 6 float32"),
        ({"second": np.zeros((3, 2))}, TypeError, "second must have 6 float32"),
    ],
)
def test_arguments_that_do_not_fit_change_nothing(change, error, text):
    arguments = {
        "table": np.zeros((3, 2), np.float32),
        "rows": np.array([1]),
        "gradients": np.ones((1, 2), np.float32),
        "rule": "adam",
        "first": np.zeros((3, 2), np.float32),
        "second": np.zeros((3, 2), np.float32),
        **{"rate": 0.1, "epsilon": 0.1, "beta1": 0.1, "beta2": 0.1},
    } | change
    with pytest.raises(error, match=text):
        _native.update_rows(**arguments)
    assert not arguments["table"].any()
