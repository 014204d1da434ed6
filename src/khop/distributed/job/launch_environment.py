"""Rank of this process, and address of trainer 0, from its launcher's environment variables.

Runs in trainers. Imports no torch.

`CLUSTERS` has the launchers in the order in which they are asked. The innermost launcher counts,
since one may start another: a Slurm step of one task on each node starts torchrun there, or the
daemons of mpirun, and their children inherit the daemon's Slurm variables. The order: torchrun
(RANK and WORLD_SIZE, which users set by hand, too), mpirun, a Slurm step. A user's own is asked
where it is named, alone.

A process never becomes a single trainer by mistake: variables that show several processes, but give
no rank or no address, are an error. So is a job of several tasks outside of a step, where Slurm
sets the variables of its first task for the batch script.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from khop.errors import RendezvousError
from khop.plugins import Registry, instance_of

TORCH = "torch.distributed"
VARIABLE = "KHOP_CLUSTER_ENVIRONMENT"
"""Environment variable with which a user names a cluster environment."""
TORCHRUN = "the environment (RANK, WORLD_SIZE)"
"""Launcher of a process with RANK and WORLD_SIZE, from torchrun or set by hand."""

# Ports computed from job and step: above the system's, below those of outgoing connections.
_FIRST_PORT, _NUM_PORTS = 10_000, 20_000
_STEP_STRIDE = 7919
_MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, Cray, srun --mpi=pmi2
)
_HOST = re.compile(r"(?:[\w.-]|\[[\d,-]+\])+")
_BY_HAND = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"


class Place(NamedTuple):
    """Place of a process in its job, as given by a launcher.

    Attributes:
        launcher: name of the launcher, for error messages.
        rank: rank of this process.
        world_size: number of processes.
        master: host of process 0; None if unknown.
        port: port at which process 0 may listen; None if unknown.
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
    """Base of launchers: what a trainer knows from the program that started it.

    khop makes an instance without arguments. Users name their own:
    `init_worker_group(cluster_environment=)` or the environment variable
    KHOP_CLUSTER_ENVIRONMENT, by 'package:Class', or by the name that an installed package gives it
    (group `khop.cluster_environments`).

    Example:
        >>> class Alone(ClusterEnvironment):
        ...     def detect(self, environment): return Place("nobody", 0, 1)
        >>> init_worker_group(cluster_environment=Alone).world_size
        1
    """

    @abstractmethod
    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """Return the place of this process; None if this launcher has not started it.

        Runs before torch.distributed is initialised.

        Args:
            environment: the process's environment variables.

        Raises:
            RendezvousError: the variables are incomplete; the message has the remedy.
        """


def with_master(place: Place, environment: Mapping[str, str] = os.environ) -> Place:
    """Return the place with MASTER_ADDR and MASTER_PORT applied; they hold for all launchers."""
    port = _integer(environment, "MASTER_PORT")
    if port is not None:
        place = place._replace(port=port, job=None)
    return place._replace(master=environment.get("MASTER_ADDR") or place.master)


def find_place(
    environment: Mapping[str, str] = os.environ, cluster_environment: Any = None
) -> Place | None:
    """Return the place that the launcher gave this process; None if no launcher is detected.

    MASTER_ADDR and MASTER_PORT hold for all launchers. In a Slurm step the first defaults to the
    first host of the step, the second to a port that is computed from the numbers of job and step:
    10,000 to 29,999.

    Args:
        environment: the variables.
        cluster_environment: the only launcher to ask: a `ClusterEnvironment`, its class, or a name
            of one. If None, the one that KHOP_CLUSTER_ENVIRONMENT names, else all in their order.

    Raises:
        RendezvousError: the variables are incomplete or contradict each other, or the launcher that
            was named has not started this process; the message has the remedy.
        ValueError, TypeError, PluginError: no cluster environment has this name, or it cannot be
            used.
    """
    named = cluster_environment or environment.get(VARIABLE)
    if named is None or named == "":
        places = (cluster.detect(environment) for cluster in CLUSTERS.builtin.values())
        place = next((place for place in places if place is not None), None)
    else:
        place = _place_by(named, environment)
    _check_half_pair(environment, place)
    if place is None:
        return None
    if not 0 <= place.rank < place.world_size:
        raise RendezvousError(
            f"{place.launcher} says that this is process {place.rank} of {place.world_size}: ranks "
            "go from 0 to one less than their number"
        )
    return with_master(place, environment)


def _place_by(named: Any, environment: Mapping[str, str]) -> Place:
    """Return this process's place as the cluster environment that the user named gives it."""
    cluster = CLUSTERS.checked(named)
    place = cluster.detect(environment)
    name = named if isinstance(named, str) else type(cluster).__qualname__
    if place is None:
        raise RendezvousError(
            f"the cluster environment {name} has not started this process: start it by that "
            f"launcher, or leave cluster_environment= and {VARIABLE} out"
        )
    if not isinstance(place, Place) or not all(isinstance(n, int) for n in place[1:3]):
        raise TypeError(
            f"detect of the cluster environment {name} must return a khop.distributed.Place with "
            f"rank and world size (got {place!r:.200})"
        )
    return place


class Torchrun(ClusterEnvironment):
    """RANK and WORLD_SIZE, of torchrun or set by hand."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """See `ClusterEnvironment`."""
        rank, world_size = (_integer(environment, name) for name in ("RANK", "WORLD_SIZE"))
        if rank is None or world_size is None:
            return None
        return Place(TORCHRUN, rank, world_size)


def _check_half_pair(environment: Mapping[str, str], place: Place | None) -> None:
    """Raise RendezvousError for RANK or WORLD_SIZE alone, unless the launcher gives the same."""
    for name, missing in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        value = _integer(environment, name)
        if value is None or missing in environment:
            continue
        if place is None:
            raise RendezvousError(f"{name} is set, but {missing} is not: set both, or neither")
        expected = place.rank if name == "RANK" else place.world_size
        if value != expected:
            raise RendezvousError(
                f"{name} is {value}, but {place.launcher} says {expected}: set {missing}, too, or "
                "neither"
            )


class Mpi(ClusterEnvironment):
    """Processes of mpirun, and of `srun --mpi`."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """See `ClusterEnvironment`."""
        return _of_mpi(environment)


class Slurm(ClusterEnvironment):
    """Tasks of a step of Slurm."""

    def detect(self, environment: Mapping[str, str]) -> Place | None:
        """See `ClusterEnvironment`."""
        return _of_slurm(environment)


CLUSTERS: Registry[ClusterEnvironment] = Registry(
    "khop.cluster_environments",
    {"torchrun": Torchrun(), "mpi": Mpi(), "slurm": Slurm()},
    instance_of(ClusterEnvironment),
    "cluster environment",
)
"""All launchers. The built-in ones are asked in this order."""


def _of_mpi(environment: Mapping[str, str]) -> Place | None:
    places = [p for names in _MPI if (p := _of_mpi_variables(environment, *names)) is not None]
    if len({place[1:] for place in places}) > 1:
        raise _contradiction(*places)
    rank = _integer(environment, "PMIX_RANK")  # PMIx gives no size
    if rank is None and not places:
        return None
    # With srun --mpi both describe the same processes, and Slurm has the host of the first one.
    slurm = _of_slurm(environment) if "SLURM_STEP_ID" in environment else None
    place = places[0] if places else slurm
    if place is None:
        raise RendezvousError(
            f"PMIX_RANK says that this is process {rank}, but nothing says of how many: {_BY_HAND}"
        )
    if rank not in (None, place.rank):
        raise _contradiction(Place("PMIX_RANK", rank, place.world_size), place)
    return slurm if slurm is not None and slurm[1:3] == place[1:3] else place


def _of_mpi_variables(environment: Mapping[str, str], rank: str, size: str) -> Place | None:
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


def _of_slurm(environment: Mapping[str, str]) -> Place | None:
    """Return the place in a step of Slurm; None outside of Slurm, and in a job of one task."""
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
    job, step = _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID")
    return Place(
        "Slurm",
        rank,
        world_size,
        _first_host(environment),
        # Differs from the ports of concurrent jobs and steps.
        _FIRST_PORT + (job + _STEP_STRIDE * step) % _NUM_PORTS,
        f"slurm-{job}.{step}",
    )


def _not_a_task(how_many: str) -> RendezvousError:
    return RendezvousError(
        f"this Slurm job has {how_many}, but this process was not started by srun: trainers would "
        "not know each other. Start them with srun (or with torchrun, one on each node); for a "
        "single trainer call init_worker_group(world_size=1, rank=0) first"
    )


def _first_host(environment: Mapping[str, str]) -> str | None:
    """Return the host of a step's task 0; None if it cannot be determined."""
    if environment.get("SLURM_STEP_NUM_NODES") == "1":
        return "127.0.0.1"  # the host's name may not resolve in containers
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    several = _integer(environment, "SLURM_HET_SIZE") or 1
    arbitrary = environment.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
    # Tasks in a user-defined order may begin at any host, those of a heterogeneous job at a
    # component's first.
    return None if not hosts or arbitrary or several > 1 else first_host(hosts)


def first_host(hosts: str) -> str:
    """Return the first host of a Slurm list of hosts: 'a07' of 'a[07-09,12],b2'.

    Raises:
        RendezvousError: it is not such a list.
    """
    match = _HOST.match(hosts)
    host = re.sub(r"\[(\d+)[\d,-]*\]", r"\1", match[0]) if match else ""
    if match is None or hosts[match.end() :][:1] not in ("", ",") or "[" in host:
        raise RendezvousError(
            f"SLURM_STEP_NODELIST is not a list of hosts (got '{hosts}'): set MASTER_ADDR"
        )
    return host


def _number(environment: Mapping[str, str], name: str) -> int:
    return _integer(environment, name) or 0


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit():
        raise RendezvousError(f"{name} must be a number of at least 0 (got '{text}')")
    return int(text)
