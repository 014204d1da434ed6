"""Rank of this process, and address of trainer 0, from its launcher's environment variables.

Runs in trainers. Imports no torch.

`CLUSTERS` has the launchers in the order in which they are asked: a pod of a PyTorchJob, whose RANK
and WORLD_SIZE may count pods. Torchrun, whose RANK and WORLD_SIZE Ray Train and users set, too.
Then mpirun, a Slurm step, and a pod of an Indexed Job. The innermost launcher counts, since a
launcher may start another. For example, a Slurm step of one task per node starts torchrun or
mpirun's daemons, whose children inherit its Slurm variables. A launcher that the user names is
asked alone.

A process never becomes a single trainer by mistake: variables that show several processes, but give
no rank or no address, are an error. A job of several tasks outside of a step is an error, too:
there Slurm sets the variables of the first task for the batch script.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Mapping
from typing import TypeAlias

from khop.distributed.job.cluster_environment import (
    BY_HAND,
    ClusterEnvironment,
    Place,
    computed_port,
    contradiction,
    integer,
)
from khop.distributed.job.kubernetes import IndexedJob, PyTorchJob
from khop.errors import RendezvousError
from khop.plugins import Registry, instance_of

TORCH = "torch.distributed"
VARIABLE = "KHOP_CLUSTER_ENVIRONMENT"
"""Environment variable with which a user names a cluster environment."""
TORCHRUN = "the environment (RANK, WORLD_SIZE)"
"""Launcher of a process with RANK and WORLD_SIZE, from torchrun or set by hand."""

_STEP_STRIDE = 7919
_MAX_WORLD_SIZE = 1 << 20
_MPI = (
    # Open MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MPICH, Intel MPI, Cray, srun --mpi=pmi2
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
# Names of one start of mpirun, of Open MPI 5 and 4.
_MPI_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
# Variables of processes, not of pods or tasks, which torchrun and similar launchers set.
_OF_PROCESS = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")
_HOST = re.compile(r"(?:[\w.-]|\[[\d,-]+\])+")


ClusterName: TypeAlias = str | ClusterEnvironment | type[ClusterEnvironment]
"""A launcher as users name it: its name, 'package:Class', the class or an instance."""


def with_master(launched: Place, environment: Mapping[str, str] = os.environ) -> Place:
    """Return a copy of `launched` with MASTER_ADDR and MASTER_PORT of `environment`, if set."""
    port = integer(environment, "MASTER_PORT")
    if port is not None:
        launched = launched._replace(port=port, job=None)
    return launched._replace(master=environment.get("MASTER_ADDR") or launched.master)


def find_place(
    environment: Mapping[str, str] = os.environ,
    cluster_environment: ClusterName | None = None,
) -> Place | None:
    """Return rank and address of trainer 0 from the launcher, or None if none is detected.

    MASTER_ADDR and MASTER_PORT override the values of any launcher. In a Slurm step the default
    address is the first host of the step. The default port, 10,000 to 29,999, is computed from the
    numbers of job and step.

    Args:
        environment: the process's environment variables.
        cluster_environment: the only launcher to ask. If None, the one that
            KHOP_CLUSTER_ENVIRONMENT names, else all in their order.

    Raises:
        RendezvousError: the variables are incomplete or contradict each other, or the named
            launcher has not started this process. The message has the remedy.
        ValueError, TypeError, PluginError: no cluster environment has this name, or it cannot be
            used.
    """
    named = cluster_environment or environment.get(VARIABLE)
    if named is None or named == "":
        detected = (cluster.detect(environment) for cluster in CLUSTERS.builtin.values())
        launched = next((one for one in detected if one is not None), None)
    else:
        launched = _place_by(named, environment)
    _check_half_pair(environment, launched)
    if launched is None:
        return None
    if launched.world_size > _MAX_WORLD_SIZE:
        raise RendezvousError(
            f"{launched.launcher} says that there are {launched.world_size} processes: at most "
            f"{_MAX_WORLD_SIZE} are supported"
        )
    if not 0 <= launched.rank < launched.world_size:
        raise RendezvousError(
            f"{launched.launcher} says that this is process {launched.rank} of "
            f"{launched.world_size}: ranks go from 0 to one less than their number"
        )
    return with_master(launched, environment)


def _place_by(named: ClusterName, environment: Mapping[str, str]) -> Place:
    cluster = CLUSTERS.checked(named)
    launched = cluster.detect(environment)
    name = named if isinstance(named, str) else type(cluster).__qualname__
    if launched is None:
        raise RendezvousError(
            f"the cluster environment {name} has not started this process: start it by that "
            f"launcher, or leave cluster_environment= and {VARIABLE} out"
        )
    if not isinstance(launched, Place) or not all(isinstance(n, int) for n in launched[1:3]):
        raise TypeError(
            f"detect of the cluster environment {name} must return a khop.distributed.Place with "
            f"rank and world size (got {launched!r:.200})"
        )
    return launched


class Torchrun(ClusterEnvironment):
    """Launcher torchrun or Ray Train, or variables RANK and WORLD_SIZE that users set."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the rank in RANK of `environment`, or None if RANK and WORLD_SIZE are not set."""
        rank, world_size = (integer(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if rank is None or world_size is None:
            return None
        launched = Place(TORCHRUN, rank, world_size)
        _check_local(environment, world_size)
        if not any(name in environment for name in _OF_PROCESS):
            _check_tasks(environment, launched)
        return launched


def _check_local(environment: Mapping[str, str], world_size: int) -> None:
    """Raise RendezvousError if LOCAL_RANK or LOCAL_WORLD_SIZE contradicts WORLD_SIZE."""
    rank, size = (integer(environment, name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if size is None:
        size = world_size
    if size > world_size or (rank is not None and rank >= size):
        raise RendezvousError(
            f"LOCAL_RANK={rank}, LOCAL_WORLD_SIZE={size} and WORLD_SIZE={world_size} contradict "
            "each other: unset those that an earlier launcher has left"
        )


def _check_tasks(environment: Mapping[str, str], launched: Place) -> None:
    """Raise RendezvousError if all tasks of a launcher have one RANK, exported before its start."""
    for cluster in (Mpi(), Slurm()):
        task = None
        with contextlib.suppress(RendezvousError):  # its variables may belong to an outer launcher
            task = cluster.detect(environment)
        differs = task is not None and task[1] != launched.rank
        if task is not None and differs and task.world_size == launched.world_size:
            raise contradiction(launched, task)


def _check_half_pair(environment: Mapping[str, str], launched: Place | None) -> None:
    """Raise RendezvousError if RANK or WORLD_SIZE is set alone, and differs from `launched`."""
    for name, missing in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        value = integer(environment, name)
        if value is None or missing in environment:
            continue
        if launched is None:
            raise RendezvousError(f"{name} is set, but {missing} is not: set both, or neither")
        expected = launched.rank if name == "RANK" else launched.world_size
        if value != expected:
            raise RendezvousError(
                f"{name} is {value}, but {launched.launcher} says {expected}: set {missing}, too, "
                "or neither"
            )


class Mpi(ClusterEnvironment):
    """Launcher mpirun, or `srun --mpi`."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the rank that mpirun's variables have, or None without these variables."""
        detected = [p for names in _MPI if (p := _of_variables(environment, *names)) is not None]
        if len({one[1:] for one in detected}) > 1:
            raise contradiction(*detected)
        rank = integer(environment, "PMIX_RANK")  # PMIx gives no size
        if rank is None and not detected:
            return None
        # With srun --mpi both describe the same processes, and Slurm has the host of the first one.
        slurm = Slurm().detect(environment) if "SLURM_STEP_ID" in environment else None
        launched = detected[0] if detected else slurm
        if launched is None:
            raise RendezvousError(
                f"PMIX_RANK says that this is process {rank}, but nothing says of how many: "
                f"{BY_HAND}"
            )
        if rank not in (None, launched.rank):
            raise contradiction(Place("PMIX_RANK", rank, launched.world_size), launched)
        return slurm if slurm is not None and slurm[1:3] == launched[1:3] else launched


class Slurm(ClusterEnvironment):
    """Launcher srun, in a step of Slurm. A job of one task without a step is not detected."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the rank of this task of a Slurm step, or None outside of a step."""
        if "SLURM_JOB_ID" not in environment:
            return None
        num_tasks = integer(environment, "SLURM_NTASKS")
        if "SLURM_STEP_ID" not in environment:
            nodes = integer(environment, "SLURM_NNODES") or 1
            if max(num_tasks or 1, nodes) > 1:
                raise _not_a_task(f"{num_tasks or nodes} tasks")
            return None
        rank = integer(environment, "SLURM_PROCID")
        world_size = integer(environment, "SLURM_STEP_NUM_TASKS")
        if rank is None or world_size is None:
            raise RendezvousError(
                "this is a Slurm step (SLURM_STEP_ID is set), but SLURM_PROCID and "
                f"SLURM_STEP_NUM_TASKS are not: {BY_HAND}"
            )
        if num_tasks not in (None, world_size):  # the step of an interactive shell, in salloc
            raise _not_a_task(f"{num_tasks} tasks, this step {world_size}")
        job = integer(environment, "SLURM_JOB_ID") or 0
        step = integer(environment, "SLURM_STEP_ID") or 0
        return Place(
            "Slurm",
            rank,
            world_size,
            _host_of_task_0(environment),
            # Differs from the ports of concurrent jobs and steps.
            computed_port(job + _STEP_STRIDE * step),
            f"slurm-{job}.{step}",
        )


CLUSTERS: Registry[ClusterEnvironment] = Registry(
    "khop.cluster_environments",
    {
        "pytorchjob": PyTorchJob(),
        "torchrun": Torchrun(),
        "mpi": Mpi(),
        "slurm": Slurm(),
        "indexed-job": IndexedJob(),
    },
    instance_of(ClusterEnvironment),
    "cluster environment",
)
"""All launchers. The built-in ones are asked in this order."""


def _of_variables(
    environment: Mapping[str, str], rank: str, size: str, local_size: str
) -> Place | None:
    values = integer(environment, rank), integer(environment, size)
    if values == (None, None):
        return None
    if values[0] is None or values[1] is None:
        raise RendezvousError(f"of {rank} and {size} only one is set: {BY_HAND}")
    launched = Place(f"mpirun ({rank})", values[0], values[1])
    job = next((environment[name] for name in _MPI_JOBS if environment.get(name)), None)
    if job is None or integer(environment, local_size) != launched.world_size:
        return launched  # mpirun does not say which host has process 0
    return launched._replace(
        master="127.0.0.1", port=computed_port(zlib.crc32(job.encode())), job=f"mpi-{job:.80}"
    )


def _not_a_task(how_many: str) -> RendezvousError:
    return RendezvousError(
        f"this Slurm job has {how_many}, but this process was not started by srun: trainers would "
        "not know each other. Start them with srun (or with torchrun, one on each node); for a "
        "single trainer call init_worker_group(world_size=1, rank=0) first"
    )


def _host_of_task_0(environment: Mapping[str, str]) -> str | None:
    if environment.get("SLURM_STEP_NUM_NODES") == "1":
        return "127.0.0.1"  # the host's name may not resolve in containers
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    several = integer(environment, "SLURM_HET_SIZE") or 1
    arbitrary = environment.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    # Unknown: in a user-defined order task 0 may be at any host, in a heterogeneous job at the
    # first host of any component.
    return None if not hosts or arbitrary or several > 1 else first_host(hosts)


def first_host(hosts: str) -> str:
    """Return the first host of a list in Slurm's notation: 'a07' of 'a[07-09,12],b2'.

    Raises:
        RendezvousError: `hosts` is not such a list.
    """
    match = _HOST.match(hosts)
    host = re.sub(r"\[(\d+)[\d,-]*\]", r"\1", match[0]) if match else ""
    if match is None or hosts[match.end() :][:1] not in ("", ",") or "[" in host:
        raise RendezvousError(
            f"SLURM_STEP_NODELIST is not a list of hosts (got '{hosts}'): set MASTER_ADDR"
        )
    return host
