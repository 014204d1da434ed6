"""Values that trainers share through the job's torch.distributed store. Runs in trainers."""

from __future__ import annotations

import abc
import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.constants import default_pg_timeout

from khop.distributed.job.launch_environment import Place
from khop.distributed.job.polling import pauses
from khop.distributed.job.store_sockets import StoreSockets
from khop.errors import RendezvousError


class Rendezvous(abc.ABC):
    """Named values that trainers publish for each other: in a job's store, or on graph servers.

    Args:
        rank: rank of this trainer.
        world_size: number of trainers.
        timeout: seconds to wait for a trainer.
    """

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout

    @abc.abstractmethod
    def publish(self, name: str, value: Any) -> None:
        """Publish this trainer's value, anything that JSON can hold."""

    @abc.abstractmethod
    def wait_for(self, name: str, ranks: Iterable[int], what: str) -> dict[int, Any]:
        """Wait for the values of other trainers, and return them by rank.

        Args:
            name: name of the value.
            ranks: ranks of the trainers.
            what: action that publishes it, for the error message.

        Raises:
            RendezvousError: a trainer did not publish its value in time; names the trainers.
        """

    @abc.abstractmethod
    def poll(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that trainers have already published, by rank, without waiting.

        Raises:
            RendezvousError: the values are out of reach.
        """

    def all_gather(self, name: str, what: str) -> list[Any]:
        """Wait for the values of all trainers, by rank; arguments as those of `wait_for`."""
        values = self.wait_for(name, range(self.world_size), what)
        return [values[rank] for rank in range(self.world_size)]

    def _late(self, role: str, missing: Sequence[int], what: str) -> RendezvousError:
        return RendezvousError(
            f"{role} {self.rank} waited {self.timeout:.0f} s for {role}(s) {missing} to {what}; "
            f"they have ended, are late, or do not do so"
        )


class StoreRendezvous(Rendezvous):
    """Values in the job's torch.distributed store.

    Args:
        store: the job's store.
        prefix: prefix of all keys, so that groups do not collide.
        rank: rank of this trainer.
        world_size: number of trainers.
        timeout: seconds to wait for a trainer.
        sockets: sockets of a connection that is this object's alone. If None, it is shared.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        rank: int,
        world_size: int,
        timeout: float,
        sockets: StoreSockets | None = None,
    ) -> None:
        super().__init__(rank, world_size, timeout)
        self._store = store
        self._prefix = prefix
        self._sockets = sockets

    def separate(self) -> StoreRendezvous:
        """Return the same with a separate connection, for another thread.

        A connection serves one call at a time, which may wait for a minute. Stores of torch before
        2.8 cannot connect again: these are shared.
        """
        store: Any = self._store
        sockets = StoreSockets(store)
        with contextlib.suppress(AttributeError, RuntimeError), sockets:
            store = store.clone()
        return StoreRendezvous(
            store, self._prefix, self.rank, self.world_size, self.timeout, sockets
        )

    def disconnect(self) -> None:
        """End a separate connection: calls that wait in another thread fail at once."""
        if self._sockets is not None:
            self._sockets.shut_down()

    def own_store(self) -> Store:
        """Return a view of the store that only these trainers have written to."""
        return PrefixStore(f"{self._prefix}/torch", self._store)

    def _key(self, name: str, rank: int) -> str:
        return f"{self._prefix}/{name}/{rank}"

    def publish(self, name: str, value: Any) -> None:
        """Publish this trainer's value; see `Rendezvous`."""
        self._store.set(self._key(name, self.rank), json.dumps(value))

    def wait_for(self, name: str, ranks: Iterable[int], what: str) -> dict[int, Any]:
        """Wait for the values of other trainers; see `Rendezvous`."""
        ranks = list(ranks)
        for _ in pauses(self.timeout):
            if self._all_published(name, ranks):
                return self.poll(name, ranks)
        arrived = self.poll(name, ranks)
        raise self._late("trainer", [rank for rank in ranks if rank not in arrived], what)

    def poll(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values that are in the store; see `Rendezvous`."""
        try:
            keys = {rank: self._key(name, rank) for rank in ranks}
            known = {rank: key for rank, key in keys.items() if self._store.check([key])}
            return {rank: json.loads(self._store.get(key)) for rank, key in known.items()}
        except RuntimeError as error:
            raise self._store_has_gone(error) from None

    def all_published(self, name: str) -> bool:
        """Return whether all trainers have published their value; RendezvousError as `poll`."""
        return self._all_published(name, range(self.world_size))

    def _all_published(self, name: str, ranks: Iterable[int]) -> bool:
        keys = [self._key(name, rank) for rank in ranks]
        try:
            return not keys or bool(self._store.check(keys))
        except RuntimeError as error:
            raise self._store_has_gone(error) from None

    def _store_has_gone(self, error: RuntimeError) -> RendezvousError:
        return RendezvousError(f"trainer {self.rank} cannot reach the job's store: {error}")


def job_store(place: Place, timeout: float) -> Store:
    """Return the job's store: torch.distributed's if initialised, else one at trainer 0's address.

    Args:
        place: place of this trainer.
        timeout: seconds to wait for trainer 0.

    Raises:
        RendezvousError: several trainers without an address of the store, or it is unreachable.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    rank, world_size, address, port = place.rank, place.world_size, place.master, place.port
    if world_size == 1:
        return HashStore()
    if address is None or port is None:
        raise RendezvousError(
            f"trainers of a group of {world_size} cannot find each other: start them with "
            "torchrun or srun, or call torch.distributed.init_process_group first, or set "
            "MASTER_ADDR (the machine of trainer 0) and MASTER_PORT (a free port there) for all of "
            "them, with mpirun: -x MASTER_ADDR=... -x MASTER_PORT=29500"
        )
    agent_has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address,
            port,
            world_size,
            is_master=rank == 0 and not agent_has_store,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            # init_process_group may be called later with the same address.
            multi_tenant=True,
        )
        # From here on only a process group on this store uses the default; khop passes timeouts.
        store.set_timeout(default_pg_timeout)
        return store if place.job is None else PrefixStore(place.job, store)
    except RuntimeError as error:
        advice = "" if place.job is None else "; set MASTER_PORT if another program has this port"
        raise RendezvousError(
            f"trainer {rank} cannot reach the job's store at {address}:{port}: {error}{advice}"
        ) from None
