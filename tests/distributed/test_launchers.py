"""Rank and world size of who was started by torchrun, mpirun or Slurm, or by none of them."""

import itertools
import os
import re
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from khop.distributed import ClusterEnvironment, Place, init_worker_group
from khop.distributed.job.launch_environment import find_place, first_host
from khop.errors import PluginError, RendezvousError
from support.cluster import jobs

LAUNCHERS = re.compile(
    "(SLURM|OMPI|PMI|PMIX|PET|MPI)_|(JOB_COMPLETION_INDEX|RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
)


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


def local(rank, world_size):
    return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}


def ray_train(rank, world_size):
    """What Ray Train tells a worker; it initialises torch.distributed as well."""
    here = {**local(0, 1), "NODE_RANK": str(rank)}
    return {**torchrun(rank, world_size), **here, **master("10.0.0.1", 34567)}


def pytorch_job(rank, pods, processes="auto", world_size=None):
    """What Kubeflow's operator tells a pod."""
    return {
        **torchrun(rank, world_size or pods),
        **master("t-master-0", 23456),
        "PET_NNODES": str(pods),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": processes,
    }


def train_job(rank, pods, processes="auto"):
    """What Kubeflow Trainer 2 tells a pod."""
    return {
        "PET_NNODES": str(pods),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": processes,
        "PET_MASTER_ADDR": "t-node-0-0.t",
        "PET_MASTER_PORT": "29500",
    }


def one_host(rank, size):
    """Open MPI with all processes on one machine."""
    job = {"OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": "prterun-a-1@1"}
    return {**open_mpi(rank, size), **job}


INTERACTIVE = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "4294967290"}

# What is told: (rank, world size, master, port).
PLACES = {
    "nothing": ({}, None),
    "torchrun": ({**torchrun(1, 4), **master("m", 7)}, (1, 4, "m", 7)),
    "RANK and WORLD_SIZE alone": (torchrun(0, 2), (0, 2, None, None)),
    "Open MPI": ({**open_mpi(1, 4), "PMIX_RANK": "1"}, (1, 4, None, None)),
    "Open MPI with a master": ({**open_mpi(1, 4), **master("m", 7)}, (1, 4, "m", 7)),
    "MPICH": (pmi(3, 4), (3, 4, None, None)),
    "Open MPI on one host": (one_host(1, 4), (1, 4, "127.0.0.1", 12_745)),
    "Open MPI on a host, a port": ({**one_host(1, 4), "MASTER_PORT": "7"}, (1, 4, "127.0.0.1", 7)),
    "Open MPI on two hosts": (
        {**one_host(1, 4), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (1, 4, None, None)
    ),
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
    "Ray Train": (ray_train(1, 2), (1, 2, "10.0.0.1", 34567)),
    "PyTorchJob": (pytorch_job(1, 2), (1, 2, "t-master-0", 23456)),
    "PyTorchJob of one process": (pytorch_job(1, 2, "1"), (1, 2, "t-master-0", 23456)),
    "torchrun in a PyTorchJob": (
        {**pytorch_job(1, 2, "2"), **torchrun(3, 4), **local(1, 2)}, (3, 4, "t-master-0", 23456)
    ),
    "TrainJob": (train_job(1, 2), (1, 2, "t-node-0-0.t", 29500)),
    "TrainJob of one pod": ({"PET_NNODES": "1"}, None),
    "Indexed Job of one pod": (
        {"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "1"}, (0, 1, None, 29500)
    ),
    "Indexed Job with a master": (
        {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "m"}, (2, 4, "m", 29500)
    ),
    "torchrun in an Indexed Job": (
        {"JOB_COMPLETION_INDEX": "1", **torchrun(3, 4), **master("m", 7)}, (3, 4, "m", 7)
    ),
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
    "RANK of all tasks": (
        {**step(1, 2), **torchrun(0, 2)}, r"process 0 of 2, Slurm 1 of 2: set RANK"
    ),
    "RANK of all of mpirun's": (
        {**open_mpi(1, 2), **torchrun(0, 2)}, r"process 0 of 2, mpirun \(OMPI_COMM_WORLD_RANK\) 1"
    ),
    "local rank of another launcher": (
        {**torchrun(0, 1), "LOCAL_RANK": "1"}, "LOCAL_RANK=1, LOCAL_WORLD_SIZE=1 and WORLD_SIZE=1 c"
    ),
    "more here than in all": ({**torchrun(0, 2), **local(0, 4)}, "LOCAL_WORLD_SIZE=4 and WORLD_S"),
    "PyTorchJob without torchrun": (pytorch_job(0, 2, "4"), "to have 4 processes.*by torchrun"),
    "an old PyTorchJob": (
        {**torchrun(0, 2), "PET_NNODES": "2", "PET_N_PROC_PER_NODE": "2"}, "to have 2 processes"
    ),
    "PyTorchJob that counts processes": (pytorch_job(0, 2, "auto", 8), "8/2 processes.*torchrun"),
    "elastic PyTorchJob": ({"PET_NNODES": "1:3"}, "1:3 pods and no ranks.*by torchrun"),
    "TrainJob without a rank": ({"PET_NNODES": "2"}, "one of 2 pods.*neither RANK nor PET_NODE"),
    "half of a PyTorchJob": ({"PET_NNODES": "2", "RANK": "1"}, "RANK is set, but WORLD_SIZE is no"),
    "Indexed Job without a size": ({"JOB_COMPLETION_INDEX": "1"}, "WORLD_SIZE is not set: give it"),
    "Indexed Job outside of its pods": (
        {"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4"}, r"must be named JOB-3\.SERVICE.*subdomain"
    ),
    "a world without end": (torchrun(0, 10**9), "1000000000 processes: at most 1048576"),
    "a number without end": (torchrun("1" * 5000, 2), "RANK must be a number of at least 0"),
    "no list of hosts": ({**step(0, 2), "SLURM_STEP_NODELIST": "a[,"}, "not a list of hosts"),
}  # fmt: skip


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
        monkeypatch.setattr("khop.distributed.job.cluster_environment._FIRST_PORT", port - 7)
        for name, value in {**step(0, 2, 1), "SLURM_JOB_ID": "7"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RendezvousError, match=f"127.0.0.1:{port}.*set MASTER_PORT"):
            init_worker_group(timeout=2)


@pytest.mark.process
def test_launchers_need_no_torch():
    program = "import sys, khop.distributed.job.launch_environment as l; l.find_place(); "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.process
def test_pod_of_an_indexed_job(tmp_path):
    """A host's name as Kubernetes gives it, and its /etc/hosts: the first pod is the master."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a host name of its own needs root and unshare")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.1.2.3 t-2.train.default.svc.cluster.local t-2\n")
    program = (
        "from khop.distributed.job.launch_environment import find_place; print(find_place()[1:5])"
    )
    shell = (
        f"hostname t-2 && mount --bind {hosts} /etc/hosts && exec {sys.executable} -c '{program}'"
    )
    done = subprocess.run(
        ["unshare", "--uts", "--mount", "sh", "-c", shell],
        env={**os.environ, "JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this system does not allow namespaces")
    assert done.stdout.strip() == "(2, 4, 't-0.train.default.svc.cluster.local', 29500)", done


RAY_WORKER = """
# forked
import os, sys, threading
import torch.distributed as dist
from khop.distributed import *

def loop():
    dist.init_process_group("gloo")
    context = init_worker_group()
    dataset = DistDataset().load(sys.argv[1], context.rank)
    loader = DistNeighborLoader(
        dataset, [3], seed=1, worker_options=MpDistSamplingWorkerOptions(num_workers=1)
    )
    found.append(sum(batch.num_nodes for batch in loader))
    shutdown_worker_group()
    dist.destroy_process_group()

assert not hasattr(sys.modules["__main__"], "__file__")
found = []
for _ in range(2):  # an actor outlives its loop, and may be given another
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
assert len(found) == 2 and found[0] == found[1] > 0, found
"""


@pytest.mark.process
def test_loops_of_ray_train(folder_of):
    """As in its workers: a thread, no file of `__main__`, a process group that is there already."""
    port = jobs.free_port()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", RAY_WORKER, str(folder_of("random", 2))],
            env={
                **os.environ,
                **ray_train(rank, 2),
                **master("127.0.0.1", port),
                "OMP_NUM_THREADS": "1",
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [worker.stderr.read() for worker in workers]
    assert [worker.wait() for worker in workers] == [0, 0], errors


@pytest.mark.network
@pytest.mark.process
def test_master_that_knows_itself_as_localhost(folder_of, two_hosts):
    """Old operators of PyTorchJob: the first machine still has an address for the others."""
    prefixes, address = two_hosts

    def variables(rank, world_size, _, port):
        return {
            **pytorch_job(rank, world_size),
            **master("localhost" if rank == 0 else address, port),
        }

    arguments = {"root": str(folder_of("random", 2)), "homes": [0, 1], "num_workers": 1}
    started = jobs.start_trainers(
        "compare", arguments, 2, prefixes, port=29_514, variables=variables
    )
    assert all(result["batches"] for result in jobs.finish_trainers(started))
