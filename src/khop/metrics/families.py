"""Metric families, and the metrics of a graph server.

Names begin with `khop_loader_` and `khop_server_`. Times are seconds, sizes bytes. Values that only
grow are counters, of which the reader of the page computes rates. A server's process also has the
metrics that Prometheus's own clients call `process_...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from khop.metrics.text import REQUEST_BUCKETS, Family, Labels, expose


def of_server(snapshot: Mapping[str, Any]) -> str:
    """Return a graph server's snapshot as text for Prometheus.

    Args:
        snapshot: a server's counters: `request_server(rank, 'statistics')`.

    Returns:
        The page, in Prometheus's text format.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> page = of_server(request_server(0, "statistics"))
        >>> page.startswith("# HELP khop_server_")
        True
    """
    families = Families("khop_server_")
    labels = {"rank": snapshot["rank"]}
    _add_server(families, snapshot, labels)
    _add_work(families, snapshot, labels)
    for session in snapshot["sessions"]:
        if not session["direct"]:  # else its trainer counts them
            _add_session(families, session, labels)
    return expose([*families.values(), *_of_process(snapshot)])


class Families(dict[str, Family]):
    """Metrics by name, for a page of Prometheus. They are created with their first sample."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def counters(self, labels: Labels, *samples: tuple[str, str, float]) -> None:
        """Add one sample to each of some counters: (name, help, value), all with these labels."""
        for name, help, value in samples:
            self._family(f"{name}_total", "counter", help).add(value, labels)

    def gauges(self, labels: Labels, *samples: tuple[str, str, float]) -> None:
        """Add one sample to each of some gauges: (name, help, value), all with these labels."""
        for name, help, value in samples:
            self._family(name, "gauge", help).add(value, labels)

    def histogram(
        self, name: str, help: str, counts: list[int], total: float, labels: Labels
    ) -> None:
        family = self._family(name, "histogram", help)
        family.add_histogram(REQUEST_BUCKETS, counts, total, labels)

    def _family(self, name: str, metric_type: str, help: str) -> Family:
        name = self._prefix + name
        return self.setdefault(name, Family(name, metric_type, help))


def _add_server(families: Families, snapshot: Mapping[str, Any], labels: Labels) -> None:
    identity = {
        "version": snapshot["version"],
        "address": snapshot["address"],
        "parts": ",".join(map(str, snapshot["parts"])),
    }
    families.gauges(
        {**labels, **identity}, ("info", "Always 1. The labels identify the server.", 1)
    )
    sessions = snapshot["sessions"]
    families.gauges(
        labels,
        ("clients", "Clients that are known.", len(snapshot["clients"])),
        ("sessions", "Loaders of clients that are open.", len(sessions)),
        ("samplers", "Sampler processes.", sum(len(s["samplers"]) for s in sessions)),
        ("ring_bytes", "Shared memory that samplers may write to.", snapshot["ring_bytes"]),
        ("cache_bytes", "For rows of other partitions.", sum(s["cache_bytes"] for s in sessions)),
        ("tensor_bytes", "Tensors of jobs.", sum(s["bytes"] for s in snapshot["stores"])),
    )
    help = "Sessions that were opened, closed by their client, or expired without it."
    for event, count in snapshot["sessions_total"].items():
        families.counters({**labels, "event": event}, ("session_events", help, count))
    help = "Samplers that died and were started again."
    families.counters(labels, ("sampler_restarts", help, snapshot["sampler_restarts"]))


def _add_work(families: Families, snapshot: Mapping[str, Any], labels: Labels) -> None:
    batches = snapshot["batches"]
    help = "From a batch's request to its last byte's sending, summed up."
    families.counters(
        labels,
        ("received_bytes", "Bytes of requests.", snapshot["bytes_in"]),
        ("sent_bytes", "Bytes of replies and batches.", snapshot["bytes_out"]),
        ("batches", "Batches sent to clients.", batches["count"]),
        ("batch_bytes", "Bytes of these batches.", batches["bytes"]),
        ("batch_seconds", help, batches["seconds"]),
    )
    for op, answered in snapshot["requests"].items():
        of_op = {**labels, "op": op}
        help = "Time to answer a request, by its name."
        families.histogram("request_seconds", help, answered["buckets"], answered["seconds"], of_op)
        help = "Requests that were answered with an exception, by their name."
        families.counters(of_op, ("request_failures", help, answered["failed"]))
    help = "Requests that were not looked at, by the reason."
    for reason, count in snapshot["refused"].items():
        families.counters({**labels, "reason": reason}, ("refused", help, count))


def _add_session(families: Families, session: Mapping[str, Any], labels: Labels) -> None:
    labels = {**labels, **{name: session[name] for name in ("session", "loader", "client")}}
    batches = session["batches"]
    outstanding = sum(sampler["outstanding"] for sampler in session["samplers"])
    restarts = "Samplers of the session that died and were started again."
    families.counters(
        labels,
        ("session_batches", "Batches sent to this client's loader.", batches["count"]),
        ("session_batch_bytes", "Bytes of the batches sent to this client's loader.",
         batches["bytes"]),
        ("session_sampler_restarts", restarts, session["restarts"]),
    )  # fmt: skip
    families.gauges(
        labels,
        ("session_outstanding_batches", "Batches asked of its samplers and not yet made.",
         outstanding),
        ("session_buffered_bytes", "Batches made and not yet received by the client, in bytes.",
         session["buffered_bytes"]),
        ("session_unsent_chunks", "Chunks of these that wait to be sent.",
         session["unsent_chunks"]),
    )  # fmt: skip


def _of_process(snapshot: Mapping[str, Any]) -> Iterator[Family]:
    for name, metric_type, help, value in (
        ("process_resident_memory_bytes", "gauge", "Resident memory in bytes.", snapshot["rss"]),
        ("process_open_fds", "gauge", "Open file descriptors.", snapshot["descriptors"]),
        ("process_cpu_seconds_total", "counter", "Processor time in seconds.",
         snapshot["cpu_seconds"]),
        ("process_start_time_seconds", "gauge", "Start, in seconds since 1970.",
         snapshot["started"]),
    ):  # fmt: skip
        family = Family(name, metric_type, help)
        family.add(value, {})
        yield family
