"""Handshake of a group's trainers in a store that may hold values of earlier processes.

A launcher that restarts trainers may keep the job's store: torchrun (`--max-restarts`) does, and
gives no common restart count, since each machine counts its own. So a value under a trainer's rank
may be that of a dead process. Here trainer 0 draws a random name for the group, every other trainer
draws one for itself, and trainer 0 writes the group's name under the trainer's: only a live process
can reply under both names.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch._C._distributed_c10d import Store

from khop.errors import RendezvousError

_MIN_PAUSE, _MAX_PAUSE = 0.005, 0.1
_ANSWER_AGAIN = 0.25


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
    end, pause = time.monotonic() + timeout, _MIN_PAUSE
    while True:
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
        if time.monotonic() > end:
            raise _missing(0, f"trainer(s) {sorted(missing)}", timeout)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)
    for name in present:
        store.set(f"{prefix}/complete/{name}", group)
    return group


def _answer(store: Store, prefix: str, rank: int, timeout: float) -> str:
    """Run the side of another trainer: register, reply to trainer 0, wait for its completion."""
    name = secrets.token_hex(8)
    end = time.monotonic() + timeout
    store.set(f"{prefix}/here/{rank}", name)
    if not _comes(store, f"{prefix}/requested/{name}", end):
        raise _missing(rank, "trainer 0", timeout)
    while time.monotonic() < end:  # repeated: trainer 0 may try again with another group name
        group = store.get(f"{prefix}/requested/{name}").decode()
        store.set(f"{prefix}/answered/{name}/{group}", "")
        if _comes(store, f"{prefix}/complete/{name}", min(end, time.monotonic() + _ANSWER_AGAIN)):
            return store.get(f"{prefix}/complete/{name}").decode()
    raise _missing(rank, "trainers that trainer 0 has not found either", timeout)


def _comes(store: Store, key: str, end: float) -> bool:
    """Wait for a key; return whether it was set in time.

    Raises:
        RuntimeError: the store is unreachable.
    """
    try:
        store.wait([key], timedelta(seconds=max(0.001, end - time.monotonic())))
    except RuntimeError:
        return bool(store.check([key]))
    return True


def _missing(rank: int, whom: str, timeout: float) -> RendezvousError:
    return RendezvousError(
        f"trainer {rank} waited {timeout:.0f} s for {whom} to call init_worker_group(); they have "
        "ended, are late, or do not do so"
    )
