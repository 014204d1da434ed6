"""One table over the devices of a machine's trainers, each of which has one device."""

import signal

import numpy as np
import pytest

from khop.data import Feature
from khop.data.device_feature import DeviceFeature
from khop.data.node_rows import joined_peers
from khop.loader import DeviceOptions, NeighborLoader
from support import node_group_job
from support.cluster import jobs
from support.devices import HAS_FAKE, fake, open_device
from support.node_group_job import NUM, ROW, WIDTH, wanted

KINDS = ["emulated"] + ["fake"] * HAS_FAKE
OPTIONS = {
    "all rows": {},
    "a share": {"split_ratio": 0.4},
    "a budget": {"budget": 60 * ROW + 4 * NUM},
    "a large budget": {"budget": NUM * ROW},
    "nothing": {"split_ratio": 0.0},
}


def start(job, size, **arguments):
    """Start trainers of a job."""
    return jobs.start_trainers(job, arguments, size, program=node_group_job.__name__)


def run(job, size, **arguments):
    """Run trainers of a job. Return what each returned."""
    return jobs.finish_trainers(start(job, size, **arguments))


def memory_of(rows, rank, size, hot, replicated):
    """Return how many of some rows lie on a trainer's own device, on others', on the host."""
    places = {row: place for place, row in enumerate(range(NUM) if hot is None else hot)}
    counts = [0, 0, 0]
    for row in rows.tolist():
        place = places.get(row)
        is_own = place is not None and (place < replicated or (place - replicated) % size == rank)
        counts[2 if place is None else 0 if is_own else 1] += 1
    return counts


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_bytes_are_those_of_the_plan(kind, size):
    """Rows are those of the table. What is read of each memory is counted, as the report says."""
    rows = np.concatenate(wanted()[0])
    trainers = run("gather", size, device=kind, options=OPTIONS)
    for options in OPTIONS:
        totals = np.zeros(3)
        first = trainers[0]["tables"][options]
        shards, hot = first["shards"], first["hot"]
        for rank, trainer in enumerate(trainers):
            table = trainer["tables"][options]
            assert (table["shards"], table["hot"]) == (shards, hot)
            own, peer, host = memory_of(rows, rank, size, hot, shards["replicated"])
            assert table["served"] == [own + peer, host, peer]
            if kind == "fake":
                assert table["bytes"] == [own * ROW, peer * ROW, host * ROW]
            totals += own, peer, host
        shares = [shards[name] for name in ("own", "peer", "host")]
        if options == "all rows":  # without a choice, rows count as equally hot
            assert shares == [1 / size, 1 - 1 / size, 0]
        else:
            assert np.allclose(totals / totals.sum(), shares)
        sizes = shards["device_bytes"]
        replicated, sharded = shards["replicated"], shards["sharded"]
        assert sum(sizes) == (size * replicated + sharded) * ROW
        assert max(sizes) - min(sizes) <= ROW
        assert replicated + sharded + shards["on_host"] == NUM
    for trainer in trainers:
        assert (trainer["used"], trainer["violations"]) == (0, [])
    budgeted = trainers[0]["tables"]["a budget"]["shards"]
    assert budgeted["replicated"] and budgeted["sharded"] and budgeted["on_host"]


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_tables_follow_one_another(kind):
    """Memory of a table is free when all have closed it, and no earlier."""
    for trainer in run("lifetimes", 3, device=kind):
        assert trainer["violations"] == []
        # A table that another trainer has not closed yet, and no more of them.
        first, *later = trainer["used"] or [0]
        assert all(used <= first + NUM // 3 * ROW for used in later)


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_outlives_its_job(kind):
    for trainer in run("after_leaving", 2, device=kind):
        assert "has left the job" in trainer["error"]
        assert trainer["violations"] == []


@pytest.mark.fault
@pytest.mark.parametrize("kind", KINDS)
def test_a_trainer_that_is_killed(kind):
    """The others' next gather raises an error that names it."""
    trainers = start("dies", 3, device=kind)
    results = jobs.finish_trainers([trainers[0], trainers[2]])
    assert trainers[1].wait() == -signal.SIGKILL
    for result in results:
        assert "trainer 1" in result["error"]
        assert result["seconds"] < 30


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_tables_that_differ(kind):
    """All trainers get an error, and the next table is made."""
    for rank, trainer in enumerate(run("fails", 2, device=kind, how="table")):
        assert f"{NUM - 1} rows of {ROW} bytes (float32)" in trainer["error"], rank
        assert trainer["violations"] == []


@fake
@pytest.mark.process
@pytest.mark.parametrize("how", ["memory", "handle", "peers"])
def test_parts_that_cannot_be_made(how):
    """All trainers get an error that names the call, whichever failed."""
    options = {"peers": 0} if how == "peers" else {}
    expected = {
        "memory": "cudaMalloc",
        "handle": "cudaIpcOpenMemHandle",
        "peers": "cudaIpcOpenMemHandle",
    }
    for trainer in run("fails", 2, device="fake", how=how, fake=options):
        assert expected[how] in trainer["error"]
        assert trainer["violations"] == []


@pytest.mark.process
@pytest.mark.parametrize("is_hetero", [False, True])
def test_loaders(is_hetero):
    """Batches equal those of the CPU, and the report has each attribute."""
    for shards in run("load", 2, is_hetero=is_hetero):
        names = {"a.x", "b.x"} if is_hetero else {"x", "y", "edge_attr"}
        assert shards.keys() == names
        assert shards["a.x" if is_hetero else "x"]["sharded"] == round(0.3 * NUM)


@pytest.mark.process
def test_features_of_glt():
    """Each group has the first half of the rows once, each device of it a quarter."""
    for trainer in run("glt", 4):
        shards = trainer["shards"]
        assert shards["device_bytes"] == [NUM // 4 * ROW] * 2
        assert (shards["sharded"], shards["on_host"]) == (NUM // 2, NUM // 2)
        assert trainer["missing"]


def test_refusals():
    """Without a job there is nobody to share with; rows on the host are not shared."""
    with pytest.raises(RuntimeError, match=r"call khop\.distributed\.init_worker_group"):
        joined_peers()
    with pytest.raises(RuntimeError, match=r"call khop\.distributed\.init_worker_group"):
        options = DeviceOptions(feature_mode="CUDA", group="node")
        NeighborLoader(node_group_job.graph(False), [2], device="emulated", device_options=options)
    with pytest.raises(ValueError, match="group must be None or 'node'"):
        DeviceOptions(feature_mode="CUDA", group="machine")
    with pytest.raises(ValueError, match="pass feature_mode='CUDA'"):
        DeviceOptions(group="node")


def test_reports_without_a_group():
    """One device has all of its rows by itself."""
    feature = Feature(np.zeros((10, WIDTH), np.float32))
    table = DeviceFeature(feature, open_device("emulated"), split_ratio=0.5, hotness=np.arange(10))
    assert table.shards[:4] == ([5 * ROW], 0, 5, 5)
    assert table.shards[4:] == pytest.approx((35 / 45, 0, 10 / 45))
