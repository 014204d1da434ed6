"""Prometheus's text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats

All samples of one metric are together below its HELP and TYPE lines. A sample is a name, labels and
a number. Backslashes, line feeds and, in labels, double quotes are escaped. Histograms are
cumulative and end with le="+Inf", which equals their count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content-Type of the page."""

Labels = Mapping[str, object]
"""Names and values of labels. Values are written as str() returns them."""

REQUEST_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
"""Upper bounds, in seconds, of the duration classes of requests. One more class has no bound."""

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_TYPES = ("counter", "gauge", "histogram")


class Family:
    """A metric: all its samples, one for each set of labels.

    Args:
        name: name of the metric. Names of counters end with '_total'.
        metric_type: 'counter' (falls only when its process restarts), 'gauge' or 'histogram'.
        help: sentence that states what the metric counts, with the unit.

    Raises:
        ValueError: a name or type that Prometheus does not know.
    """

    def __init__(self, name: str, metric_type: str, help: str) -> None:
        if metric_type not in _TYPES:
            raise ValueError(f"a metric is one of {', '.join(_TYPES)} (got '{metric_type}')")
        if not _METRIC.fullmatch(name):
            raise ValueError(f"'{name}' is no name of a metric: letters, digits, '_' and ':'")
        if (metric_type == "counter") != name.endswith("_total"):
            raise ValueError(f"names of counters, and no others, end with '_total' (got '{name}')")
        self.name, self.metric_type, self.help = name, metric_type, help
        self._lines: dict[tuple[str, str], str] = {}

    def add(self, value: float, labels: Labels) -> None:
        """Add a sample, the value of a counter or gauge for a set of labels.

        Raises:
            ValueError: labels are invalid, or have a sample already.
        """
        if self.metric_type == "histogram":
            raise ValueError(f"'{self.name}' is a histogram")
        self._write("", labels, value)

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, labels: Labels
    ) -> None:
        """Add a histogram for a set of labels.

        `bounds` are upper bounds of the classes, ascending. The last class has none, so `counts`
        has one entry more. `total` is the sum of all observed values.

        Raises:
            ValueError: the metric is no histogram, lengths do not fit, or labels are invalid.
        """
        if self.metric_type != "histogram" or len(counts) != len(bounds) + 1:
            raise ValueError(f"'{self.name}' is no histogram of {len(bounds)} bounds")
        if "le" in labels:
            raise ValueError(f"'{self.name}' sets the label 'le' itself (got {labels['le']!r:.80})")
        upto = list(accumulate(counts))
        for bound, count in zip([*bounds, math.inf], upto, strict=True):
            self._write("_bucket", {**labels, "le": format_number(bound)}, count)
        self._write("_sum", labels, total)
        self._write("_count", labels, upto[-1])

    def _write(self, suffix: str, labels: Labels, value: float) -> None:
        written = _labels(labels)
        if (suffix, written) in self._lines:
            raise ValueError(f"'{self.name}{suffix}' has two values for {written or 'no labels'}")
        self._lines[suffix, written] = f"{self.name}{suffix}{written} {format_number(value)}"

    def lines(self) -> list[str]:
        """Return the lines of the metric in Prometheus's text format. Without samples: none."""
        if not self._lines:
            return []
        help = self.help.replace("\\", r"\\").replace("\n", r"\n")
        head = [f"# HELP {self.name} {help}", f"# TYPE {self.name} {self.metric_type}"]
        return head + list(self._lines.values())


def expose(families: Iterable[Family]) -> str:
    """Return metrics in Prometheus's text format.

    Raises:
        ValueError: two metrics have one name.
    """
    lines: list[str] = []
    names: set[str] = set()
    for family in families:
        if family.name in names:
            raise ValueError(f"there are two metrics called '{family.name}'")
        names.add(family.name)
        lines += family.lines()
    return "".join(f"{line}\n" for line in lines)


def format_number(value: float) -> str:
    """Return a number as text in Go's notation, which Prometheus reads."""
    if isinstance(value, int) or math.isfinite(value):
        return repr(value + 0)  # a bool is a number
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")


def _labels(labels: Labels) -> str:
    for name in labels:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"'{name}' is no name of a label: letters, digits and '_'")
    cells = [f'{name}="{_escaped(str(value))}"' for name, value in sorted(labels.items())]
    return "{" + ",".join(cells) + "}" if cells else ""


def _escaped(text: str) -> str:
    # A value that is not valid UTF-8 must not make the whole page unreadable.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
