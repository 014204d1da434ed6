"""Store of values and leases of trainers, in torch.distributed's store. Runs in trainers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.constants import default_pg_timeout

from khop.distributed.job.cluster_environment import Place
from khop.distributed.membership.member_store import MemberStore, Sighting
from khop.errors import RendezvousError


class StoreSockets:
    """Finder of the sockets that torch's store opens in a `with` block, to close them later.

    A call of torch's store waits in C++ for as long as the network takes, and nothing in its
    interface ends it. If the call returns after the end of Python, torch takes the interpreter's
    lock in a destructor. Python 3.13 and earlier end the thread there, which C++ does not allow:
    the process aborts ("terminate called without an active exception"). So a thread that calls the
    store has a connection of its own, whose sockets are shut down before the interpreter ends.

    No socket is known if another thread opens one at the same time, or if the block raises an
    error.

    Args:
        store: torch's store. A store without a port has no sockets.
    """

    def __init__(self, store: Any) -> None:
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        self._port = getattr(store, "port", None)
        self._before: dict[int, int] = {}
        self._sockets: dict[int, int] = {}

    def __enter__(self) -> StoreSockets:
        self._before = self._connected()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        after = self._connected()
        new = {fd: inode for fd, inode in after.items() if self._before.get(fd) != inode}
        if error_type is None and len(new) == 1:
            self._sockets = new

    @property
    def has_none(self) -> bool:
        """True if the store is reached without a network, so that its calls never wait long."""
        return self._port is None

    def _connected(self) -> dict[int, int]:
        """Return {descriptor: inode} of this process's sockets that are connected to the store."""
        if self._port is None:
            return {}
        connected = {}
        for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            for opened in _opened(descriptor):
                with contextlib.suppress(OSError):  # not connected
                    if opened.getpeername()[1:2] == (self._port,):
                        connected[descriptor] = os.fstat(opened.fileno()).st_ino
        return connected

    def shut_down(self) -> None:
        """Close the connections to the store. A call that waits for the store fails at once."""
        for descriptor, inode in self._sockets.items():
            for opened in _opened(descriptor):
                with contextlib.suppress(OSError):  # ended already
                    if os.fstat(opened.fileno()).st_ino == inode:
                        opened.shutdown(socket.SHUT_RDWR)


def _opened(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket object over a copy of the descriptor, if the descriptor is a socket."""
    try:
        own = os.dup(descriptor)
    except OSError:  # closed meanwhile
        return
    try:
        opened = socket.socket(fileno=own)
    except OSError:  # no socket
        os.close(own)
        return
    with opened:
        yield opened


class TorchStore(MemberStore):
    """Store of values and leases of trainers, in torch's store over a separate connection.

    A connection serves one call at a time, and the process group's calls may wait for a minute.
    Stores of torch before 2.8 cannot connect again, so they are shared.

    Args:
        store: the job's store.
        prefix: prefix of all keys, so that groups do not collide.
        rank: rank of this trainer.
    """

    role = "trainer"

    def __init__(self, store: Store, prefix: str, rank: int) -> None:
        cloned: Any = store
        self._sockets = StoreSockets(store)
        with contextlib.suppress(AttributeError, RuntimeError), self._sockets:
            cloned = cloned.clone()
        self._store: Store = cloned
        self._prefix = prefix
        self._rank = rank
        self._where = f"process {os.getpid()} on {socket.gethostname()}"
        self.is_bounded = self._sockets.has_none

    def _key(self, name: str, rank: int) -> str:
        return f"{self._prefix}/{name}/{rank}"

    def put(self, name: str, value: Any) -> None:
        """Publish a value of this trainer under a name. JSON must be able to hold it."""
        with self._reached():
            self._store.set(self._key(name, self._rank), json.dumps(value))

    def announce(self, name: str, value: Any) -> None:
        """Publish a value that few trainers have, and that others read repeatedly."""
        self.put(name, value)
        with self._reached():
            self._store.set(f"{self._prefix}/{name}", "")

    def announced(self, name: str, ranks: Sequence[int]) -> dict[int, Any]:
        """Return announced values `name` by rank. Makes one call of the store if there are none."""
        with self._reached():
            is_any = self._store.check([f"{self._prefix}/{name}"])
        return self.get(name, ranks) if is_any else {}

    def get(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        """Return the values `name` that these trainers have published, by rank, without waiting."""
        keys = {rank: self._key(name, rank) for rank in ranks}
        with self._reached():
            known = {rank: key for rank, key in keys.items() if self._store.check([key])}
            return {rank: json.loads(self._store.get(key)) for rank, key in known.items()}

    def get_all(self, name: str, ranks: Sequence[int], seconds: float) -> dict[int, Any]:
        """Return the values `name` of these ranks, or {} if one is missing. Ignores `seconds`."""
        del seconds  # a wait in the store would keep other calls waiting
        with self._reached():
            is_there = not ranks or self._store.check([self._key(name, rank) for rank in ranks])
        return self.get(name, ranks) if is_there else {}

    def delete(self, name: str) -> None:
        """Delete this trainer's value `name` from the store."""
        with self._reached():
            self._store.delete_key(self._key(name, self._rank))

    def renew(self, renewals: int, has_left: bool = False) -> None:
        """Record a sign of life of a trainer, number `renewals`, or that it leaves (`has_left`)."""
        self.put("lease", [renewals, has_left, self._where])

    def sightings(self, ranks: Iterable[int]) -> dict[int, Sighting]:
        """Return records of trainers' signs of life, by rank. Trainers without any are left out."""
        return {
            rank: Sighting(renewals, None, has_left, where)
            for rank, (renewals, has_left, where) in self.get("lease", ranks).items()
        }

    def disconnect(self) -> None:
        """Close the connection to the store, unless other code of this process uses it, too."""
        self._sockets.shut_down()

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RendezvousError(
                f"trainer {self._rank} cannot reach the job's store: {error}"
            ) from None


def job_store(launched: Place, timeout: float) -> Store:
    """Return torch.distributed's store if it is initialised, else one at trainer 0's address.

    Args:
        launched: rank of this trainer and address of trainer 0.
        timeout: seconds to wait for trainer 0.

    Raises:
        RendezvousError: there are several trainers and no address, or the store is unreachable.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    _, rank, world_size, address, port, job = launched
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
        # Only a process group on this store uses the default from here on: khop passes timeouts.
        store.set_timeout(default_pg_timeout)
        return store if job is None else PrefixStore(job, store)
    except RuntimeError as error:
        advice = "" if job is None else " (set MASTER_PORT if another program has this port)"
        raise RendezvousError(
            f"trainer {rank} cannot reach the job's store at {address}:{port}: {error}{advice}"
        ) from None
