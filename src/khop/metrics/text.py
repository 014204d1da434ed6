"""Prometheus's text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats: all samples of one metric are
together below its HELP and TYPE lines; a sample is a name, labels and a number; backslashes, line
feeds and, in labels, double quotes are escaped. Histograms are cumulative and end with le="+Inf",
which equals their count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content-Type of the page."""

Labels = Mapping[str, object]
"""Names and values of labels; values are written as str() returns them."""

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_KINDS = ("counter", "gauge", "histogram")


class Family:
    """A metric: all its samples, one for each set of labels.

    Args:
        name: its name; that of a counter ends with '_total'.
        kind: 'counter' (falls only when its process restarts), 'gauge' or 'histogram'.
        help: what it counts, in a sentence, with its unit.

    Raises:
        ValueError: a name or kind that Prometheus does not know.
    """

    def __init__(self, name: str, kind: str, help: str) -> None:
        if kind not in _KINDS:
            raise ValueError(f"a metric is one of {', '.join(_KINDS)} (got '{kind}')")
        if not _METRIC.fullmatch(name):
            raise ValueError(f"'{name}' is no name of a metric: letters, digits, '_' and ':'")
        if (kind == "counter") != name.endswith("_total"):
            raise ValueError(f"names of counters, and no others, end with '_total' (got '{name}')")
        self.name, self.kind, self.help = name, kind, help
        self._lines: dict[tuple[str, str], str] = {}

    def add(self, value: float, labels: Labels) -> None:
        """Add a sample of a counter or gauge.

        Raises:
            ValueError: a histogram; labels that have a sample already, or invalid label names.
        """
        if self.kind == "histogram":
            raise ValueError(f"'{self.name}' is a histogram")
        self._write("", labels, value)

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, labels: Labels
    ) -> None:
        """Add the samples of a histogram.

        Args:
            bounds: upper bounds of the classes, ascending; the last class has none.
            counts: number of observations in each class; one more than bounds.
            total: sum of the observed values.
            labels: its labels; 'le' is added.

        Raises:
            ValueError: no histogram; bounds and counts that do not fit; a label 'le'; labels as
                for `add`.
        """
        if self.kind != "histogram" or len(counts) != len(bounds) + 1:
            raise ValueError(f"'{self.name}' is no histogram of {len(bounds)} bounds")
        if "le" in labels:
            raise ValueError(f"'{self.name}' sets the label 'le' itself (got {labels['le']!r:.80})")
        upto = list(accumulate(counts))
        for bound, count in zip([*bounds, math.inf], upto, strict=True):
            self._write("_bucket", {**labels, "le": number(bound)}, count)
        self._write("_sum", labels, total)
        self._write("_count", labels, upto[-1])

    def _write(self, suffix: str, labels: Labels, value: float) -> None:
        written = _labels(labels)
        if (suffix, written) in self._lines:
            raise ValueError(f"'{self.name}{suffix}' has two values for {written or 'no labels'}")
        self._lines[suffix, written] = f"{self.name}{suffix}{written} {number(value)}"

    def lines(self) -> list[str]:
        """Return the metric's lines; none if it has no samples."""
        if not self._lines:
            return []
        help = self.help.replace("\\", r"\\").replace("\n", r"\n")
        head = [f"# HELP {self.name} {help}", f"# TYPE {self.name} {self.kind}"]
        return head + list(self._lines.values())


def expose(families: Iterable[Family]) -> str:
    """Return the text of these metrics.

    Raises:
        ValueError: two metrics of one name.
    """
    lines: list[str] = []
    names: set[str] = set()
    for family in families:
        if family.name in names:
            raise ValueError(f"there are two metrics called '{family.name}'")
        names.add(family.name)
        lines += family.lines()
    return "".join(f"{line}\n" for line in lines)


def number(value: float) -> str:
    """Return a number in the format's notation: Go's, which is Python's for finite numbers."""
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
