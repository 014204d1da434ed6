"""Reader of traces, which checks what must hold for each of them."""

import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class Span(NamedTuple):
    """A complete event of a trace, with times in nanoseconds."""

    process: str
    thread: str
    track: tuple
    name: str
    began: int
    ended: int
    args: dict

    @property
    def batch(self):
        return self.args["epoch"], self.args["batch"]


class Arrow(NamedTuple):
    """An arrow of a trace: its begin and its end."""

    name: str
    source: Span
    target: Span


class Trace:
    """A trace. AssertionError unless its events are well-formed.

    Spans of a thread do not overlap, arrows lead from a span to a later one, processes and threads
    have names.
    """

    def __init__(self, path):
        raw = Path(path).read_bytes()
        self.content = json.loads(gzip.decompress(raw) if str(path).endswith(".gz") else raw)
        self.events = self.content["traceEvents"]
        for event in self.events:
            assert event["ph"] in "XMCsf" and isinstance(event["name"], str)
            assert type(event["pid"]) is int and type(event["tid"]) is int
            assert event["ph"] == "M" or event["ts"] > 0
        self.processes = self._named("process_name", lambda e: e["pid"])
        self.threads = self._named("thread_name", lambda e: (e["pid"], e["tid"]))
        self.spans = [self._span(e) for e in self.events if e["ph"] == "X"]
        self._by_track = defaultdict(list)
        for span in sorted(self.spans, key=lambda s: s.began):
            self._by_track[span.track].append(span)
        for spans in self._by_track.values():
            for first, second in itertools.pairwise(spans):
                assert first.ended <= second.began, (first, second)
        self.arrows = self._arrows()
        counts = [e["args"]["batches"] for e in self.events if e["ph"] == "C"]
        assert min(counts, default=0) >= 0
        assert not counts or counts[-1] == 0

    def _named(self, kind, key):
        named = [e for e in self.events if e["name"] == kind]
        names = {key(e): e["args"]["name"] for e in named}
        assert len(names) == len(named)
        return names

    def _span(self, event):
        began = round(event["ts"] * 1000)
        ended = began + round(event["dur"] * 1000)
        assert began < ended
        track = event["pid"], event["tid"]
        process, thread = self.processes[event["pid"]], self.threads[track]
        return Span(process, thread, track, event["name"], began, ended, event["args"])

    def _arrows(self):
        ends = {kind: {} for kind in "sf"}
        for event in self.events:
            if event["ph"] in ends:
                assert event["cat"] == event["name"]
                assert event["id"] not in ends[event["ph"]]
                ends[event["ph"]][event["id"]] = event
        assert ends["s"].keys() == ends["f"].keys()
        arrows = []
        for name, event in ends["s"].items():
            source, target = self._at(event), self._at(ends["f"][name])
            assert event["ts"] <= ends["f"][name]["ts"]
            arrows.append(Arrow(event["name"], source, target))
        return arrows

    def _at(self, event):
        moment = round(event["ts"] * 1000)
        found = [
            span
            for span in self._by_track[event["pid"], event["tid"]]
            if span.began <= moment < span.ended
        ]
        assert len(found) == 1, event
        return found[0]

    def of(self, name, process=None):
        """Return the spans of a name, of all processes or one, in order of time."""
        found = [s for s in self.spans if s.name == name and process in (None, s.process)]
        return sorted(found, key=lambda s: s.began)

    def batches(self, name):
        """Return {(epoch, batch): its spans of a name}."""
        found = defaultdict(list)
        for span in self.of(name):
            found[span.batch].append(span)
        return found
