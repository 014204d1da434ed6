"""Stores of tensors of jobs at a graph server. Imports no torch.

A job is a group of clients, which opens a store at each partition's primary. Its requests name it.
Requests that write also have a token, which only a trainer of the job has. A store ends when all
clients of its job have left it, or have left the directory or are lost there.

The writer threads of all partitions run the requests. The server's loop ends stores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from khop import log
from khop.distributed.remote.messages import ClientEntry, incarnation_of
from khop.distributed.remote.statistics import JobStoreState
from khop.distributed.rpc.frame_handler import RequestType
from khop.distributed.rpc.protocol import check_empty
from khop.distributed.tensors.accounts import Account
from khop.distributed.tensors.shard import Shard, tensor_types
from khop.distributed.tensors.tensor_requests import (
    CloseStore,
    CreateTensor,
    DescribeStore,
    JobMember,
    OpenStore,
    PullRows,
    PushRows,
    ReadStep,
    Sender,
)
from khop.errors import ProtocolError, StateLostError
from khop.storage.part import Part
from khop.typing import Array

_MOST_JOBS, _MOST_MEMBERS = 64, 4096
_ROW_BYTES = 1 << 20
_PUSH_BYTES = 4 << 20
# Requests that any client may send. The others need a token.
_READS = (PullRows, ReadStep, DescribeStore)
_log = log.get(__name__)


@dataclass(eq=False)
class _Job:
    """Stores of a job, by partition.

    Attributes:
        seen: when each member was last seen in the directory, or the job was opened.
        known: members that have been seen in the directory.
        left: members that have left the job or the directory, or are lost.
    """

    members: list[JobMember]
    account: Account
    seen: list[float]
    shards: dict[int, Shard] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)


class JobStores:
    """Stores of all jobs at a graph server, and the bounds of their memory.

    Args:
        rank: rank of the server.
        limits: maximum bytes of rows and pushes, of all jobs and of one job.
        lease: seconds without news of a client after which it counts as lost.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        rank: int,
        limits: tuple[int, int],
        lease: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = f"graph server {rank}"
        self._total = Account(limits[0], self._server)
        self._limit_of_job = limits[1]
        self._lease = lease
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}

    def types(self, part: Part) -> list[RequestType]:
        """Return the table of the requests to the stores of a partition."""
        return [
            RequestType(OpenStore, "write", partial(self._open, part), carries=0),
            RequestType(CloseStore, "write", self._close, carries=0),
            *tensor_types(partial(self._shard_of, part.part), _PUSH_BYTES),
        ]

    # Writer threads -----------------------------------------------------------------------------

    def _open(self, part: Part, request: OpenStore, arrays: list[Array]) -> list[Array]:
        """Open the store of a job for a partition."""
        check_empty(arrays)
        name, members = request.sender.job, request.members
        _index_of(members, request.sender)
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                num_members = sum(len(known.members) for known in self._jobs.values())
                if len(self._jobs) >= _MOST_JOBS or num_members + len(members) > _MOST_MEMBERS:
                    raise ProtocolError(
                        f"{self._server} has the stores of {len(self._jobs)} jobs with "
                        f"{num_members} clients: end some"
                    )
                if not name.isprintable():
                    raise ProtocolError("the name of a job cannot be shown")
                account = Account(
                    self._limit_of_job, f"job '{name}' at {self._server}", self._total
                )
                job = _Job(members, account, [self._clock()] * len(members))
                self._jobs[name] = job
            elif job.members != members:
                raise ProtocolError(
                    f"{self._server} has a store of job '{name}' of clients "
                    f"{[member.rank for member in job.members]} already: choose another name "
                    "(job=), or wait until it has ended"
                )
            if part.part not in job.shards:
                job.shards[part.part] = Shard(part, job.account)
        return []

    def _close(self, request: CloseStore, arrays: list[Array]) -> list[Array]:
        """Note that a client has left its job."""
        check_empty(arrays)
        with self._lock:
            job = self._jobs.get(request.sender.job)
            if job is not None:
                job.left.add(_index_of(job.members, request.sender))
                self._end_if_left(request.sender.job, job)
        return []

    def _shard_of(self, part: int, request: Any) -> Shard:
        """Return the store that a request is for, once its sender has been checked."""
        sender: Sender | None = request.sender
        if sender is None:
            raise ProtocolError("a request to tensors of graph servers names no job")
        job = self._jobs.get(sender.job)
        shard = None if job is None else job.shards.get(part)
        if job is None or shard is None:
            if sender.token:
                raise StateLostError(
                    f"the store of job '{sender.job}' at {self._server} has ended: its clients "
                    "have left or were lost"
                )
            raise KeyError(f"{self._server} has no store of job '{sender.job}'")
        if isinstance(request, _READS):
            return shard
        index = _index_of(job.members, sender)
        if isinstance(request, PushRows) and request.rank != index:
            raise ProtocolError(f"trainer {index} of job '{sender.job}' pushes for {request.rank}")
        if isinstance(request, CreateTensor) and request.spec.rows.nbytes > _ROW_BYTES:
            raise ProtocolError(f"graph servers have rows of at most {_ROW_BYTES >> 20} MiB")
        return shard

    # The server's loop --------------------------------------------------------------------------

    def end_lost(self, clients: Mapping[int, ClientEntry]) -> None:
        """End the stores of jobs whose clients have all left. `clients` are the directory's."""
        with self._lock:
            for name, job in list(self._jobs.items()):
                for index, member in enumerate(job.members):
                    if self._is_lost(job, index, member, clients.get(member.rank)):
                        job.left.add(index)
                self._end_if_left(name, job)

    def _is_lost(self, job: _Job, index: int, member: JobMember, entry: ClientEntry | None) -> bool:
        now = self._clock()
        if entry is not None and entry.incarnation == member.incarnation:
            job.known.add(index)
            job.seen[index] = now
            return entry.gone
        # Another process has its rank. The table may also be older than the job.
        if entry is not None and index in job.known:
            return True
        return now - job.seen[index] > self._lease

    def _end_if_left(self, name: str, job: _Job) -> None:
        if len(job.left) < len(job.members):
            return
        del self._jobs[name]
        nbytes = job.account.nbytes
        job.account.close()
        text = f"the store of job '{name}' has ended: {nbytes:,} bytes are free"
        _log.info("store-ended", text)

    def states(self) -> list[JobStoreState]:
        """Return the state of each job's store, for statistics."""
        with self._lock:
            return [
                JobStoreState(
                    job=name,
                    clients=[member.rank for member in job.members],
                    tensors=max((s.num_tensors for s in job.shards.values()), default=0),
                    bytes=job.account.nbytes,
                    version=max((s.version for s in job.shards.values()), default=0),
                )
                for name, job in self._jobs.items()
            ]


def _index_of(members: list[JobMember], sender: Sender) -> int:
    """Return the sender's rank in its job. ProtocolError if it is no trainer of the job."""
    token = incarnation_of(sender.token)
    for index, member in enumerate(members):
        if member.token == token:
            return index
    raise ProtocolError(f"the sender is no trainer of job '{sender.job}': it can only read")
