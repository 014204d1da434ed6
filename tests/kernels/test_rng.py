"""Philox against published vectors; keys that differ in anything differ."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from khop import _native
from support.reference import oracle

_ONES = 2**32 - 1
words = st.integers(0, _ONES)
longs = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((_ONES,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_known_answers(counter, key, expected):
    """Random123's kat_vectors, `philox4x32 10`."""
    assert _native.philox(key, *counter) == expected
    assert oracle.philox(key, *counter) == expected


@given(longs, words, words, words, words)
def test_philox_is_the_published_function(key, c0, c1, c2, c3):
    assert _native.philox(key, c0, c1, c2, c3) == oracle.philox(key, c0, c1, c2, c3)


@given(longs, longs, longs, words, words)
def test_keys_follow_the_contract(a, b, c, hop, edge_type):
    assert _native.run_key(a, b, c) == oracle.run_key(a, b, c)
    assert _native.step_key(a, b, hop, edge_type) == oracle.step_key(a, b, hop, edge_type)


def test_keys_are_all_different():
    """Seeds, epochs, streams, batches, hops and edge types do not alias, nor do they add up."""
    few = (0, 1, 2, 3, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1)
    runs = [_native.run_key(*abc) for abc in itertools.product(few, repeat=3)]
    assert len(set(runs)) == len(runs)
    hops = (0, 1, 2, 3, _native.SHUFFLE_HOP)
    steps = [
        _native.step_key(run, batch, hop, edge_type)
        for run, batch, hop, edge_type in itertools.product(runs[:20], few, hops, range(4))
    ]
    assert len(set(steps)) == len(steps)


def test_bits_of_keys_are_balanced():
    """Keys of consecutive batches look like coin flips, bit by bit and from key to key."""
    keys = np.array([_native.step_key(5, b, 0, 0) for b in range(4096)], np.uint64)
    bits = np.unpackbits(keys.view(np.uint8)).reshape(len(keys), 64)
    flips = bits[1:] ^ bits[:-1]
    for table in (bits, flips):
        p = stats.chi2.sf(((table.sum(0) - len(table) / 2) ** 2 / (len(table) / 4)).sum(), 64)
        assert p > 1e-4


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
def test_permutation_holds_each_number_once(count):
    order = _native.permutation(count, 7)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(order, _native.permutation(count, 7))


def test_permutations_are_uniform():
    """All 120 orders of five things are equally likely."""
    index = {p: i for i, p in enumerate(itertools.permutations(range(5)))}
    seen = [index[tuple(_native.permutation(5, key).tolist())] for key in range(24_000)]
    assert stats.chisquare(np.bincount(seen, minlength=120)).pvalue > 1e-4


def test_long_permutations_have_no_pattern():
    """Places before and after are uncorrelated, and so are two keys' orders and neighbours."""
    a, b = _native.permutation(200_000, 1), _native.permutation(200_000, 2)
    for left, right in ((a, np.arange(len(a))), (a, b), (a[1:], a[:-1])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / np.sqrt(len(left))


def test_permutation_refuses_a_negative_count():
    with pytest.raises(ValueError, match="negative"):
        _native.permutation(-1, 0)
