"""A run in bounded memory that was ended goes on; nothing half done is taken for a folder."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import khop
from khop.partition import GraphSource, RandomPartitioner, make_partitioner, verify_folder
from khop.partition.out_of_core import effort, workspace
from khop.partition.out_of_core.effort import left_overs

OPTIONS = {"memory": "30KB", "jobs": 1, "neighbor_ids": True, "weight_attr": "w"}


@pytest.fixture(autouse=True)
def many_checkpoints(monkeypatch):
    """The journal gets an entry after each piece and each block."""
    monkeypatch.setattr(workspace, "_CHECKPOINT_BYTES", 1)


def graph(seed=0):
    rng = np.random.default_rng(seed)
    return GraphSource.from_arrays(
        60,
        rng.integers(60, size=(2, 900)),
        {"x": rng.random((60, 40))},
        {"w": rng.random(900), "edge_attr": rng.random((900, 2))},
    )


def files_of(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def ended(root, step, done, how=None):
    """Partitions in a process that is killed when a step is told; returns True if it came there."""
    child = os.fork()
    if child == 0:

        def die(what, now, total):
            if what.startswith(step) and now == done:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            khop.partition_graph(graph(), root, 3, **OPTIONS, progress=die)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


STEPS = [
    *(("nodes", 1), ("nodes", 3), ("counting", 1)),
    *(("splitting", 1), ("splitting", 2), ("splitting", 3)),
    *(("edges", 1), ("edges", 2), ("checksums", 0)),
]


def test_killed_at_each_step_it_goes_on(tmp_path):
    """One run that is killed at one step after the other, each time a little later."""
    khop.partition_graph(graph(), tmp_path / "whole", 3, neighbor_ids=True, weight_attr="w")
    root, told = tmp_path / "f", []
    for step in STEPS:
        assert ended(root, *step), step
        assert not root.exists()
        assert len(left_overs(root)) == 2
    khop.partition_graph(graph(), root, 3, **OPTIONS, progress=lambda *args: told.append(args[0]))
    assert files_of(root) == files_of(tmp_path / "whole")
    assert verify_folder(root) == []
    assert left_overs(root) == []
    # All of it was done before.
    assert [what for what in told if what.startswith(("counting", "splitting"))] == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "whole"]


@pytest.mark.parametrize("step", [("splitting", 3), ("edges", 2)])
def test_a_damaged_stage_file_is_found(tmp_path, step):
    """It is an error that says so; run once more, all is done anew."""
    assert ended(tmp_path / "f", *step)
    (stage,) = tmp_path.glob(".khop-f-*.stage")
    for file in stage.glob("*.stage"):
        content = bytearray(file.read_bytes())
        for place in range(0, len(content), 7):
            content[place] ^= 1
        file.write_bytes(content)
    with pytest.raises(ValueError, match=r"stage file .* is damaged.*run the same again"):
        khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS)
    assert list(tmp_path.iterdir()) == []
    khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS)
    assert verify_folder(tmp_path / "f") == []


def test_a_damaged_array_of_the_folder_is_found(tmp_path):
    """Of an array that is not complete, what was written is read again."""
    assert ended(tmp_path / "f", "edges", 2)
    (half,) = tmp_path.glob(".f.*.tmp")
    for file in half.glob("part-2/edge/*/indices.npy"):
        file.write_bytes(bytes(file.stat().st_size))
    for file in half.glob("part-0/edge/*/indices.npy"):
        file.write_bytes(file.read_bytes()[:-1])
    # A complete array that is too short: the work begins anew.
    khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS)
    assert verify_folder(tmp_path / "f") == []


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        (graph(1), {}),
        (graph(), {"seed": 1}),
        (graph(), {"memory": "31KB"}),
        (graph(), {"edge_dir": "out"}),
        (graph(), {"method": "assigned", "owners": np.arange(60) % 3}),
    ],
)
def test_other_arguments_begin_anew_and_leave_it(tmp_path, source, changed):
    """What the ended run left stays until it is asked for, or removed on request."""
    root = tmp_path / "f"
    assert ended(root, "splitting", 2)
    kept = left_overs(root)
    khop.partition_graph(source, root, 3, **{**OPTIONS, **changed})
    assert verify_folder(root) == []
    assert left_overs(root) == kept
    khop.partition_graph(graph(), root, 3, overwrite=True, clean=True)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_an_input_file_that_changed_begins_anew(tmp_path):
    """Mapped files are known by name, size and time."""
    np.save(tmp_path / "edges.npy", np.arange(20).reshape(2, 10))
    edges = np.load(tmp_path / "edges.npy", mmap_mode="r")

    def identity():
        source = GraphSource.from_arrays(20, edges)
        return effort.identity_of(RandomPartitioner.from_data(source, tmp_path / "f", 2))

    before = identity()
    assert identity() == before
    os.utime(tmp_path / "edges.npy", (1, 1))
    assert identity() != before


def test_two_processes_do_not_share_a_run(tmp_path):
    def again(what, now, total):
        if what.startswith("splitting") and now == 1:
            assert left_overs(tmp_path / "f") == []  # they are in use
            with pytest.raises(BlockingIOError, match="another process does the same work"):
                khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS)

    khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS, progress=again)
    assert verify_folder(tmp_path / "f") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, BlockingIOError, SystemExit])
def test_after_errors_that_may_pass_it_goes_on(tmp_path, error):
    def fail(what, now, total):
        if what.startswith("splitting") and now == 2:
            raise error

    with pytest.raises(error):
        khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS, progress=fail)
    assert len(left_overs(tmp_path / "f")) == 2
    told = []
    khop.partition_graph(
        graph(), tmp_path / "f", 3, **OPTIONS, progress=lambda *a: told.append(a[:2])
    )
    assert min(now for what, now in told if what.startswith("splitting")) == 3


def test_after_bad_input_nothing_stays(tmp_path):
    source = GraphSource.from_arrays(4, np.array([[0, 1], [1, 9]]))
    with pytest.raises(IndexError, match="edge 1 joins node"):
        khop.partition_graph(source, tmp_path / "f", 2, memory="30KB")
    assert list(tmp_path.iterdir()) == []


def test_stage_files_lie_where_tmp_says(tmp_path):
    (tmp_path / "tmp").mkdir()
    seen = []

    def look(what, now, total):
        if what.startswith("splitting"):
            seen.extend(p.name for p in (tmp_path / "tmp").iterdir())

    khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS, tmp=tmp_path / "tmp", progress=look)
    assert len(set(seen)) == 1
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "100"}, "memory of 100 B is too small: 60 nodes take .*; give "),
        (
            {"memory": "30KB", "method": "frequency"},
            r"the method \(frequency\) takes .*--method random",
        ),
        ({"memory": "x"}, "'x' is not a number of bytes"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"tmp": "."}, "give memory, too"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        khop.partition_graph(graph(), tmp_path / "f", 3, jobs=options.pop("jobs", 1), **options)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_memory_does_not_hold_is_refused(tmp_path):
    """All edges have one destination: its row is sorted at once."""
    star = GraphSource.from_arrays(60, np.stack([np.arange(900) % 60, np.zeros(900, np.int64)]))
    with pytest.raises(ValueError, match=r"a node has 900 edges of type .*raise the memory"):
        khop.partition_graph(star, tmp_path / "f", 3, memory="30KB", jobs=1)
    assert list(tmp_path.iterdir()) == []
    khop.partition_graph(star, tmp_path / "f", 3, memory="50KB", jobs=1)


def test_a_disk_that_is_too_small_is_refused(tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr("khop.partition.out_of_core.plan.shutil.disk_usage", lambda folder: Usage)
    with pytest.raises(ValueError, match=r"has 1000 B free, but partitioning writes .* KiB there"):
        khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS)
    assert list(tmp_path.iterdir()) == []


def test_the_plan_is_near_what_is_written(tmp_path):
    plans = []
    khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS, on_plan=plans.append)
    written = sum(f.stat().st_size for f in (tmp_path / "f").rglob("*.npy"))
    assert written / 1.5 < plans[0].output_bytes < written * 1.5
    assert "60 nodes, 900 edges: reads " in str(plans[0])


def test_a_plan_of_what_is_kept_in_memory(tmp_path, monkeypatch):
    """Nothing is computed for it; of stage files there are none."""
    monkeypatch.setattr("khop.partition.methods.seeded.split_seeds", None)
    make = make_partitioner(graph(), tmp_path / "f", 3, method="frequency", num_neighbors=[2])
    plan = make.plan()
    assert (plan.method, plan.num_parts, plan.memory) == ("frequency", 3, None)
    assert (plan.num_nodes, plan.num_edges, plan.stage_bytes) == (60, 900, 0)
    assert plan.node_types[0].attrs == {"x": "float64 [40]"}
    assert plan.edge_types[0].attrs == {"w": "float64", "edge_attr": "float64 [2]"}
    assert (plan.node_types[0].num_bytes, plan.edge_types[0].num_bytes) == (60 * 320, 900 * 24)
    plan.check_memory()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_gets_full_keeps_what_is_done(tmp_path):
    """A limit of the process stands for it: the second stage file is too large."""
    child = os.fork()
    if child == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (7000, 7000))
        try:
            khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS)
        except OSError as error:
            Path(tmp_path / "error").write_text(f"{error.errno} {error.strerror}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = (tmp_path / "error").read_text()
    assert said.startswith(f"{errno.EFBIG} cannot write")
    assert "stage file" in said
    assert "run the same again to go on" in said
    khop.partition_graph(graph(), tmp_path / "f", 3, **OPTIONS)
    assert verify_folder(tmp_path / "f") == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["error", "f"]


LIMITED = """
import resource, sys
import numpy as np
from khop.partition import GraphSource, RandomPartitioner

edges, memory = np.load(sys.argv[1], mmap_mode="r"), int(sys.argv[3])
source = GraphSource.from_arrays(200_000, edges)
bounded = sys.argv[4] == "bounded"
partitioner = RandomPartitioner.from_data(
    source, sys.argv[2], 2, memory=memory if bounded else None, jobs=1
)
(size,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = int(size) * 1024 + memory + 20 * 200_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    partitioner.partition()
except MemoryError:
    sys.exit(7)
"""


@pytest.mark.parametrize(("how", "status"), [("bounded", 0), ("in memory", 7)])
def test_memory_is_bounded(tmp_path, how, status):
    """Three million edges, 36 MB beside the input, in 24 MB that RLIMIT_AS enforces."""
    edges = np.random.default_rng(0).integers(200_000, size=(2, 3_000_000), dtype=np.int32)
    np.save(tmp_path / "edges.npy", edges)
    command = [sys.executable, "-c", LIMITED, *map(str, (tmp_path / "edges.npy", tmp_path / "f"))]
    done = subprocess.run(
        [*command, str(24 << 20), how], check=False, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
