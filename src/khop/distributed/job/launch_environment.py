"""Rank of this process, and address of trainer 0, from its launcher's environment variables.

Runs in trainers. Imports no torch.

`CLUSTERS` has the launchers in the order in which they are asked: torchrun (RANK and WORLD_SIZE,
which users set by hand, too), mpirun, a Slurm step. The innermost launcher counts, since a launcher
may start another. For example, a Slurm step of one task per node starts torchrun or mpirun's
daemons, whose children inherit its Slurm variables. A launcher that the user names is asked alone.

A process never becomes a single trainer by mistake: variables that show several processes, but give
no rank or no address, are an error. A job of several tasks outside of a step is an error, too:
there Slurm sets the variables of the first task for the batch script.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from khop.errors import RendezvousError
from khop.plugins import Registry, instance_of

TORCH = "torch.distributed"
VARIABLE = "KHOP_CLUSTER_ENVIRONMENT"
"""Environment variable with which a user names a cluster environment."""
TORCHRUN = "the environment (RANK, WORLD_SIZE)"
"""Launcher of a process with RANK and WORLD_SIZE, from torchrun or set by hand."""

# Range of computed ports: above the system's ports, below the ports of outgoing connections.
_FIRST_PORT, _NUM_PORTS = 10_000, 20_000
_STEP_STRIDE = 7919
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, Cray, srun --mpi=pmi2
)
_HOST = re.compile(r"(?:[\w.-]|\[[\d,-]+\])+")
_BY_HAND = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


class Place(NamedTuple):
    """Rank of a process and address of process 0, which a launcher has assigned.

    Attributes:
        launcher: name of the launcher, for error messages.
        rank: rank of this process.
        world_size: number of processes.
        master: host of process 0, or None if unknown.
        port: port at which process 0 may listen, or None if unknown.
        job: unique name of the job if the port is computed: another job may listen there.

    Example:
        >>> Place("my scheduler", rank=1, world_size=4, master="node0").port is None
        True
    """

    launcher: str
    rank: int
    world_size: int
    master: str | None = None
    port: int | None = None
    job: str | None = None


class ClusterEnvironment(ABC):
    """Base of classes that read a trainer's rank from the launcher that started it.

    khop makes an instance without arguments. Users name their own class in
    `init_worker_group(cluster_environment=)` or in the environment variable
    KHOP_CLUSTER_ENVIRONMENT. A name is 'package:Class', or an installed package's entry point in
    the group `khop.cluster_environments`.

    Example:
        >>> class Alone(ClusterEnvironment):
        ...     def detect(self, environment): return Place("no launcher", 0, 1)
        >>> init_worker_group(cluster_environment=Alone).world_size
        1
    """

    @abstractmethod
    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return rank and trainer 0's address, or None if another launcher started the process.

        It is called before torch.distributed is initialised.

        Args:
            environment: the process's environment variables.

        Raises:
            RendezvousError: the variables are incomplete. The message has the remedy.
        """


ClusterName: TypeAlias = str | ClusterEnvironment | type[ClusterEnvironment]
"""A launcher as users name it: its name, 'package:Class', the class or an instance."""


def with_master(launched: Place, environment: Mapping[str, str] = os.environ) -> Place:
    """Return a copy of `launched` with host and port from MASTER_ADDR and MASTER_PORT, if set."""
    port = _integer(environment, "MASTER_PORT")
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
    """Launcher torchrun, or variables RANK and WORLD_SIZE that users set."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the rank that RANK has, or None if RANK and WORLD_SIZE are not set."""
        rank, world_size = (_integer(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if rank is None or world_size is None:
            return None
        return Place(TORCHRUN, rank, world_size)


def _check_half_pair(environment: Mapping[str, str], launched: Place | None) -> None:
    """Raise RendezvousError if RANK or WORLD_SIZE is set alone, and differs from `launched`."""
    for name, missing in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        value = _integer(environment, name)
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
            raise _contradiction(*detected)
        rank = _integer(environment, "PMIX_RANK")  # PMIx gives no size
        if rank is None and not detected:
            return None
        # With srun --mpi both describe the same processes, and Slurm has the host of the first one.
        slurm = Slurm().detect(environment) if "SLURM_STEP_ID" in environment else None
        launched = detected[0] if detected else slurm
        if launched is None:
            raise RendezvousError(
                f"PMIX_RANK says that this is process {rank}, but nothing says of how many: "
                f"{_BY_HAND}"
            )
        if rank not in (None, launched.rank):
            raise _contradiction(Place("PMIX_RANK", rank, launched.world_size), launched)
        return slurm if slurm is not None and slurm[1:3] == launched[1:3] else launched


class Slurm(ClusterEnvironment):
    """Launcher srun, in a step of Slurm. A job of one task without a step is not detected."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the rank of this task of a Slurm step, or None outside of a step."""
        if "SLURM_JOB_ID" not in environment:
            return None
        num_tasks = _integer(environment, "SLURM_NTASKS")
        if "SLURM_STEP_ID" not in environment:
            nodes = _integer(environment, "SLURM_NNODES") or 1
            if max(num_tasks or 1, nodes) > 1:
                raise _not_a_task(f"{num_tasks or nodes} tasks")
            return None
        rank = _integer(environment, "SLURM_PROCID")
        world_size = _integer(environment, "SLURM_STEP_NUM_TASKS")
        if rank is None or world_size is None:
            raise RendezvousError(
                "this is a Slurm step (SLURM_STEP_ID is set), but SLURM_PROCID and "
                f"SLURM_STEP_NUM_TASKS are not: {_BY_HAND}"
            )
        if num_tasks not in (None, world_size):  # the step of an interactive shell, in salloc
            raise _not_a_task(f"{num_tasks} tasks, this step {world_size}")
        job = _integer(environment, "SLURM_JOB_ID") or 0
        step = _integer(environment, "SLURM_STEP_ID") or 0
        return Place(
            "Slurm",
            rank,
            world_size,
            _host_of_task_0(environment),
            # Differs from the ports of concurrent jobs and steps.
            _FIRST_PORT + (job + _STEP_STRIDE * step) % _NUM_PORTS,
            f"slurm-{job}.{step}",
        )


CLUSTERS: Registry[ClusterEnvironment] = Registry(
    "khop.cluster_environments",
    {"torchrun": Torchrun(), "mpi": Mpi(), "slurm": Slurm()},
    instance_of(ClusterEnvironment),
    "cluster environment",
)
"""All launchers. The built-in ones are asked in this order."""


def _of_variables(environment: Mapping[str, str], rank: str, size: str) -> Place | None:
    values = _integer(environment, rank), _integer(environment, size)
    if values == (None, None):
        return None
    if values[0] is None or values[1] is None:
        raise RendezvousError(f"of {rank} and {size} only one is set: {_BY_HAND}")
    return Place(f"mpirun ({rank})", values[0], values[1])


def _contradiction(one: Place, other: Place) -> RendezvousError:
    return RendezvousError(
        f"{one.launcher} says that this is process {one.rank} of {one.world_size}, "
        f"{other.launcher} {other.rank} of {other.world_size}: {_BY_HAND}"
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
    several = _integer(environment, "SLURM_HET_SIZE") or 1
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


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise RendezvousError(f"{name} must be a number of at least 0 (got '{text}')")
    return int(text)
