"""Sixteen rows drawn at a time, with each set of instructions, against rows drawn alone.

Alone means Philox, word by word, and Floyd's algorithm in Python.
"""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop import _native

LANES = 16


def draw_alone(key, node, tree, degree, count, replace):
    """What one row draws."""
    words = [
        word
        for block in range(-(-count // 4))
        for word in _native.philox(key, node & 0xFFFFFFFF, node >> 32, block, tree)
    ]
    picked = []
    for i, word in enumerate(words[:count]):
        if replace:
            picked.append(word * degree >> 32)
            continue
        last = degree - count + i
        position = word * (last + 1) >> 32
        picked.append(last if position in picked else position)
    return picked


@pytest.mark.parametrize("instructions", _native.simd_instructions())
@settings(max_examples=60)
@given(data=st.data())
def test_every_lane_is_a_row_alone(instructions, data):
    """Also for ids of more than 32 bits, trees, degrees of all sizes, and repeated picks."""
    replace = data.draw(st.booleans())
    count = data.draw(st.integers(0, 48))
    key = data.draw(st.integers(0, 2**64 - 1))
    smallest = 1 if replace else count + 1
    degree = st.one_of(st.integers(smallest, smallest + 3), st.integers(smallest, 2**16))
    rows = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1), degree),
            min_size=LANES,
            max_size=LANES,
        )
    )
    nodes, trees, degrees = (np.array(values) for values in zip(*rows, strict=True))
    drawn = _native.draw_simd(
        instructions,
        key,
        nodes.astype(np.uint64),
        trees.astype(np.uint32),
        degrees.astype(np.uint32),
        count,
        replace,
    )
    expected = [draw_alone(key, *row, count, replace) for row in rows]
    np.testing.assert_array_equal(drawn.reshape(count, LANES).T, np.array(expected).reshape(16, -1))


def test_the_portable_way_is_always_there():
    assert _native.simd_instructions()[-1] == "portable"


def test_rows_out_of_range_of_simd_are_refused():
    """Rows that are taken whole or too wide for 32-bit words, and too many picks."""
    ids, trees = np.zeros(16, np.uint64), np.zeros(16, np.uint32)
    for degree, count, replace in ((5, 5, False), (2**16 + 1, 5, True), (100, 49, True)):
        degrees = np.full(16, degree, np.uint32)
        with pytest.raises(ValueError, match=r"degree|at most 48"):
            _native.draw_simd("portable", 1, ids, trees, degrees, count, replace)
    with pytest.raises(ValueError, match="no instructions abacus"):
        _native.draw_simd("abacus", 1, ids, trees, np.full(16, 9, np.uint32), 2, False)


@pytest.mark.parametrize("instructions", _native.simd_instructions())
@settings(max_examples=60)
@given(data=st.data())
def test_words_below_a_limit_are_those_of_nodes_alone(instructions, data):
    """Any number of nodes, with and without upper halves of ids; limits up to all ones."""
    wide = data.draw(st.booleans())
    ids = st.integers(0, 2**63 - 1 if wide else 2**32 - 1)
    nodes = data.draw(st.lists(ids, max_size=80))
    key, tree = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 2**31 - 1))
    words = []
    for node in nodes:
        low, high, *_ = _native.philox(key, node & 0xFFFFFFFF, node >> 32, 0, tree)
        words.append(low | high << 32)
    limit = data.draw(st.sampled_from([0, 2**62, 2**63, 2**64 - 1, *words]))
    kept, places = _native.below_simd(
        instructions, key, tree, np.array(nodes, np.uint64), limit, wide
    )
    want = [(word, 100 + i) for i, word in enumerate(words) if word <= limit]
    assert list(zip(kept.tolist(), places.tolist(), strict=True)) == want


@pytest.mark.parametrize("instructions", _native.simd_instructions())
@given(
    st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1]), min_size=1),
    st.data(),
)
def test_kth_smallest(instructions, words, data):
    """Also of equal ones, and those that look negative."""
    k = data.draw(st.integers(1, len(words)))
    found = _native.kth_simd(instructions, np.array(words, np.uint64), k)
    assert found == sorted(words)[k - 1]
