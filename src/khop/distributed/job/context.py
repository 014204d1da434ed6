"""Role and rank of this process in its job. Any process with a role: trainer, client, server."""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from khop import log
from khop.distributed.job.generation import establish_generation
from khop.distributed.job.launch_environment import TORCH, TORCHRUN, Place, find_place, with_master
from khop.distributed.job.rendezvous import Rendezvous, StoreRendezvous, job_store
from khop.distributed.processes.exit_hooks import call_at_end
from khop.distributed.processes.hosts import host_address, host_identity
from khop.errors import RendezvousError

_DEFAULT_GROUP = "khop-trainers"


class DistRole(enum.Enum):
    """Role of a process in a job.

    Example:
        >>> init_worker_group().role is DistRole.WORKER
        True
    """

    WORKER = 1
    """A trainer that loads a partition."""
    SERVER = 2
    """A process that runs a graph server."""
    CLIENT = 3
    """A trainer whose batches graph servers make."""


class DistContext:
    """Place of a process in its job. `init_worker_group`, `init_client`, `init_server` return one.

    Attributes:
        role: role of the process.
        world_size: number of processes with this role.
        rank: rank of this process among them.
        group_name: name of their group.

    Example:
        >>> context = init_worker_group()
        >>> context.rank, context.world_size, context.is_worker()
        (0, 1, True)
    """

    def __init__(self, role: DistRole, world_size: int, rank: int, group_name: str) -> None:
        self.role = role
        self.world_size = world_size
        self.rank = rank
        self.group_name = group_name

    @property
    def worker_name(self) -> str:
        """Name of this process."""
        return f"{self.group_name}_{self.rank}"

    @property
    def global_world_size(self) -> int:
        """Number of processes of all roles."""
        return self.world_size

    @property
    def global_rank(self) -> int:
        """Rank of this process among those of all roles: servers come before clients."""
        return self.rank

    def is_worker(self) -> bool:
        """Return whether this process is a trainer that loads a partition."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Return whether this process runs a graph server."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Return whether this process is a trainer whose batches graph servers make."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """Return the number of graph servers of the job."""
        return 0

    def num_clients(self) -> int:
        """Return the number of clients of the graph servers."""
        return 0

    def close(self, wait: bool = True) -> None:
        """Leave the job.

        Args:
            wait: wait for others that need this process.
        """
        raise NotImplementedError


class TrainerContext(DistContext):
    """Place of a trainer, which shares values with the other trainers.

    Attributes:
        rendezvous: values that the trainers share.
    """

    def __init__(self, role: DistRole, rendezvous: Rendezvous, group_name: str) -> None:
        super().__init__(role, rendezvous.world_size, rendezvous.rank, group_name)
        self.rendezvous = rendezvous
        self._counts: dict[str, itertools.count[int]] = {}

    def number(self, kind: str) -> int:
        """Return the next number, from 0, of a kind of object: loaders, services.

        All trainers create such objects in the same order, so the numbers agree.
        """
        return next(self._counts.setdefault(kind, itertools.count()))


class WorkerContext(TrainerContext):
    """Place of a trainer that loads a partition; `init_worker_group` returns it.

    Attributes:
        host: identity of the machine; equal for trainers that can share socket files.
        address: address at which other machines reach this one.
        insecure: whether traffic between machines goes without CURVE.
        rendezvous: values that the trainers share.
        others_have_finished: whether all others are known to have left the group.
        store: torch.distributed store that holds only what these trainers write. For
            `init_process_group(..., store=context.store, rank=context.rank,
            world_size=context.world_size)` where trainers may be restarted: torchrun's own store
            (torch 2.5 and later) still has addresses of the earlier processes.
    """

    rendezvous: StoreRendezvous

    def __init__(
        self,
        rendezvous: StoreRendezvous,
        group_name: str,
        address: str,
        insecure: bool,
    ) -> None:
        super().__init__(DistRole.WORKER, rendezvous, group_name)
        self.host = host_identity()
        self.address = address
        self.insecure = insecure
        self.store = rendezvous.own_store()
        self._servers_to_keep: list[Callable[[], None]] = []
        self._is_closed = False
        self.others_have_finished = rendezvous.world_size == 1

    def keep_for_others(self, close: Callable[[], None]) -> None:
        """Register servers that others use: `close` is called when all trainers have finished."""
        self._servers_to_keep.append(close)

    def close(self, wait: bool = True) -> None:
        """Publish that this trainer leaves, then end its servers when all others have left, too.

        Args:
            wait: wait for the others, at most for the rendezvous timeout.
        """
        if self._is_closed:
            return
        self._is_closed = True
        others = [r for r in range(self.world_size) if r != self.rank]
        with contextlib.suppress(RuntimeError, RendezvousError):
            self.rendezvous.publish("goodbye", True)
            if wait and self._servers_to_keep:
                self.rendezvous.wait_for("goodbye", others, "finish")
                self.others_have_finished = True
        for close in self._servers_to_keep:
            close()
        self._servers_to_keep.clear()


_context: DistContext | None = None
# Context of the process that this one was forked from.
_parents: DistContext | None = None
_Context = TypeVar("_Context", bound=DistContext)
_ROLES = {
    DistRole.WORKER: "a trainer that loads a partition",
    DistRole.SERVER: "a graph server",
    DistRole.CLIENT: "a client of graph servers",
}
_ADVICE = {
    DistRole.WORKER: "call shutdown_worker_group() first",
    DistRole.SERVER: "call wait_and_shutdown_server() first",
    DistRole.CLIENT: "its loaders take data=None and RemoteDistSamplingWorkerOptions; to load a "
    "partition, call shutdown_client() first",
}
_log = log.get(__name__)


def init_worker_group(
    world_size: int | None = None,
    rank: int | None = None,
    group_name: str | None = None,
    *,
    host: str | None = None,
    insecure: bool = False,
    timeout: float = 60.0,
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

    Returns:
        The context, which `get_context` returns from now on.

    Raises:
        ValueError: a world size and rank that contradict each other or torch.distributed.
        RendezvousError: the job's store cannot be reached, or trainers did not come in time; a
            launcher's variables contradict each other, or give several trainers but not the rank of
            this one.

    Example:
        >>> context = init_worker_group()  # under torchrun: its rank and world size
        >>> context.rank, context.world_size
        (0, 1)
        >>> shutdown_worker_group()
    """
    global _context  # noqa: PLW0603
    place = _place(world_size, rank)
    world_size, rank = place.world_size, place.rank
    group_name = group_name or _DEFAULT_GROUP
    if _context is not None:
        _check_role(_context, DistRole.WORKER)
        assert isinstance(_context, WorkerContext)
        same = (_context.world_size, _context.rank, _context.group_name)
        if same == (world_size, rank, group_name):
            return _context
        raise ValueError(
            f"this process is trainer {_context.rank} of {_context.world_size} in group "
            f"'{_context.group_name}' already: call shutdown_worker_group() first"
        )
    log.identify("trainer", rank)
    if insecure and rank == 0:
        _log.warning(
            "insecure", "insecure=True: traffic between machines is neither encrypted nor checked"
        )
    store = job_store(place, timeout)
    # A group must not read values that an earlier group of the same name published.
    prefix = f"khop/{group_name}"
    name = establish_generation(store, prefix, rank, world_size, timeout)
    rendezvous = StoreRendezvous(store, f"{prefix}/{name}", rank, world_size, timeout)
    context = WorkerContext(rendezvous, group_name, host or host_address(place.master), insecure)
    _context = context
    call_at_end(_leave_at_end)
    _log.info(
        "group-joined",
        f"trainer {rank} of {world_size} in group '{group_name}'",
        world_size=world_size,
        address=context.address,
    )
    return context


def enter(make: Callable[[], _Context], role: DistRole) -> _Context:
    """Create this process's context, which `get_context` returns from now on.

    Args:
        make: creates it.
        role: role of the process.

    Raises:
        RuntimeError: the process has a context already.
    """
    global _context  # noqa: PLW0603
    if _context is not None:
        _check_role(_context, role)
        raise RuntimeError(f"this process is {_context.worker_name} already")
    made = make()
    _context = made
    call_at_end(_leave_at_end)
    log.identify(role.name.lower(), made.rank)
    _log.info("client-joined" if role is DistRole.CLIENT else "server-started", made.worker_name)
    return made


def leave(role: DistRole, wait: bool = True) -> None:
    """End this process's context if it has this role; harmless if there is none.

    Args:
        role: the role.
        wait: wait for others that need this process.
    """
    global _context
    if _context is not None and _context.role is role:
        context, _context = _context, None
        context.close(wait)


def get_context() -> DistContext | None:
    """Return this process's context.

    Returns:
        That of `init_worker_group`, `init_client` or `init_server`; None before, and after leaving.

    Example:
        >>> context = init_worker_group()
        >>> get_context() is context
        True
    """
    return _context


def require_context() -> WorkerContext:
    """Return this trainer's context; create it from the environment if there is none yet.

    Raises:
        RuntimeError: this process has another role, or is a fork of a trainer of several.
    """
    if _context is None and _parents is not None and _parents.world_size > 1:
        raise RuntimeError(
            f"this process is a fork of {_parents.worker_name} (process {os.getppid()}), whose "
            "place in the job it does not have: for a loader of its own, with partitions of its "
            "own, call init_worker_group(world_size=1, rank=0) first"
        )
    if _context is None:
        return init_worker_group()
    _check_role(_context, DistRole.WORKER)
    assert isinstance(_context, WorkerContext)
    return _context


def _check_role(context: DistContext, role: DistRole) -> None:
    """Raise RuntimeError if a context has another role."""
    if context.role is not role:
        raise RuntimeError(
            f"this process is {_ROLES[context.role]} ('{context.worker_name}'), it cannot be "
            f"{_ROLES[role]} at the same time: {_ADVICE[context.role]}"
        )


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


def _place(world_size: int | None, rank: int | None) -> Place:
    """Return this process's place: of torch.distributed, else the caller, else the launcher."""
    if (world_size is None) != (rank is None):
        raise ValueError("give both world_size and rank, or neither")
    if world_size is None or rank is None:
        return _joined_place() or find_place() or Place("nothing", 0, 1)
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


def _leave_at_end(has_failed: bool) -> None:
    # A failed trainer does not wait for others: it must end at once, so that its launcher notices.
    if _context is not None:
        leave(_context.role, wait=not has_failed)


def _forget_parents_context() -> None:
    """Drop the context in a fork: rank, store connection and servers belong to the parent."""
    global _context, _parents
    if _context is not None:
        _context, _parents = None, _context


os.register_at_fork(after_in_child=_forget_parents_context)
