"""Handshake of a group's trainers in a store that may hold values of earlier processes.

A launcher that restarts trainers may keep the job's store: torchrun (`--max-restarts`) does, and
gives no common restart count, since each machine counts its own. So a value under a trainer's rank
may be that of a dead process. Here trainer 0 draws a random name for the group, every other trainer
draws one for itself, and trainer 0 writes the group's name under the trainer's: only a live process
can reply under both names.
"""

from __future__ import annotations

import secrets

from torch._C._distributed_c10d import Store

from khop.distributed.membership.polling import pauses
from khop.errors import RendezvousError


def establish_generation(
    store: Store, prefix: str, rank: int, world_size: int, timeout: float
) -> str:
    """Wait until all trainers of a group are present, and agree on a fresh name.

    Args:
        store: the job's store.
        prefix: prefix of all keys, that of the group.
        rank: rank of this trainer.
        world_size: number of trainers.
        timeout: seconds to wait for the others.

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
    """Run trainer 0's side: name the group, and wait until every other trainer has replied."""
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
    """Run the side of another trainer: register, reply to trainer 0, wait for its completion."""
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
