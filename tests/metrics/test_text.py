"""What is written for Prometheus is what its format allows, whatever names and values are."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from khop.metrics.text import Family, expose, format_number
from support.formats import prometheus

try:  # the format's authors' own reader, where it is installed
    from prometheus_client.parser import text_string_to_metric_families as their_reader
except ImportError:
    their_reader = None

values = st.one_of(st.integers(-(2**70), 2**70), st.floats())


def same(a, b):
    return (math.isnan(a) and math.isnan(b)) or a == b


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=12), values, max_size=4), st.text())
def test_labels_and_values_come_back(samples, help):
    """Any text as label or help, any number as value: as it was, and no line of its own."""
    family = Family("khop_some_total", "counter", help)
    safe = {text.encode("utf-8", "backslashreplace").decode(): v for text, v in samples.items()}
    for text, value in safe.items():
        family.add(value, {"name": text, "rank": 0})
    written = expose([family])
    if not safe:
        assert written == ""
        return
    kind, told, read = prometheus.read(written)["khop_some_total"]
    assert (kind, told) == ("counter", help)
    assert len(read) == len(safe)
    for text, value in safe.items():
        key = "khop_some_total", frozenset({("name", text), ("rank", "0")})
        assert same(read[key], float(value))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**40), min_size=4, max_size=4))
def test_histograms_are_cumulative(counts):
    family = Family("khop_seconds", "histogram", "h")
    family.add_histogram([0.001, 0.5, 10.0], counts, 2.5, {"op": "a"})
    _, _, read = prometheus.read(expose([family]))["khop_seconds"]

    def of(name, **labels):
        return read[f"khop_seconds{name}", frozenset({("op", "a"), *labels.items()})]

    assert of("_bucket", le="0.001") == counts[0]
    assert of("_bucket", le="10.0") == sum(counts[:3])
    assert of("_bucket", le="+Inf") == of("_count") == sum(counts)
    assert of("_sum") == 2.5


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "1"), (3, "3"), (0.25, "0.25"), (math.inf, "+Inf"), (-math.inf, "-Inf")],
)
def test_numbers(value, text):
    assert format_number(value) == text
    assert format_number(math.nan) == "NaN"


def test_metrics_that_prometheus_refuses_are_refused():
    counter = Family("a_total", "counter", "h")
    counter.add(1, {"x": 1})
    with pytest.raises(ValueError, match="two values"):
        counter.add(1, {"x": "1"})
    for labels in ({"a-b": 1}, {"__a": 1}, {"": 1}, {"a\n": 1}):
        with pytest.raises(ValueError, match="no name of a label"):
            counter.add(2, labels)
    for name in ("a b_total", "1_total", "_total\n"):
        with pytest.raises(ValueError, match=r"no name of a metric|end with"):
            Family(name, "counter", "h")
    for name, kind in (("a", "counter"), ("a_total", "gauge")):
        with pytest.raises(ValueError, match="end with '_total'"):
            Family(name, kind, "h")
    with pytest.raises(ValueError, match="got 'summary'"):
        Family("a", "summary", "h")
    with pytest.raises(ValueError, match="two metrics called 'a_total'"):
        expose([counter, counter])
    with pytest.raises(ValueError, match="no histogram of 1 bounds"):
        Family("h", "histogram", "h").add_histogram([1.0], [1], 0.0, {})
    with pytest.raises(ValueError, match=r"sets the label 'le' itself \(got 'x'\)"):
        Family("h", "histogram", "h").add_histogram([1.0], [1, 2], 0.0, {"le": "x"})


@pytest.mark.skipif(their_reader is None, reason="needs prometheus_client")
def test_its_authors_read_the_same():
    counter, histogram = Family("a_total", "counter", 'h "\\\n'), Family("b", "histogram", "h")
    for text in ('"', "\\", "\n", "\\n", "ü{}=,", ""):
        counter.add(1.5, {"x": text})
    histogram.add_histogram([0.1, 2.0], [1, 2, 3], 0.5, {"x": "\\"})
    text = expose([counter, histogram])
    ours = {
        key: value
        for _, _, samples in prometheus.read(text).values()
        for key, value in samples.items()
    }
    theirs = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in their_reader(text)
        for sample in family.samples
    }
    assert ours == theirs
