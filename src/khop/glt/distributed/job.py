"""GLT's functions to join and leave groups of trainers or clients, by khop's functions.

GLT's scripts pass the address of a group after `init_worker_group`: to `init_rpc` or a loader. khop
needs an address to join: torch.distributed's store. So a process joins at once if a launcher or
torch.distributed provides the store, and else when the script passes an address.
"""

from __future__ import annotations

import os
from typing import Any

import torch.distributed

from khop import distributed as core
from khop.distributed import DistContext, DistRole
from khop.distributed.job.context import TrainerContext

_pending: DistContext | None = None
_num_clients = 0


def init_worker_group(
    world_size: int | None = None, rank: int | None = None, group_name: str | None = None
) -> None:
    """Make this process one of the trainers, see `khop.distributed.init_worker_group`.

    Args:
        world_size: number of trainers. If None, the launcher's.
        rank: rank of this trainer.
        group_name: name of the group.
    """
    global _pending  # noqa: PLW0603
    if world_size is None or rank is None or world_size == 1 or _knows_store():
        core.init_worker_group(world_size, rank, group_name)
    else:
        _pending = DistContext(DistRole.WORKER, world_size, rank, group_name or "khop-trainers")


def _knows_store() -> bool:
    return torch.distributed.is_initialized() or "MASTER_ADDR" in os.environ


def join(master_addr: str | None = None, master_port: int | str | None = None) -> None:
    """Join the group of trainers that `init_worker_group` named, unless this process has joined.

    Args:
        master_addr: host of trainer 0. If None: $MASTER_ADDR.
        master_port: a free port on this host. If None: $MASTER_PORT.

    Raises:
        ValueError: no address is known.
        RendezvousError: another trainer did not join in time.
    """
    global _pending  # noqa: PLW0603
    waiting = _pending
    if waiting is None or core.get_context() is not None:
        return
    if not _knows_store():
        if master_addr is None or master_port is None:
            raise ValueError(
                "the trainers' address is not known: call init_rpc(master_addr, master_port), give "
                "both in the loader's worker_options, or set MASTER_ADDR and MASTER_PORT"
            )
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = master_addr, str(master_port)
    core.init_worker_group(waiting.world_size, waiting.rank, waiting.group_name)
    _pending = None


def get_context() -> DistContext | None:
    """Return this process's role, rank and world size, or None before any `init_...`."""
    return core.get_context() or _pending


def init_client(
    num_servers: int,
    num_clients: int,
    client_rank: int,
    master_addr: str,
    master_port: int | str,
    num_rpc_threads: int = 4,
    client_group_name: str | None = None,
    is_dynamic: bool = False,
    **kwargs: Any,
) -> None:
    """Join graph servers as a client. Arguments are the ones of `khop.distributed.init_client`."""
    global _num_clients  # noqa: PLW0603
    core.init_client(
        num_servers,
        num_clients,
        client_rank,
        master_addr,
        master_port,
        num_rpc_threads,
        client_group_name,
        is_dynamic,
        **kwargs,
    )
    _num_clients = num_clients


shutdown_client = core.shutdown_client


def assigned_servers() -> list[int]:
    """Return the ranks of this client's default servers, which are divided among clients."""
    context = core.get_context()
    assert context is not None
    servers, clients = context.num_servers(), max(_num_clients, 1)
    if clients >= servers:
        return [context.rank % servers]
    return list(range(context.rank, servers, clients))


def init_rpc(
    master_addr: str,
    master_port: int | str,
    num_rpc_threads: int = 16,
    rpc_timeout: float = 180,
    **kwargs: object,
) -> None:
    """Join the group of trainers that `init_worker_group` named, at trainer 0's address."""
    del num_rpc_threads, rpc_timeout, kwargs
    join(master_addr, master_port)


def rpc_is_initialized() -> bool:
    """Return True if this process has joined its group of trainers or clients."""
    return core.get_context() is not None


def shutdown_rpc(graceful: bool = True) -> None:
    """Leave the group of trainers. With `graceful`, wait for the other trainers first."""
    core.shutdown_worker_group(graceful)


def get_rpc_master_addr() -> str | None:
    """Return the host of trainer 0, or None if it is not known."""
    return os.environ.get("MASTER_ADDR")


def get_rpc_master_port() -> int | None:
    """Return the port of the trainers' store, or None if it is not known."""
    port = os.environ.get("MASTER_PORT")
    return None if port is None else int(port)


def all_gather(obj: Any, timeout: float | None = None) -> dict[str, Any]:
    """Return the values of all trainers, or clients, by name.

    Args:
        obj: this process's value, anything that JSON can hold.
        timeout: accepted, not needed: the group has one.

    Raises:
        RuntimeError: this process has not joined a group.
        ValueError: the number of clients varies, and `init_client` did not get `num_clients`.
        RendezvousError: a trainer did not call this function in time.
    """
    del timeout
    join()
    context = core.get_context()
    if not isinstance(context, TrainerContext):
        raise RuntimeError(
            "this process is no trainer: call init_worker_group or init_client first"
        )
    count = context.world_size or _num_clients
    if count == 0:
        raise ValueError(
            "how many clients there are is not known: pass num_clients to init_client, with "
            "is_dynamic=True, too"
        )
    name = context.next_name("glt-all-gather")
    context.members.publish(name, obj)
    values = context.members.wait_for(name, range(count), "call all_gather")
    return {f"{context.group_name}_{rank}": values[rank] for rank in range(count)}


def barrier(timeout: float | None = None) -> None:
    """Wait until all trainers, or clients, have called this. Raises as `all_gather` does."""
    all_gather(None, timeout)


global_all_gather = all_gather
global_barrier = barrier
