"""Statistics of loaders and servers as metrics: every number is there, under its labels."""

import threading
from dataclasses import fields

import pytest

from khop import metrics
from khop.distributed.remote.server.counters import ServerCounters
from khop.distributed.remote.statistics import JobStoreState, SamplerState, SessionState
from khop.loader import NeighborLoader
from khop.metrics.loader_stats import StatsAccumulator
from khop.stats import LoaderStats
from khop.trace.clock import BatchTimings
from support.formats import prometheus


def value(read, name, **labels):
    """The value of a sample of a metric with these labels."""
    wanted = frozenset((key, str(text)) for key, text in labels.items())
    return read[name][2][name, wanted]


def test_loaders(data):
    """Several loaders on one page; sums are those of `stats()`."""
    loaders = {
        name: NeighborLoader(data, [3, 2], batch_size=50, num_workers=workers)
        for name, workers in (("train", 2), ('te"st\n', 0))
    }
    for loader in loaders.values():
        assert sum(1 for _ in loader) == 4
    read = prometheus.read(metrics.of_loaders(loaders, {"rank": 1}))
    for name, loader in loaders.items():
        stats, labels = loader.stats(), {"loader": name, "rank": 1}
        assert value(read, "khop_loader_batches_total", **labels) == 4
        for counted in ("seeds", "nodes", "edges", "delivered_bytes", "overflows"):
            assert value(read, f"khop_loader_{counted}_total", **labels) == getattr(stats, counted)
        for source, rows in stats.rows.items():
            assert value(read, "khop_loader_rows_total", source=source, **labels) == rows
        for phase, seconds in stats.trainer_seconds.items():
            told = value(read, "khop_loader_trainer_seconds_total", phase=phase, **labels)
            assert told == seconds
        assert value(read, "khop_loader_samplers", **labels) == stats.num_samplers


@pytest.mark.parametrize("name", ["loader", "phase", "source"])
def test_labels_that_khop_sets_are_refused(data, name):
    """A user's label of such a name would be lost, or make two values of one metric."""
    loader = NeighborLoader(data, [2], batch_size=3)
    with pytest.raises(ValueError, match=rf"khop sets the label '{name}' itself \(got {name}='x'"):
        metrics.of_loaders({"train": loader}, {name: "x"})
    if name != "loader":
        with pytest.raises(ValueError, match=name):
            loader.stats().prometheus({name: "x"})


def test_nothing_of_a_loaders_statistics_is_left_out():
    """Each attribute is a number of its own on the page."""
    count = iter(range(101, 200))
    filled = {}
    for field in fields(LoaderStats):
        default = getattr(LoaderStats(), field.name)
        many = isinstance(default, dict)
        filled[field.name] = dict.fromkeys(default, 0) if many else next(count)
        for key in default if many else ():
            filled[field.name][key] = next(count)
    page = prometheus.read(LoaderStats(**filled).prometheus())
    shown = sorted(v for _, _, samples in page.values() for v in samples.values())
    assert shown == list(range(101, next(count)))


def test_reading_while_a_loader_counts():
    """Whoever reads meanwhile sees each batch once, whole, and sums that never fall."""
    tally, done, seen = StatsAccumulator(1), threading.Event(), []
    made = BatchTimings(*[1] * len(BatchTimings._fields))

    def look():
        while not done.is_set():
            seen.append(tally.snapshot())

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(20_000):
        tally.add((1, 1, 1), 1, 5, (1, 1, 1, 0, 0, 0), made)
    done.set()
    for reader in readers:
        reader.join()
    assert seen
    assert all(stats.seeds == 5 * stats.batches == 5 * stats.nodes for stats in seen)
    assert tally.snapshot().batches == 20_000


def session(name, client):
    samplers = [SamplerState(7, 2, 30, 400)] * 2
    return SessionState(name, "ab", client, False, samplers, 2, 5000, 6, 70000, 300)


def test_servers():
    """A graph server's page."""
    state = [session("ab/0", "c"), session("ab/1", "d")]
    stores = [JobStoreState("job", [], 1, nbytes, 0) for nbytes in (400, 500)]
    counters = ServerCounters(1, [0, 2], "tcp://h:1", lambda: state, lambda: stores)
    counters.session_opened("ab/0")
    counters.session_opened("ab/1")
    for seconds in (0.00005, 0.0003, 99.0):
        counters.count_request("sample", seconds, 100, 1000)
    counters.count_request("fetch", 0.002, 100, 50, failed=True)
    counters.refused("too large")
    counters.batch("ab/0", 4000, 0.5)
    counters.sampler_restarted()
    read = prometheus.read(metrics.of_server(counters.snapshot()))
    for name, expected in {
        "clients": 2,
        "sessions": 2,
        "samplers": 4,
        "ring_bytes": 140000,
        "cache_bytes": 600,
        "tensor_bytes": 900,
        "sampler_restarts_total": 1,
        "received_bytes_total": 400,
        "sent_bytes_total": 3050 + 4000,
        "batches_total": 1,
        "batch_bytes_total": 4000,
        "batch_seconds_total": 0.5,
    }.items():
        assert value(read, f"khop_server_{name}", rank=1) == expected
    samples = read["khop_server_request_seconds"][2]
    labels = {("rank", "1"), ("op", "sample")}
    buckets = [
        samples["khop_server_request_seconds_bucket", frozenset({*labels, ("le", bound)})]
        for bound in ("0.0001", "0.0005", "10.0", "+Inf")
    ]
    assert buckets == [1, 2, 2, 3]
    assert value(read, "khop_server_request_failures_total", rank=1, op="fetch") == 1
    assert value(read, "khop_server_refused_total", rank=1, reason="too large") == 1
    assert value(read, "khop_server_session_events_total", rank=1, event="opened") == 2
    of_session = {"rank": 1, "session": "ab/0", "loader": "ab", "client": "c"}
    assert value(read, "khop_server_session_batches_total", **of_session) == 1
    assert value(read, "khop_server_session_outstanding_batches", **of_session) == 4
    assert value(read, "khop_server_session_sampler_restarts_total", **of_session) == 2
    assert (
        read["process_resident_memory_bytes"][2]["process_resident_memory_bytes", frozenset()] > 0
    )
