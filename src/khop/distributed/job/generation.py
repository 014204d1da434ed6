"""The trainers of a group find each other, in a store that may hold what others have said before.

Who starts trainers again may keep the job's store: torchrun (`--max-restarts`) does, and does not
tell how often it has, since each machine counts its own restarts. So a value under a trainer's rank
may be that of a process that has ended. Here the first trainer draws a name for the group and asks
each of the others, by a name that this one has drawn, whether it is there; only a process that
lives can answer to both names.
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
    """Waits until all trainers of a group are there.

    Args:
        store: the job's store.
        prefix: of all keys; that of the group.
        rank: this trainer.
        world_size: number of trainers.
        timeout: seconds to wait for the others.

    Returns:
        A name that no group had before, the same for all of its trainers.

    Raises:
        RendezvousError: trainers did not come in time, or the store has gone.
    """
    try:
        if rank == 0:
            return _call(store, prefix, world_size, timeout)
        return _answer(store, prefix, rank, timeout)
    except RuntimeError as error:
        raise RendezvousError(f"trainer {rank} cannot reach the job's store: {error}") from None


def _call(store: Store, prefix: str, world_size: int, timeout: float) -> str:
    """What the first trainer does."""
    group = secrets.token_hex(8)
    missing, asked, present = set(range(1, world_size)), set[str](), list[str]()
    end, pause = time.monotonic() + timeout, _MIN_PAUSE
    while True:
        for rank in sorted(missing):
            if not store.check([f"{prefix}/here/{rank}"]):
                continue
            name = store.get(f"{prefix}/here/{rank}").decode()
            if name not in asked:
                store.set(f"{prefix}/asked/{name}", group)
                asked.add(name)
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
    """What the other trainers do."""
    name = secrets.token_hex(8)
    end = time.monotonic() + timeout
    store.set(f"{prefix}/here/{rank}", name)
    if not _comes(store, f"{prefix}/asked/{name}", end):
        raise _missing(rank, "trainer 0", timeout)
    while time.monotonic() < end:  # again and again: trainer 0 may try a second time
        group = store.get(f"{prefix}/asked/{name}").decode()
        store.set(f"{prefix}/answered/{name}/{group}", "")
        if _comes(store, f"{prefix}/complete/{name}", min(end, time.monotonic() + _ANSWER_AGAIN)):
            return store.get(f"{prefix}/complete/{name}").decode()
    raise _missing(rank, "trainers that trainer 0 has not found either", timeout)


def _comes(store: Store, key: str, end: float) -> bool:
    """Waits for a key; returns whether it came.

    Raises:
        RuntimeError: the store has gone.
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
