"""Role and rank of this process in its job. Any process with a role: trainer, client, server."""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from khop import log
from khop.distributed.membership.members import Membership
from khop.distributed.membership.polling import pauses
from khop.distributed.processes.exit_hooks import call_at_end
from khop.distributed.processes.hosts import host_identity
from khop.errors import RendezvousError

# Seconds that a trainer may take to end its servers when all have finished.
_LEAVING_SECONDS = 5.0


class DistRole(enum.Enum):
    """Role of a process in a job: trainer with a partition, graph server, or client of servers.

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
    """Role and rank of this process in its job.

    `init_worker_group`, `init_client` and `init_server` return one.

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

    _num_servers = 0
    _num_clients = 0

    def __init__(self, role: DistRole, world_size: int, rank: int, group_name: str) -> None:
        self.role = role
        self.world_size = world_size
        self.rank = rank
        self.group_name = group_name

    def __repr__(self) -> str:
        """Return text for Python's prompt: the rank, the number of processes, and the group."""
        rank = f"rank {self.rank} of {self.world_size}"
        return f"{type(self).__name__}({rank}, group '{self.group_name}')"

    @property
    def worker_name(self) -> str:
        """Name of this process: the group's name and the rank."""
        return f"{self.group_name}_{self.rank}"

    @property
    def global_world_size(self) -> int:
        """Number of processes of all roles: graph servers and their clients, or trainers."""
        return self._num_servers + self._num_clients or self.world_size

    @property
    def global_rank(self) -> int:
        """Rank of this process among the processes of all roles: servers come before clients."""
        return self.rank

    def is_worker(self) -> bool:
        """Return True if this process is a trainer that loads a partition."""
        return self.role is DistRole.WORKER

    def is_server(self) -> bool:
        """Return True if this process runs a graph server."""
        return self.role is DistRole.SERVER

    def is_client(self) -> bool:
        """Return True if this process is a trainer whose batches graph servers make."""
        return self.role is DistRole.CLIENT

    def num_servers(self) -> int:
        """Return the number of graph servers of the job."""
        return self._num_servers

    def num_clients(self) -> int:
        """Return the number of the graph servers' clients. 0 if any number may come and go."""
        return self._num_clients

    def close(self, wait: bool = True) -> None:
        """Leave the job: end this process's servers and connections.

        Args:
            wait: wait first for other processes that need this one (default: True).
        """
        raise NotImplementedError


class TrainerContext(DistContext):
    """Role and rank of a trainer in its job, and access to values that trainers share.

    Attributes:
        members: membership in the group of trainers: values that they share, leases, failures.

    Example:
        >>> context = init_worker_group()
        >>> isinstance(context, TrainerContext), context.rank
        (True, 0)
    """

    def __init__(self, role: DistRole, members: Membership, group_name: str) -> None:
        super().__init__(role, members.world_size, members.rank, group_name)
        self.members = members
        self._counts: dict[str, itertools.count[int]] = {}
        self._groups: weakref.WeakSet[Closable] = weakref.WeakSet()

    def next_name(self, prefix: str) -> str:
        """Return a new name for an object: 'loader-0', 'loader-1', ... for the prefix 'loader'.

        All trainers create these objects in the same order, so the names agree.

        :meta private:
        """
        return f"{prefix}-{next(self._counts.setdefault(prefix, itertools.count()))}"

    def close_before_leaving(self, group: Closable) -> None:
        """Register an object to close before this trainer leaves, if it still exists then.

        :meta private:
        """
        self._groups.add(group)

    def _close_groups(self) -> None:
        for group in list(self._groups):
            group.close()


class Closable(Protocol):
    """Object with a method `close`, for `TrainerContext.close_before_leaving`."""

    def close(self) -> None:
        """Release all resources. A second call does nothing."""


class WorkerContext(TrainerContext):
    """Role and rank of a trainer that loads a partition. `init_worker_group` returns it.

    Attributes:
        host: identity of the machine, equal for trainers that can share socket files.
        address: address at which other machines reach this one.
        insecure: True if traffic between machines is neither encrypted nor authenticated (CURVE).
        others_have_finished: True if all other trainers are known to have left the group.
        store: torch.distributed store that holds only values of these trainers. Use
            `init_process_group(..., store=context.store, rank=context.rank,
            world_size=context.world_size)` if trainers may be restarted: torchrun's own store
            (torch 2.5 and later) still has addresses of the earlier processes.

    Example:
        >>> context = init_worker_group()
        >>> context.insecure, context.rank
        (False, 0)
    """

    def __init__(
        self, members: Membership, store: Any, group_name: str, address: str, insecure: bool
    ) -> None:
        super().__init__(DistRole.WORKER, members, group_name)
        self.host = host_identity()
        self.address = address
        self.insecure = insecure
        self.store = store
        self._servers_to_keep: list[Callable[[], None]] = []
        self._uses_others = False
        self._is_closed = False
        self.others_have_finished = members.world_size == 1

    def keep_for_others(self, close: Callable[[], None]) -> None:
        """Register `close`, which ends a server. It is called when all trainers have finished."""
        self._servers_to_keep.append(close)

    def use_others(self) -> None:
        """Record that this trainer uses other trainers' servers, which stay until it has left."""
        self._uses_others = True

    def close(self, wait: bool = True) -> None:
        """Publish that this trainer leaves, then end its servers when all others have left, too.

        Trainer 0 leaves last, since the job's store may be in its process.

        Args:
            wait: wait for the other trainers, at most for the group's timeout.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._close_groups()
        takes_part = bool(self.members.others) and (
            self._uses_others or bool(self._servers_to_keep)
        )
        with contextlib.suppress(RuntimeError, RendezvousError):
            if takes_part:
                self.members.publish("goodbye", True)
            if wait and self._servers_to_keep:
                self.members.wait_for("goodbye", self.members.others, "finish")
                self.others_have_finished = True
        for close in self._servers_to_keep:
            close()
        self._servers_to_keep.clear()
        if takes_part:
            self._leave_store()
        self.members.close()

    def _leave_store(self) -> None:
        """Publish that this trainer needs torch's store no more. Trainer 0 waits for all."""
        with contextlib.suppress(RuntimeError, RendezvousError):
            self.members.leave()
            for _ in pauses(_LEAVING_SECONDS):
                waits = self.rank == 0 and self.others_have_finished
                if not waits or self.members.have_left(self.members.others):
                    return


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


def enter(make: Callable[[], _Context], role: DistRole) -> _Context:
    """Create the context (role and rank) of this process. `get_context` returns it from now on.

    Args:
        make: function that creates the context.
        role: role of the process.

    Raises:
        RuntimeError: the process has a context already.
    """
    if _context is not None:
        check_role(_context, role)
        raise RuntimeError(f"this process is {_context.worker_name} already")
    made = make()
    set_context(made)
    log.identify(role.name.lower(), made.rank)
    _log.info("client-joined" if role is DistRole.CLIENT else "server-started", made.worker_name)
    return made


def set_context(context: DistContext) -> None:
    """Set the context of this process, which `get_context` returns until the process leaves."""
    global _context  # noqa: PLW0603
    _context = context
    call_at_end(_leave_at_end)


def leave(role: DistRole, wait: bool = True) -> None:
    """Leave the job, if this process has the role `role`.

    Args:
        role: the role.
        wait: wait first for other processes that need this one (default: True).
    """
    global _context
    if _context is not None and _context.role is role:
        context, _context = _context, None
        context.close(wait)


def get_context() -> DistContext | None:
    """Return the context of this process: its role and rank in the job.

    Returns:
        The context of `init_worker_group`, `init_client` or `init_server`. None before, and after
        leaving.

    Example:
        >>> context = init_worker_group()
        >>> get_context() is context
        True
    """
    return _context


def parents_context() -> DistContext | None:
    """Return the context (role and rank) of the process that forked this one, or None."""
    return _parents


def check_role(context: DistContext, role: DistRole) -> None:
    """Raise RuntimeError if the process of `context` does not have the role `role`."""
    if context.role is not role:
        raise RuntimeError(
            f"this process is {_ROLES[context.role]} ('{context.worker_name}'), it cannot be "
            f"{_ROLES[role]} at the same time: {_ADVICE[context.role]}"
        )


def _leave_at_end(has_failed: bool) -> None:
    # A failed trainer does not wait for others: it must end at once, so that its launcher notices.
    if _context is not None:
        leave(_context.role, wait=not has_failed)


def _forget_parents_context() -> None:
    """Drop the context in a fork, since rank, connections and servers belong to the parent."""
    global _context, _parents
    if _context is not None:
        _context, _parents = None, _context


os.register_at_fork(after_in_child=_forget_parents_context)
