"""Partitions that the trainers' devices draw: batches of the in-memory loader, bit for bit."""

import re
import signal

import pytest

from khop.partition import convert_features
from support.cluster import device_exchange_jobs, jobs
from support.cluster.exchange_jobs import NODES

# What trainer 1 does, and the error of the others.
ENDS = {
    "lacks memory": "RendezvousError: .*trainer 1 has failed with OSError: the GPU has failed",
    "leave": "RendezvousError: .*trainer 1, which has left this epoch after 4 batch",
    "raise": "RendezvousError: .*trainer 1 has failed with OSError: the GPU has failed",
    "too many rows": "ProtocolError: trainer 1 announced 1099511627776 rows, not 0 to",
    "ids": r"IndexError: node \d+ is not one of the graph's rows",
    "negative": r"ProtocolError: a trainer announced -\d to \d neighbours of a row",
    "large": r"ProtocolError: a trainer announced \d+ to 10995\d+ neighbours of a row",
    "too many": r"ProtocolError: trainer 1 announced \d+ neighbours, not 0 to",
    "neighbours": r"IndexError: node \d+ does not exist, but an edge leads to it",
    "ids of rows": r"ProtocolError: a trainer asked for nodes of type 0 \d+ to 10\d+, but this",
    "kill": r"RendezvousError: .*trainer\(s\) \[1\] have ended",  # it comes last
}


def start(job, size, num_parts=None, **arguments):
    """Start the trainers of a job."""
    arguments = {"num_parts": num_parts or size, **arguments}
    return jobs.start_trainers(job, arguments, size, program=device_exchange_jobs.__name__)


@pytest.mark.parametrize("size,num_parts,load", [
    (1, 1, {}),
    (2, 2, {"graph_mode": "CUDA", "feature_with_gpu": True}),
    (4, 4, {}),
    (3, 2, {}),  # two trainers have the same partition
])  # fmt: skip
def test_equal_batches(twin_root, size, num_parts, load):
    """Uniform, weighted, by time, LABOR, disjoint, reverses, both kinds of graphs."""
    roots = {f"{graph}-{kind}": str(twin_root(graph, num_parts, kind)) for graph, kind in NODES}
    trainers = start("equal", size, num_parts, roots=roots, load=load)
    for result in jobs.finish_trainers(trainers, silent=True):
        assert result["rows"]["local"] > 0
        assert (result["rows"]["remote"] > 0) == (num_parts > 1)


def test_batches_of_loaders_by_messages(twin_root, tmp_path):
    """Features in fewer bits, padding, epochs that are left and resumed, uneven seeds."""
    root = tmp_path / "parts"
    convert_features(twin_root("homogeneous", 2), root, {"x": "int8"})
    for result in jobs.finish_trainers(start("like_messages", 2, root=str(root)), silent=True):
        assert result["dtype"] == "int8"


def test_traffic_is_that_of_the_plan(twin_root):
    """Four calls for each hop, three for rows. Nobody sends a byte more than batches need."""
    trainers = start("traffic", 3, root=str(twin_root("homogeneous", 3, "time")))
    results = jobs.finish_trainers(trainers, silent=True)
    assert [result["calls"] for result in results] == [4 * 2 + 3] * 3
    needed = sum(result["needed"] for result in results)
    assert sum(result["sent"] for result in results) == needed > 0
    assert sum(result["received"] for result in results) == needed


def test_what_is_refused(twin_root):
    """On every trainer, when the loader is made. With graph_mode='CPU' the CPU draws."""
    trainers = start("refused", 2, root=str(twin_root("homogeneous", 2)))
    for errors in jobs.finish_trainers(trainers):
        expected = {
            "links": "but not links and their negatives. Load .*graph_mode='CPU'",
            "PPR": "but not ppr, which asks the graph in Python",
            "induced": "but not subgraph_type='induced'",
            "clusters": "but not subgraph_type='induced'",
            "disk": "but not features_on_disk",
            "one draws": "different options: trainer",
        }
        assert errors.pop("links by the CPU") is None
        assert errors.keys() == expected.keys()
        for name, pattern in expected.items():
            assert re.search(pattern, errors[name]), (name, errors[name])


@pytest.mark.fault
def test_a_trainer_that_ends_or_lies(twin_root):
    """The others get an error, or one finds it and the others name that one."""
    root = str(twin_root("homogeneous", 3))
    trainers = start("ends", 3, root=root, ways=[*ENDS][1:])
    killed = trainers.pop(1)
    results = jobs.finish_trainers(trainers)
    for how, pattern in ENDS.items():
        errors = [result[how][0] for result in results]
        assert any(re.search(pattern, error) for error in errors), (how, errors)
        for error, seconds in (result[how] for result in results):
            other = r"RendezvousError: .*trainer [012] has failed with (Protocol|Index)Error"
            assert seconds < 30 and re.search(f"{pattern}|{other}", error), (how, error)
    assert killed.communicate() and killed.returncode == -signal.SIGKILL
