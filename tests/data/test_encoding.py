"""Errors of encodings are within the bounds that the documentation states."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop.data import Feature
from khop.data.encoding import Encoding, encoding_name
from khop.data.feature import DecodedFeature
from khop.data.joined import JoinedFeature, TakenFeature

# Precision of a number (relative), and half the distance of numbers without exponent.
BOUNDS = {
    "bfloat16": (2.0**-8, 2.0**-134),
    "float16": (2.0**-11, 2.0**-25),
    "float8_e4m3fn": (2.0**-4, 2.0**-10),
}
LARGEST = {"bfloat16": 3.38e38, "float16": 65_504, "float8_e4m3fn": 448}


def there_and_back(encoding, values):
    stored, bad = encoding.encode(values)
    assert bad == -1
    return encoding.decode(stored).astype(np.float64)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(BOUNDS)), st.data())
def test_floats(name, data):
    largest = float(np.float32(LARGEST[name]))
    numbers = st.floats(-largest, largest, width=32)
    values = np.array([data.draw(st.lists(numbers, min_size=1, max_size=30))], np.float32)
    relative, absolute = BOUNDS[name]
    error = np.abs(there_and_back(Encoding(name), values) - values)
    assert (error <= np.maximum(relative * np.abs(values.astype(np.float64)), absolute)).all()


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 5), st.integers(1, 30), st.data())
def test_int8(width, count, data):
    """At most half a step, and float32's rounding of a sum of numbers of that size."""
    numbers = st.floats(-(2.0**99), 2.0**99, width=32)
    flat = data.draw(st.lists(numbers, min_size=width * count, max_size=width * count))
    values = np.array(flat, np.float32).reshape(count, width)
    low, high = values.min(0), values.max(0)
    encoding = Encoding.of_range(low, high)
    error = np.abs(there_and_back(encoding, values) - values)
    size = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    half_step = (high.astype(np.float64) - low) / 510
    assert (error <= half_step * (1 + 1e-5) + 2.0**-21 * size + 1e-42).all()
    zeros = np.zeros((1, width), np.float32)
    holds_zero = (low <= 0) & (high >= 0)
    assert (there_and_back(encoding, zeros)[0][holds_zero] == 0).all()


def test_int8_of_columns_that_hold_one_number():
    values = np.array([[5, 0, -3e38, 1e-40]] * 3, np.float32)
    encoding = Encoding.of_range(values.min(0), values.max(0))
    assert np.array_equal(there_and_back(encoding, values), values)


def test_rows_of_an_encoded_feature():
    """Widened in any order, as they are by `as_stored`, joined and taken with an encoding."""
    values = np.random.default_rng(0).normal(size=(9, 2, 3)).astype(np.float32)
    stored, _ = Encoding("float16").encode(values)
    rows = DecodedFeature(Feature(stored), Encoding("float16"))
    expected = values.astype(np.float16).astype(np.float32)
    assert (rows.dtype, rows.row_shape, rows.num_rows) == ("float32", (2, 3), 9)
    assert np.array_equal(rows.array, expected)
    order = np.array([8, 0, 8])
    assert np.array_equal(rows.gather(order), expected[order])
    assert np.array_equal(rows.start(order)[0], expected[order])
    out = np.zeros((4, 2, 3), np.float32)
    rows.gather(order, out, np.array([3, 0, 1]))
    assert np.array_equal(out[[3, 0, 1]], expected[order])
    assert rows.floating
    raw = rows.as_stored
    assert raw.gather(order).tobytes() == stored[order].tobytes()
    taken = TakenFeature(JoinedFeature([raw, raw]), np.array([9, 1]))
    assert taken.encoding is raw.encoding
    assert np.array_equal(taken.numbers(), expected[[0, 1]])


def test_rows_at_odd_addresses():
    """As in a mapped file whose header has any length."""
    memory = np.zeros(41, np.uint8)
    odd = np.frombuffer(memory.data, np.float16, 20, offset=1).reshape(5, 4)
    memory[1:] = np.arange(20, dtype=np.float16).view(np.uint8)
    assert not odd.flags.aligned
    assert np.array_equal(Encoding("float16").decode(odd), np.arange(20).reshape(5, 4))
    rows = np.empty((1, 4), np.float32)
    Encoding("float16").gather(odd, np.array([2]), rows)
    assert rows.tolist() == [[8, 9, 10, 11]]


def test_names():
    import torch

    assert encoding_name("float8") == encoding_name(torch.float8_e4m3fn) == "float8_e4m3fn"
    assert encoding_name(torch.bfloat16) == "bfloat16"
    assert encoding_name(np.float16) == encoding_name("float16") == "float16"
    for dtype in ("int4", "float64", np.int16, None):
        with pytest.raises(ValueError, match="bfloat16, float16, int8, float8 or float32"):
            encoding_name(dtype)
