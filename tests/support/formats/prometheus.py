"""Strict reader of Prometheus's text format 0.0.4, written from its specification alone."""

import math
import re
from collections import defaultdict

_SAMPLE = re.compile(
    r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\\n]|\\.)*")*)\})? '
    r"(?P<value>[+-]?(?:[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|Inf)|NaN)"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(?:,|$)')
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}


def read(text):
    """Return {metric: (kind, help, {(sample name, labels as a frozenset of pairs): value})}.

    Fails on all that the specification forbids: samples without TYPE or HELP above them, metrics in
    several pieces, samples that come twice, bad names, escapes and numbers. Histograms must not
    fall, and their last class must be their count.
    """
    assert not text or text.endswith("\n")
    found, current = {}, None
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            _, _, name, help = line.split(" ", 3)
            assert name not in found, f"{name} comes twice"
            assert re.sub(r"\\[\\n]", "", help).count("\\") == 0
            found[name] = [None, _unescaped(help), {}]
            current = name
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current
            assert found[name][0] is None
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped")
            found[name][0] = kind
        else:
            _read_sample(line, current, found)
    for name, (kind, _, samples) in found.items():
        assert samples, f"{name} is empty"
        if kind == "histogram":
            _check_histogram(name, samples)
    return {name: tuple(metric) for name, metric in found.items()}


def _read_sample(line, current, found):
    match = _SAMPLE.fullmatch(line)
    assert match, line
    kind, _, samples = found[current]
    allowed = [current + suffix for suffix in _SUFFIXES.get(kind, ("",))]
    assert match["name"] in allowed, line
    text = match["labels"] or ""
    labels = _LABEL.findall(text)
    assert "".join(f'{n}="{v}",' for n, v in labels).rstrip(",") == text, line
    assert len({name for name, _ in labels}) == len(labels), line
    key = match["name"], frozenset((name, _unescaped(value)) for name, value in labels)
    assert key not in samples, line
    samples[key] = float(match["value"])


def _unescaped(text):
    return re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), text)


def _check_histogram(name, samples):
    series = defaultdict(dict)
    for (sample, labels), value in samples.items():
        others = frozenset(pair for pair in labels if pair[0] != "le")
        bound = dict(labels).get("le")
        series[others][sample.removeprefix(name), None if bound is None else float(bound)] = value
    for of_labels in series.values():
        assert ("_sum", None) in of_labels
        buckets = sorted((b, v) for (suffix, b), v in of_labels.items() if suffix == "_bucket")
        values = [value for _, value in buckets]
        assert values == sorted(values)
        assert buckets[-1] == (math.inf, of_labels["_count", None])
