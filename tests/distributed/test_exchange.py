"""`exchange='all_to_all'`: batches of the in-memory loader, by collective calls of the trainers."""

import re
import signal
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop.channel import bundle
from khop.channel.bundle import Bundle, read_bundle
from khop.errors import ProtocolError
from support.cluster import exchange_jobs, jobs

# How trainer 1 ends, and the error of the others.
ENDS = {
    "leave": "RendezvousError: .*trainer 1, which has left this epoch after 4 batch",
    "raise": "RendezvousError: .*trainer 1 has failed with OSError: the disk has failed",
    "interrupt": "RendezvousError: .*trainer 1 has failed with KeyboardInterrupt",
    "size": "ProtocolError: trainer 1 announced 1099511627776 rows",
    "malformed": "ProtocolError: trainer 1 sent .* bytes without a table",
    "kill": r"RendezvousError: .*trainer\(s\) \[1\] have ended",  # it comes last
}


def start(job, world_size, num_parts, **arguments):
    """Start the trainers of a job."""
    arguments = {"num_parts": num_parts, **arguments}
    return jobs.start_trainers(job, arguments, world_size, program=exchange_jobs.__name__)


@pytest.mark.parametrize("num_parts,world_size,most", [
    (1, 2, 1), (4, 3, 99), (2, 4, 1)
])  # fmt: skip
def test_equal_batches(twin_root, num_parts, world_size, most):
    """All methods, both kinds of graphs, links: bit for bit, without a partition server.

    `most` cases of each folder.
    """
    roots = {
        f"{graph}-{kind}": str(twin_root(graph, num_parts, kind))
        for graph, kind in exchange_jobs.NODES
        if most > 1 or kind == "plain"
    }
    trainers = start("equal", world_size, num_parts, roots=roots, most=most)
    for result in jobs.finish_trainers(trainers, silent=True):
        assert result["children"] == []
        assert (result["rows"]["remote"] > 0) == (num_parts > 1)
        assert (result["rows"]["reused"] > 0) == (num_parts > 1)


def test_batches_of_loaders_by_messages(twin_root):
    """Uneven seeds, virtual ranks, clusters, rounds that carry a part, epochs left and resumed."""
    trainers = start("like_messages", 3, 3, root=str(twin_root("homogeneous", 3)))
    results = jobs.finish_trainers(trainers, silent=True)
    assert [result["seeds"] for result in results] == [30, 41, 52]


def test_what_is_refused(twin_root):
    """On every trainer, when the loader is made."""
    trainers = start("refused", 2, 2, root=str(twin_root("homogeneous", 2)))
    for rank, errors in enumerate(jobs.finish_trainers(trainers)):
        expected = {
            "one exchanges": "RendezvousError: .*different options: trainer .* exchange='",
            "batch sizes": "RendezvousError: .*trainer 0 with batch_size=4",
            "fan-outs": r"RendezvousError: .*num_neighbors='\[3\]'",
            "replacement": "RendezvousError: .*sampling options",
            "virtual": "RendezvousError: .*the same options on every trainer",
            "uneven": "ValueError: .*the same number of batches",
            "samplers": "ValueError: .*num_workers=0",
            "group alone": "ValueError: exchange_group is for",
            "unknown": "ValueError: exchange must be",
            "half a group": "RuntimeError: .*group of all trainers",
            "no group": "RuntimeError: .*init_process_group first",
        }
        if rank == 1:
            del expected["half a group"]
            errors.pop("half a group", None)
        assert errors.keys() == expected.keys()
        for name, pattern in expected.items():
            assert re.search(pattern, errors[name]), (name, errors[name])


@pytest.mark.fault
def test_a_trainer_that_ends(twin_root):
    """The others get an error that names it, long before the timeout. New loaders work."""
    root = str(twin_root("homogeneous", 3))
    trainers = start("ends", 3, 3, root=root, ways=[*ENDS])
    killed = trainers.pop(1)
    for result in jobs.finish_trainers(trainers):
        for how, pattern in ENDS.items():
            error, seconds = result[how]
            assert seconds < 30 and re.search(pattern, error), (how, error)
    assert killed.communicate() and killed.returncode == -signal.SIGKILL


def messages_of(rng, count):
    """Random messages: frames of random lengths, some of them empty."""
    return [
        [rng.bytes(int(n)) for n in rng.integers(0, 200, rng.integers(1, 5))] for _ in range(count)
    ]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), count=st.integers(0, 9), limit=st.integers(1, 2000))
def test_bundles(seed, count, limit):
    """What is written is read, in order; a bundle is within its limit, or has one message."""
    sent, received = messages_of(np.random.default_rng(seed), count), []
    queue = deque(sent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "BUNDLE_BYTES", limit)
        for _ in range(count):
            made = Bundle(queue)
            data = np.zeros(made.nbytes, np.uint8)
            made.write(data)
            messages = read_bundle(data, "trainer 1")
            assert len(messages) <= 1 or sum(len(f) for m in messages for f in m) <= limit
            received += [[bytes(frame) for frame in frames] for frames in messages]
    assert received == sent
    assert Bundle(queue).nbytes == 0
    assert read_bundle(np.empty(0, np.uint8), "trainer 1") == []


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_damaged_bundles(seed, data):
    """They are refused, or give messages within the buffer; never anything else."""
    rng = np.random.default_rng(seed)
    made = Bundle(deque(messages_of(rng, 3)))
    memory = np.zeros(made.nbytes, np.uint8)
    made.write(memory)
    for _ in range(data.draw(st.integers(1, 4))):
        memory[data.draw(st.integers(0, min(len(memory), 120) - 1))] = data.draw(
            st.sampled_from([0, 1, 127, 128, 255])
        )
    cut = memory[: data.draw(st.integers(1, len(memory)))]
    try:
        messages = read_bundle(cut, "trainer 1")
    except ProtocolError as error:
        assert str(error).startswith("trainer 1 sent")
    else:
        assert sum(len(frame) for frames in messages for frame in frames) <= len(cut)
