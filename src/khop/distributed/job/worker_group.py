"""Functions by which trainers join and leave their group. Runs in trainers."""

from __future__ import annotations

import contextlib
import os
import secrets

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from khop import log
from khop.data.node_rows import set_peers
from khop.distributed.job.cluster_environment import ClusterEnvironment, Place
from khop.distributed.job.context import (
    DistRole,
    WorkerContext,
    check_role,
    get_context,
    leave,
    parents_context,
    set_context,
)
from khop.distributed.job.launch_environment import (
    TORCH,
    TORCHRUN,
    ClusterName,
    find_place,
    with_master,
)
from khop.distributed.job.node_peers import NodePeers
from khop.distributed.job.torch_store import TorchStore, job_store
from khop.distributed.membership.leases import lease_seconds
from khop.distributed.membership.members import Membership
from khop.distributed.membership.polling import pauses
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
    """Make this process one of a group of trainers, and wait for the other trainers.

    Addresses and keys go through the store of torch.distributed, or before `init_process_group`
    through torchrun's, so there is no port to choose. Sockets between machines use CURVE with keys
    of this job.

    If torch.distributed is initialised, it gives the rank and the world size. Otherwise the
    launcher gives them: torchrun or Ray Train (RANK and WORLD_SIZE), mpirun, a step of Slurm
    (srun), or a pod of Kubernetes (PyTorchJob, TrainJob, Indexed Job). Without a launcher the
    process is the only trainer.

    With srun, the job's store is at the first host of the step. Its port, from 10,000 to 29,999, is
    computed from the numbers of job and step. MASTER_ADDR and MASTER_PORT override host and port.
    mpirun over several hosts needs these two variables.

    Args:
        world_size: number of trainers. If None, see above. A number overrides Slurm and mpirun,
            whose process may be the only trainer, or may have started several trainers.
        rank: rank of this trainer. Required with `world_size`.
        group_name: name of the group. If None: 'khop-trainers'.
        host: address at which other machines reach this one. If None, the address of the network
            interface $KHOP_INTERFACE, or of the route to trainer 0's machine without it.
        insecure: send data between machines unencrypted, and accept any connection. For closed
            networks only: CURVE costs a multiple of the time on the wire.
        timeout: seconds to wait for other trainers.
        lease: seconds without a sign of life after which another trainer counts as ended, 5 to
            86,400. If None, $KHOP_LEASE, or 30 without it. Most failures are noticed sooner, by
            closed connections.
        cluster_environment: the launcher that gives rank and world size, if torch.distributed and
            the arguments do not: 'torchrun', 'mpi', 'slurm', 'pytorchjob', 'indexed-job', or your
            own, see `ClusterEnvironment`. If None, the one that the environment variable
            KHOP_CLUSTER_ENVIRONMENT names, else the first that has started this process.

    Returns:
        The context, which `get_context` returns from now on.

    Raises:
        ValueError: a world size and rank contradict each other or torch.distributed, or a lease is
            out of range. Or no cluster environment or network interface has this name.
        PluginError: the cluster environment cannot be imported.
        RendezvousError: the job's store is unreachable, or trainers did not come in time. Or a
            launcher's variables contradict each other, or lack the rank of one of several trainers.

    Example:
        >>> context = init_worker_group()  # under torchrun: its rank and world size
        >>> context.rank, context.world_size
        (0, 1)
        >>> shutdown_worker_group()
    """
    launched = _launched(world_size, rank, cluster_environment)
    world_size, rank = launched.world_size, launched.rank
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
    store = job_store(launched, timeout)
    # A group must not read values that an earlier group of the same name published.
    prefix = f"khop/{group_name}"
    name = establish_generation(store, prefix, rank, world_size, timeout)
    prefix = f"{prefix}/{name}"
    members = Membership(TorchStore(store, prefix, rank), rank, world_size, timeout, lease)
    context = WorkerContext(
        members,
        PrefixStore(f"{prefix}/torch", store),
        group_name,
        host or host_address(launched.master),
        insecure,
    )
    set_context(context)
    set_peers(NodePeers(context))
    _log.info(
        "group-joined",
        f"trainer {rank} of {world_size} in group '{group_name}'",
        world_size=world_size,
        address=context.address,
    )
    return context


def shutdown_worker_group(wait: bool = True) -> None:
    """Leave the group. Servers stay until all trainers have left. Runs at exit if not called.

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
    """Return this trainer's context (role and rank). Without one, join the group by defaults.

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
    """Return this trainer's context (role and rank), or None before `init_worker_group`."""
    context = get_context()
    if context is None:
        return None
    check_role(context, DistRole.WORKER)
    assert isinstance(context, WorkerContext)
    return context


def _launched(
    world_size: int | None, rank: int | None, cluster_environment: ClusterName | None
) -> Place:
    """Return rank and world size from torch.distributed, else the arguments, else a launcher."""
    if (world_size is None) != (rank is None):
        raise ValueError("give both world_size and rank, or neither")
    if world_size is None or rank is None:
        launched = _joined_place() or find_place(cluster_environment=cluster_environment)
        return launched or Place("nothing", 0, 1)
    if cluster_environment is not None:
        raise ValueError("give cluster_environment, or world_size and rank, not both")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is not one of {world_size} trainers (0 to {world_size - 1})")
    launched = _joined_place()
    if launched is None:
        with contextlib.suppress(RendezvousError):  # the caller gives what the launcher does not
            launched = find_place()
    if launched is not None:
        if (launched.world_size, launched.rank) == (world_size, rank):
            return launched
        if launched.launcher in (TORCH, TORCHRUN):
            raise ValueError(
                f"init_worker_group(world_size={world_size}, rank={rank}), but this process is "
                f"rank {launched.rank} of {launched.world_size}"
            )
    return with_master(Place("the caller", rank, world_size))


def _joined_place() -> Place | None:
    if not dist.is_available() or not dist.is_initialized():
        return None
    return with_master(Place(TORCH, dist.get_rank(), dist.get_world_size()))


def establish_generation(
    store: Store, prefix: str, rank: int, world_size: int, timeout: float
) -> str:
    """Wait until all trainers of a group are present, and agree on a new name of the group.

    The store may hold values of earlier processes: torchrun (`--max-restarts`) restarts trainers
    and keeps the store. It gives no common restart count, since each machine counts its own. So a
    value under a trainer's rank may come from a dead process. Here trainer 0 draws a random name
    for the group, and every other trainer draws one for itself. Trainer 0 writes the group's name
    under each trainer's: only a live process can reply under both names.

    Args:
        store: the job's store.
        prefix: prefix of all keys of the group.
        rank: rank of this trainer.
        world_size: number of trainers.
        timeout: seconds to wait for the other trainers.

    Returns:
        A name that no group had before, the same for all of its trainers.

    Raises:
        RendezvousError: trainers did not come in time, or the store is unreachable.
    """
    try:
        if rank == 0:
            return _call(store, prefix, world_size, timeout)
        return _answer(store, prefix, rank, timeout)
    except RuntimeError as error:
        raise RendezvousError(f"trainer {rank} cannot reach the job's store: {error}") from None


def _call(store: Store, prefix: str, world_size: int, timeout: float) -> str:
    """Trainer 0's side of `establish_generation`: name the group, and wait for all replies."""
    group = secrets.token_hex(8)
    missing, requested, present = set(range(1, world_size)), set[str](), list[str]()
    for _ in pauses(timeout):
        for rank in sorted(missing):
            if not store.check([f"{prefix}/here/{rank}"]):
                continue
            name = store.get(f"{prefix}/here/{rank}").decode()
            if name not in requested:
                store.set(f"{prefix}/requested/{name}", group)
                requested.add(name)
            elif store.check([f"{prefix}/answered/{name}/{group}"]):
                missing.remove(rank)
                present.append(name)
        if not missing:
            break
    else:
        raise _missing(0, f"trainer(s) {sorted(missing)}", timeout)
    for name in present:
        store.set(f"{prefix}/complete/{name}", group)
    return group


def _answer(store: Store, prefix: str, rank: int, timeout: float) -> str:
    """Other trainers' side of `establish_generation`: register, reply, and wait for trainer 0."""
    name, answered = secrets.token_hex(8), ""
    requested, complete = f"{prefix}/requested/{name}", f"{prefix}/complete/{name}"
    store.set(f"{prefix}/here/{rank}", name)
    for _ in pauses(timeout):
        if store.check([complete]):
            return store.get(complete).decode()
        # Looked up each time: trainer 0 may try again with another group name.
        group = store.get(requested).decode() if store.check([requested]) else answered
        if group != answered:
            store.set(f"{prefix}/answered/{name}/{group}", "")
            answered = group
    missing = "trainers that trainer 0 has not found either" if answered else "trainer 0"
    raise _missing(rank, missing, timeout)


def _missing(rank: int, whom: str, timeout: float) -> RendezvousError:
    return RendezvousError(
        f"trainer {rank} waited {timeout:.0f} s for {whom} to call init_worker_group(); they have "
        "ended, are late, or do not do so"
    )
