"""Group of the trainers of a job: joined by `init_worker_group`. Runs in trainers."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from khop import log
from khop.distributed.job.context import (
    DistRole,
    WorkerContext,
    check_role,
    get_context,
    leave,
    parents_context,
    set_context,
)
from khop.distributed.job.generation import establish_generation
from khop.distributed.job.launch_environment import (
    TORCH,
    TORCHRUN,
    ClusterEnvironment,
    Place,
    find_place,
    with_master,
)
from khop.distributed.job.torch_store import TorchStore, job_store
from khop.distributed.membership.leases import lease_seconds
from khop.distributed.membership.members import Membership
from khop.distributed.processes.hosts import host_address
from khop.errors import RendezvousError

_DEFAULT_GROUP = "khop-trainers"
_log = log.get(__name__)


def init_worker_group(
    world_size: int | None = None,
    rank: int | None = None,
    group_name: str | None = None,
    *,
    host: str | None = None,
    insecure: bool = False,
    timeout: float = 60.0,
    lease: float | None = None,
    cluster_environment: str | ClusterEnvironment | type[ClusterEnvironment] | None = None,
) -> WorkerContext:
    """Make this process a trainer of a group, and wait for the other trainers.

    Addresses and keys go through torch.distributed's store (or, before `init_process_group`,
    through torchrun's); there is no port to choose. Sockets between machines use CURVE with keys of
    this job.

    Rank and world size are those of torch.distributed if it is initialised, else those of the
    launcher: torchrun's RANK and WORLD_SIZE, those of mpirun (OMPI_COMM_WORLD_*, PMI_*,
    PMIX_RANK), or of a step of Slurm (srun). Without any of them the process is the only trainer.
    srun needs nothing else: the job's store is at the first host of the step, at a port from 10,000
    to 29,999 that is computed from the numbers of job and step, unless MASTER_ADDR and MASTER_PORT
    are set. mpirun needs these two.

    Args:
        world_size: number of trainers. If None, see above. If given, it overrides Slurm and mpirun:
            a process that they started may be the only trainer, or have started others.
        rank: rank of this trainer; required with `world_size`.
        group_name: name of the group. If None: 'khop-trainers'.
        host: address at which other machines reach this one. If None: that of the route to trainer
            0's machine.
        insecure: send data between machines unencrypted, and accept any connection. For closed
            networks only: CURVE costs a multiple of the time on the wire.
        timeout: seconds to wait for other trainers.
        lease: seconds of silence after which another trainer counts as ended, 5 to 86,400. If None,
            $KHOP_LEASE; without it 30. Most failures are noticed sooner, by closed connections.
        cluster_environment: the launcher that gives rank and world size, if torch.distributed and
            the arguments do not: 'torchrun', 'mpi', 'slurm', or your own, see `ClusterEnvironment`.
            If None, the one that the environment variable KHOP_CLUSTER_ENVIRONMENT names, else the
            first that has started this process.

    Returns:
        The context, which `get_context` returns from now on.

    Raises:
        ValueError: a world size and rank that contradict each other or torch.distributed; a lease
            out of range; no cluster environment has this name.
        PluginError: the cluster environment cannot be imported.
        RendezvousError: the job's store cannot be reached, or trainers did not come in time; a
            launcher's variables contradict each other, or give several trainers but not the rank of
            this one.

    Example:
        >>> context = init_worker_group()  # under torchrun: its rank and world size
        >>> context.rank, context.world_size
        (0, 1)
        >>> shutdown_worker_group()
    """
    place = _place(world_size, rank, cluster_environment)
    world_size, rank = place.world_size, place.rank
    group_name = group_name or _DEFAULT_GROUP
    joined = _joined_context()
    if joined is not None:
        if (joined.world_size, joined.rank, joined.group_name) == (world_size, rank, group_name):
            return joined
        raise ValueError(
            f"this process is trainer {joined.rank} of {joined.world_size} in group "
            f"'{joined.group_name}' already: call shutdown_worker_group() first"
        )
    lease = lease_seconds(lease)
    log.identify("trainer", rank)
    if insecure and rank == 0:
        _log.warning(
            "insecure", "insecure=True: traffic between machines is neither encrypted nor checked"
        )
    store = job_store(place, timeout)
    # A group must not read values that an earlier group of the same name published.
    prefix = f"khop/{group_name}"
    name = establish_generation(store, prefix, rank, world_size, timeout)
    prefix = f"{prefix}/{name}"
    members = Membership(TorchStore(store, prefix, rank), rank, world_size, timeout, lease)
    context = WorkerContext(
        members,
        PrefixStore(f"{prefix}/torch", store),
        group_name,
        host or host_address(place.master),
        insecure,
    )
    set_context(context)
    _log.info(
        "group-joined",
        f"trainer {rank} of {world_size} in group '{group_name}'",
        world_size=world_size,
        address=context.address,
    )
    return context


def shutdown_worker_group(wait: bool = True) -> None:
    """Leave the group; servers stay until all trainers have left. Runs at exit if not called.

    Args:
        wait: wait for trainers that may still need this one's servers.

    Example:
        >>> context = init_worker_group()
        >>> shutdown_worker_group()
        >>> get_context() is None
        True
    """
    leave(DistRole.WORKER, wait)


def require_context() -> WorkerContext:
    """Return this trainer's context; create it from the environment if there is none yet.

    Raises:
        RuntimeError: this process has another role, or is a fork of a trainer of several.
    """
    joined, parents = _joined_context(), parents_context()
    if joined is None and parents is not None and parents.world_size > 1:
        raise RuntimeError(
            f"this process is a fork of {parents.worker_name} (process {os.getppid()}), whose "
            "place in the job it does not have: for a loader of its own, with partitions of its "
            "own, call init_worker_group(world_size=1, rank=0) first"
        )
    return init_worker_group() if joined is None else joined


def _joined_context() -> WorkerContext | None:
    """Return this trainer's context; None before `init_worker_group`.

    Raises:
        RuntimeError: this process has another role.
    """
    context = get_context()
    if context is None:
        return None
    check_role(context, DistRole.WORKER)
    assert isinstance(context, WorkerContext)
    return context


def _place(world_size: int | None, rank: int | None, cluster_environment: Any) -> Place:
    """Return this process's place: of torch.distributed, else the caller, else the launcher."""
    if (world_size is None) != (rank is None):
        raise ValueError("give both world_size and rank, or neither")
    if world_size is None or rank is None:
        launched = _joined_place() or find_place(cluster_environment=cluster_environment)
        return launched or Place("nothing", 0, 1)
    if cluster_environment is not None:
        raise ValueError("give cluster_environment, or world_size and rank, not both")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} trainers (0 to {world_size - 1})")
    place = _joined_place()
    if place is None:
        with contextlib.suppress(RendezvousError):  # the caller gives what the launcher does not
            place = find_place()
    if place is None:
        return with_master(Place("the caller", rank, world_size))
    if (place.world_size, place.rank) == (world_size, rank):
        return place
    if place.launcher in (TORCH, TORCHRUN):
        raise ValueError(
            f"init_worker_group(world_size={world_size}, rank={rank}), but this process is rank "
            f"{place.rank} of {place.world_size}"
        )
    return with_master(Place("the caller", rank, world_size))


def _joined_place() -> Place | None:
    """Return the place in torch.distributed's process group; None if there is none."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return with_master(Place(TORCH, dist.get_rank(), dist.get_world_size()))
