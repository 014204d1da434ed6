"""Metric families, and the metrics of a graph server.

Names begin with `khop_loader_` and `khop_server_`; times are seconds, sizes bytes. Values that only
grow are counters: the reader of the page computes rates. A server's process also has the metrics
that Prometheus's own clients call `process_...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from khop.metrics.buckets import REQUEST_BUCKETS
from khop.metrics.text import Family, Labels, expose


def of_server(picture: Mapping[str, Any]) -> str:
    """Return a graph server's snapshot as text for Prometheus.

    Args:
        picture: a server's counters: `request_server(rank, 'statistics')`.

    Returns:
        The page, in Prometheus's text format.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> page = of_server(request_server(0, "statistics"))
        >>> page.startswith("# HELP khop_server_")
        True
    """
    families = Families("khop_server_")
    _add_server(families, picture)
    _add_work(families, picture)
    for session in picture["sessions"]:
        if not session["direct"]:  # else its trainer counts them
            _add_session(families, session, {"rank": picture["rank"]})
    return expose([*families.values(), *_of_process(picture)])


class Families(dict[str, Family]):
    """Metrics by name, created with their first sample."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def counter(self, name: str, help: str, value: float, labels: Labels) -> None:
        self._family(f"{name}_total", "counter", help).add(value, labels)

    def gauge(self, name: str, help: str, value: float, labels: Labels) -> None:
        self._family(name, "gauge", help).add(value, labels)

    def histogram(
        self, name: str, help: str, counts: list[int], total: float, labels: Labels
    ) -> None:
        family = self._family(name, "histogram", help)
        family.add_histogram(REQUEST_BUCKETS, counts, total, labels)

    def _family(self, name: str, kind: str, help: str) -> Family:
        name = self._prefix + name
        return self.setdefault(name, Family(name, kind, help))


def _add_server(families: Families, picture: Mapping[str, Any]) -> None:
    labels = {"rank": picture["rank"]}
    identity = {
        "version": picture["version"],
        "address": picture["address"],
        "parts": ",".join(map(str, picture["parts"])),
    }
    families.gauge("info", "Always 1; what the server is, in labels.", 1, {**labels, **identity})
    sessions = picture["sessions"]
    for name, help, value in (
        ("clients", "Clients that are known.", len(picture["clients"])),
        ("sessions", "Loaders of clients that are open.", len(sessions)),
        ("samplers", "Sampler processes.", sum(len(s["samplers"]) for s in sessions)),
        ("ring_bytes", "Shared memory that samplers may write to.", picture["ring_bytes"]),
    ):
        families.gauge(name, help, value, labels)
    for event, count in picture["sessions_total"].items():
        help = "Sessions that were opened, closed by their client, or expired without it."
        families.counter("session_events", help, count, {**labels, "event": event})
    help = "Samplers that died and were started again."
    families.counter("sampler_restarts", help, picture["sampler_restarts"], labels)


def _add_work(families: Families, picture: Mapping[str, Any]) -> None:
    labels = {"rank": picture["rank"]}
    batches = picture["batches"]
    for name, help, value in (
        ("received_bytes", "Bytes of requests.", picture["bytes_in"]),
        ("sent_bytes", "Bytes of replies and batches.", picture["bytes_out"]),
        ("batches", "Batches sent to clients.", batches["count"]),
        ("batch_bytes", "Bytes of these batches.", batches["bytes"]),
        ("batch_seconds", "From a batch's request to its last byte's sending, summed up.",
         batches["seconds"]),
    ):  # fmt: skip
        families.counter(name, help, value, labels)
    for op, answered in picture["requests"].items():
        of_op = {**labels, "op": op}
        help = "Time to answer a request, by its name."
        families.histogram("request_seconds", help, answered["buckets"], answered["seconds"], of_op)
        help = "Requests that were answered with an exception, by their name."
        families.counter("request_failures", help, answered["failed"], of_op)
    for reason, count in picture["refused"].items():
        help = "Requests that were not looked at, by the reason."
        families.counter("refused", help, count, {**labels, "reason": reason})


def _add_session(families: Families, session: Mapping[str, Any], labels: Labels) -> None:
    names = {name: session[name] for name in ("session", "loader", "client")}
    labels = {**labels, **names}
    samplers = session["samplers"]
    help = "Batches sent to this client's loader."
    families.counter("session_batches", help, session["batches"]["count"], labels)
    help = "Bytes of the batches sent to this client's loader."
    families.counter("session_batch_bytes", help, session["batches"]["bytes"], labels)
    help = "Samplers of the session that died and were started again."
    families.counter("session_sampler_restarts", help, session["restarts"], labels)
    for name, help, value in (
        ("session_outstanding_batches", "Batches asked of its samplers and not yet made.",
         sum(sampler["outstanding"] for sampler in samplers)),
        ("session_buffered_bytes", "Batches made and not yet received by the client, in bytes.",
         session["buffered_bytes"]),
        ("session_unsent_chunks", "Chunks of these that wait to be sent.",
         session["unsent_chunks"]),
    ):  # fmt: skip
        families.gauge(name, help, value, labels)


def _of_process(picture: Mapping[str, Any]) -> Iterator[Family]:
    for name, kind, help, value in (
        ("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", picture["rss"]),
        ("process_open_fds", "gauge", "Open file descriptors.", picture["descriptors"]),
        ("process_cpu_seconds_total", "counter", "Processor time in seconds.",
         picture["cpu_seconds"]),
        ("process_start_time_seconds", "gauge", "Start, in seconds since 1970.",
         picture["started"]),
    ):  # fmt: skip
        family = Family(name, kind, help)
        family.add(value, {})
        yield family
