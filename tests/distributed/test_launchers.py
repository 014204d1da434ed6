"""Rank and world size of who was started by torchrun, mpirun or Slurm, or by none of them."""

import itertools
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from khop.distributed import ClusterEnvironment, Place, init_worker_group
from khop.distributed.job.launch_environment import find_place, first_host
from khop.errors import PluginError, RendezvousError
from support.cluster import jobs

LAUNCHERS = re.compile("(SLURM|OMPI|PMI|PMIX)_|(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$")


def torchrun(rank, world_size):
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size)}


def open_mpi(rank, world_size):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(world_size)}


def pmi(rank, world_size):
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(world_size)}


def master(address, port):
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


def batch_script(num_tasks=2, num_nodes=1):
    """What sbatch tells the script, which runs once."""
    tasks = {} if num_tasks is None else {"SLURM_NTASKS": str(num_tasks)}
    return {
        "SLURM_JOB_ID": "1234",
        "SLURM_JOB_NODELIST": "a[07-09],b2",
        "SLURM_NNODES": str(num_nodes),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        **tasks,
    }


def step(rank, world_size, num_nodes=2):
    """What srun tells a task."""
    return {
        **batch_script(world_size, num_nodes),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(world_size),
        "SLURM_STEP_NUM_NODES": str(num_nodes),
        "SLURM_STEP_NODELIST": "a[07-09],b2",
    }


def allocation(num_tasks):
    """What salloc tells a shell."""
    return {
        "SLURM_JOB_ID": "1234", "SLURM_NTASKS": str(num_tasks), "SLURM_NNODES": "1"
    }  # fmt: skip


INTERACTIVE = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "4294967290"}

# What is told: (rank, world size, master, port).
PLACES = {
    "nothing": ({}, None),
    "torchrun": ({**torchrun(1, 4), **master("m", 7)}, (1, 4, "m", 7)),
    "RANK and WORLD_SIZE alone": (torchrun(0, 2), (0, 2, None, None)),
    "Open MPI": ({**open_mpi(1, 4), "PMIX_RANK": "1"}, (1, 4, None, None)),
    "Open MPI with a master": ({**open_mpi(1, 4), **master("m", 7)}, (1, 4, "m", 7)),
    "MPICH": (pmi(3, 4), (3, 4, None, None)),
    "step": (step(2, 3), (2, 3, "a07", 11234)),
    "step on one node": (step(1, 2, 1), (1, 2, "127.0.0.1", 11234)),
    "second step": ({**step(1, 2), "SLURM_STEP_ID": "1"}, (1, 2, "a07", 19153)),
    "long numbers": ({**step(1, 2), "SLURM_JOB_ID": "40001234"}, (1, 2, "a07", 11234)),
    "step with a master": ({**step(1, 2), **master("m", 7)}, (1, 2, "m", 7)),
    "step with a port": ({**step(1, 2), "MASTER_PORT": "7"}, (1, 2, "a07", 7)),
    "step in an order of one's own": (
        {**step(1, 2), "SLURM_DISTRIBUTION": "arbitrary"}, (1, 2, None, 11234)
    ),
    "step of several components": ({**step(1, 2), "SLURM_HET_SIZE": "2"}, (1, 2, None, 11234)),
    "step of one task": (step(0, 1, 1), (0, 1, "127.0.0.1", 11234)),
    "world size of the batch script": ({**step(1, 2), "WORLD_SIZE": "2"}, (1, 2, "a07", 11234)),
    "batch script of one task": (batch_script(1), None),
    "batch script that says no tasks": (batch_script(None), None),
    "allocation of one task": (allocation(1), None),
    "torchrun in a step": ({**step(1, 2), **torchrun(5, 8), **master("m", 7)}, (5, 8, "m", 7)),
    "torchrun in a batch script": ({**batch_script(), **torchrun(1, 8)}, (1, 8, None, None)),
    "mpirun in a batch script": ({**batch_script(), **open_mpi(1, 2)}, (1, 2, None, None)),
    "mpirun whose daemons are a step": ({**step(0, 2), **pmi(3, 4)}, (3, 4, None, None)),
    "srun --mpi=pmi2": ({**step(1, 2), **pmi(1, 2)}, (1, 2, "a07", 11234)),
    "srun --mpi=pmix": ({**step(1, 2), "PMIX_RANK": "1"}, (1, 2, "a07", 11234)),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_places(case):
    environment, expected = PLACES[case]
    place = find_place(environment)
    assert (place and (place.rank, place.world_size, place.master, place.port)) == expected


REFUSED = {
    "batch script": (
        batch_script(2),
        r"job has 2 tasks.*not started by srun.*Start them with srun",
    ),
    "batch script on nodes": (batch_script(None, 3), "job has 3 tasks.*srun"),
    "allocation": (allocation(4), r"4 tasks.*world_size=1, rank=0"),
    "interactive step": ({**step(0, 1, 1), **INTERACTIVE}, "2 tasks, this step 1.*srun"),
    "step without tasks": ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}, "SLURM_STEP_NUM_TASKS are"),
    "rank outside of the step": (step(2, 2), "Slurm says that this is process 2 of 2"),
    "rank outside of the world": (torchrun(4, 4), "process 4 of 4: ranks go from 0"),
    "RANK alone": ({"RANK": "1"}, "RANK is set, but WORLD_SIZE is not"),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set, but RANK is not"),
    "another WORLD_SIZE": ({**step(0, 2), "WORLD_SIZE": "4"}, "WORLD_SIZE is 4, but Slurm says 2"),
    "another RANK": ({**step(0, 2), "RANK": "1"}, "RANK is 1, but Slurm says 0"),
    "no number": (torchrun("one", 2), r"RANK must be a number of at least 0 \(got 'one'\)"),
    "below 0": (torchrun(-1, 2), r"got '-1'"),
    "no port": ({**torchrun(0, 2), **master("m", "x")}, "MASTER_PORT must be a number"),
    "half of MPI": ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE only one is set"),
    "two MPIs": ({**open_mpi(0, 2), **pmi(1, 2)}, r"process 0 of 2.*PMI_RANK\) 1 of 2"),
    "PMIx alone": ({"PMIX_RANK": "1"}, "nothing says of how many: set RANK, WORLD_SIZE"),
    "PMIx and another": ({**step(0, 2), "PMIX_RANK": "1"}, "process 1 of 2, Slurm 0 of 2"),
    "no list of hosts": ({**step(0, 2), "SLURM_STEP_NODELIST": "a[,"}, "not a list of hosts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    """Never a world of one by mistake; the message says what to do."""
    environment, match = REFUSED[case]
    with pytest.raises(RendezvousError, match=match):
        find_place(environment)


class Pods(ClusterEnvironment):
    """A launcher of a user's own."""

    def detect(self, environment):
        if "POD" not in environment:
            return None
        return Place("pods", int(environment["POD"]), 3, "pod-0")


class Wrong(ClusterEnvironment):
    def detect(self, environment):
        return 0, 1


PODS = f"{__name__}:Pods"


def test_a_launcher_of_ones_own(monkeypatch):
    """Asked where it is named, alone: by the variable, or by the argument, which counts first."""
    named = {"KHOP_CLUSTER_ENVIRONMENT": PODS, "POD": "1"}
    place = Place("pods", 1, 3, "pod-0")
    assert find_place(named) == place
    assert find_place({**named, **step(0, 2)}) == place
    assert find_place({**named, **master("m", 7)}) == ("pods", 1, 3, "m", 7, None)
    assert find_place({**step(2, 3), "POD": "1"}).launcher == "Slurm"
    for own in (PODS, Pods, Pods()):
        assert find_place({"POD": "1"}, own) == place
    both = {**named, **step(2, 3), **torchrun(1, 4)}
    assert find_place(both, "slurm").launcher == "Slurm"
    assert find_place({**both, "KHOP_CLUSTER_ENVIRONMENT": ""}).rank == 1
    for environment, error, message in (
        ({"KHOP_CLUSTER_ENVIRONMENT": PODS}, RendezvousError, ":Pods has not started this process"),
        ({**named, "POD": "3"}, RendezvousError, "pods says that this is process 3 of 3"),
        ({**named, "RANK": "2"}, RendezvousError, "RANK is 2, but pods says 1"),
        ({"KHOP_CLUSTER_ENVIRONMENT": "slrm"}, ValueError, "did you mean 'slurm'"),
        ({"KHOP_CLUSTER_ENVIRONMENT": "khop_gone:X"}, PluginError, "cluster_environments: cannot"),
        (
            {"KHOP_CLUSTER_ENVIRONMENT": f"{__name__}:Wrong"},
            TypeError,
            "must return a khop.distrib",
        ),
        (
            {"KHOP_CLUSTER_ENVIRONMENT": f"{__name__}:step"},
            TypeError,
            "distributed.ClusterEnvironm",
        ),
    ):
        with pytest.raises(error, match=message):
            find_place(environment)
    monkeypatch.setenv("KHOP_CLUSTER_ENVIRONMENT", PODS)
    with pytest.raises(RendezvousError, match="leave cluster_environment= and KHOP_CLUSTER_ENV"):
        init_worker_group()
    with pytest.raises(ValueError, match="give cluster_environment, or world_size and rank"):
        init_worker_group(1, 0, cluster_environment=Pods)


@pytest.mark.parametrize("job", [1, 19_980, 2**31])
def test_jobs_and_steps_side_by_side_have_ports_of_their_own(job):
    steps = itertools.product(range(job, job + 50), range(2))
    ports = [
        find_place({**step(0, 2), "SLURM_JOB_ID": str(j), "SLURM_STEP_ID": str(s)}).port
        for j, s in steps
    ]
    assert len(set(ports)) == len(ports)
    assert all(10_000 <= port < 30_000 for port in ports)


# Lists of hosts -------------------------------------------------------------------------------

NAMES = st.text("abz.-_", min_size=1, max_size=3)
RANGES = st.tuples(st.integers(0, 12), st.integers(0, 3), st.integers(1, 3))


def expanded(parts):
    """All hosts of a list's entry, whose parts are texts and lists of (first, more, width)."""
    choices = [
        [part]
        if isinstance(part, str)
        else [
            f"{n:0{width}}" for first, more, width in part for n in range(first, first + more + 1)
        ]
        for part in parts
    ]
    return ["".join(words) for words in itertools.product(*choices)]


def written(parts):
    """The entry as Slurm writes it."""
    words = []
    for part in parts:
        if isinstance(part, str):
            words.append(part)
            continue
        ranges = [
            f"{first:0{width}}-{first + more:0{width}}" if more else f"{first:0{width}}"
            for first, more, width in part
        ]
        words.append(f"[{','.join(ranges)}]")
    return "".join(words)


@given(
    st.lists(
        st.tuples(NAMES, st.lists(RANGES, min_size=1, max_size=3), st.sampled_from(["", "-ib"])),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_first_host_is_that_of_the_whole_list(entries, twice):
    entries = [entry + entry[:2] if twice else entry for entry in entries]
    hosts = [host for parts in entries for host in expanded(parts)]
    assert first_host(",".join(map(written, entries))) == hosts[0]


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("n1", "n1"), ("a[07-09],b2", "a07"), ("b2,a[1-3]", "b2"), ("r[1-2]n[003,7]-x", "r1n003-x")],
)
def test_lists_of_hosts(hosts, first):
    assert first_host(hosts) == first


@given(st.text("ab[],-1 ;$\n", max_size=8))
def test_any_text_is_a_list_of_hosts_or_refused(text):
    try:
        host = first_host(text)
    except RendezvousError as error:
        assert "set MASTER_ADDR" in str(error)
    else:
        assert re.fullmatch(r"[\w.-]+", host)


# Real processes -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Whoever runs these tests may have been started by one."""
    for name in [name for name in os.environ if LAUNCHERS.match(name)]:
        monkeypatch.delenv(name)


def with_own_port(rank, world_size, address, port):
    """A step of a job whose number leads to a port that hardly anybody has."""
    del address
    return {**step(rank, world_size, 1), "SLURM_JOB_ID": str(port)}


@pytest.mark.process
@pytest.mark.parametrize(
    "variables",
    [
        with_own_port,
        lambda rank, size, address, port: {**open_mpi(rank, size), **master(address, port)},
    ],
    ids=["srun", "mpirun"],
)
def test_two_tasks_are_a_world_of_two(folder_of, graph, variables):
    """They share the seeds: each node is one trainer's."""
    arguments = {"root": str(folder_of("random", 2)), "homes": [0, 1]}
    started = jobs.start_trainers("split", arguments, 2, variables=variables)
    shares = [result["share"] for result in jobs.finish_trainers(started)]
    assert sorted(shares[0] + shares[1]) == graph.train_mask.nonzero().view(-1).tolist()
    assert abs(len(shares[0]) - len(shares[1])) <= 1


def test_batch_script_that_forgot_srun(monkeypatch):
    """Refused; who says that there is one trainer gets it."""
    for name, value in batch_script().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RendezvousError, match="Start them with srun"):
        init_worker_group()
    assert init_worker_group(1, 0).world_size == 1


def test_trainers_that_a_task_starts_itself(monkeypatch):
    """Arguments hold against Slurm's numbers, which are the task's."""
    for name, value in {**step(0, 1, 1), **master("127.0.0.1", jobs.free_port())}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RendezvousError, match=r"trainer\(s\) \[1\] to call init_worker_group"):
        init_worker_group(2, 0, timeout=1)


def test_mpirun_says_nothing_of_a_master(monkeypatch):
    for name, value in open_mpi(0, 2).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RendezvousError, match="mpirun: -x MASTER_ADDR"):
        init_worker_group()


def test_port_that_another_program_has(monkeypatch):
    """Named, with the way out."""
    with jobs.socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr("khop.distributed.job.launch_environment._FIRST_PORT", port - 7)
        for name, value in {**step(0, 2, 1), "SLURM_JOB_ID": "7"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RendezvousError, match=f"127.0.0.1:{port}.*set MASTER_PORT"):
            init_worker_group(timeout=2)


@pytest.mark.process
def test_launchers_need_no_torch():
    program = "import sys, khop.distributed.job.launch_environment as l; l.find_place(); "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
