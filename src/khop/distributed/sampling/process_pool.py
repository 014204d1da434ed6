"""Pool of sampler processes: the owner of a loader's processes and of its batches in flight.

Run by trainers (`sampling.pool`) and, for each session, by graph servers (`remote.server.session`).
These decide which batches are requested, and how a process is started. The pool assigns batches to
samplers, reads their messages, and restarts samplers that have ended. Imports no torch.

When a sampler ends, its batches in flight are requested from the other samplers at once. A batch
depends only on its request, so it is the same from any sampler. A new process with a new arena
replaces the sampler. It gets batches when it is ready, or at once if no other sampler runs.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from khop import log
from khop.channel.control import Message, Op
from khop.channel.layout import Layout
from khop.distributed.rpc.endpoint import EndpointUpdate
from khop.distributed.sampling.control_messages import BatchKey
from khop.distributed.sampling.process_handle import SamplerProcess, end_process, send_endpoint
from khop.errors import SamplerDiedError
from khop.trace.recording import current

_log = log.get(__name__)
BatchT = TypeVar("BatchT")

# Number of exits on the same batch that ends the loader. Two may happen by chance, if batches take
# long or samplers are killed often. Four do not.
_MAX_AT_A_BATCH = 4


class EndpointSource(Protocol):
    """Source of new addresses (endpoints) of other partitions' servers."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are changes."""

    def changes(self) -> dict[int, EndpointUpdate]:
        """Return the new endpoints since the last call, by partition."""

    def latest(self, part: int) -> EndpointUpdate | None:
        """Return the last new endpoint of a partition, or None if it has not changed."""

    def look_for(self, part: int) -> None:
        """Start to look for the server of a partition, which is unreachable. Returns at once."""

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if a server of this trainer has been given up."""


class SamplerError(NamedTuple):
    """Error of making a batch, or of a sampler's start, as the sampler process described it."""

    content: dict[str, Any]


class RestartPolicy:
    """Count of the restarts of a loader's samplers, with its limits.

    Args:
        max_restarts: maximum number of restarts.

    Attributes:
        num_restarts: number of restarts so far.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self.num_restarts = 0
        self._exits: dict[Hashable, int] = {}

    def record_exit(
        self, task: Hashable | None, in_flight: Collection[Hashable], name: str = ""
    ) -> str | None:
        """Record that a sampler has ended, and decide whether another is started in its place.

        Args:
            task: batch that it worked on last, by any key that stays the same when the batch is
                requested again. If None, that is not known.
            in_flight: keys of all batches in flight. Exits on other batches are forgotten.
            name: name of the batch, for the returned reason.

        Returns:
            Reason for which there is no restart: `max_restarts` is exhausted, or four samplers
            died on one batch. None if the sampler is restarted.
        """
        self._exits = {known: n for known, n in self._exits.items() if known in in_flight}
        if task is not None and task in in_flight:
            self._exits[task] = self._exits.get(task, 0) + 1
            if self._exits[task] >= _MAX_AT_A_BATCH:
                return f"{_MAX_AT_A_BATCH} samplers have died at work on {name}"
        if self.num_restarts >= self._max_restarts:
            times = self.num_restarts
            return f"samplers have been restarted {times} times (max_restarts bounds it)"
        self.num_restarts += 1
        return None


class ProcessPool(Generic[BatchT]):
    """Sampler processes of one loader, and the batches that they have to make.

    Args:
        num_samplers: number of processes, all of which are `missing` at first.
        max_restarts: maximum number of restarts.
        request: requests batches from a sampler, with batches that it may draw ahead.
        read: reads a BATCH message of a sampler: key and batch.
        endpoints: source of new endpoints, for samplers that cannot reach a partition. If None, the
            owner calls `relocate` with each change, or endpoints do not change.
        session: name of the graph server's session that has the pool. If None, a trainer has it.

    Attributes:
        samplers: the processes that run, ordered by index.
    """

    def __init__(
        self,
        num_samplers: int,
        max_restarts: int,
        request: Callable[[SamplerProcess, Sequence[BatchKey], Sequence[BatchKey]], None],
        read: Callable[[SamplerProcess, Message], tuple[BatchKey, BatchT]],
        endpoints: EndpointSource | None = None,
        session: str | None = None,
    ) -> None:
        self.samplers: list[SamplerProcess] = []
        self._num_samplers = num_samplers
        self._request = request
        self._read = read
        self._endpoints = endpoints
        self._session = session
        self._restart_policy = RestartPolicy(max_restarts)
        # Processes to start: index, and whether it replaces one that has ended.
        self._missing = deque((index, False) for index in range(num_samplers))
        # Batches in flight at samplers that have ended, while no sampler runs: whether requested.
        self._unassigned: dict[BatchKey, bool] = {}

    @property
    def num_restarts(self) -> int:
        """Number of samplers that have been restarted."""
        return self._restart_policy.num_restarts

    @property
    def missing(self) -> int | None:
        """Index of the next process to start, or None if all run. The owner starts and adds it."""
        return self._missing[0][0] if self._missing else None

    @property
    def in_flight(self) -> set[BatchKey]:
        """Keys of the batches that were requested from samplers and not delivered."""
        return {*self._unassigned, *(key for s in self.samplers for key in s.in_flight)}

    def add(self, sampler: SamplerProcess) -> None:
        """Add a sampler process that its owner has started for the index `missing`."""
        _, sampler.is_starting = self._missing.popleft()
        bisect.insort(self.samplers, sampler, key=lambda s: s.index)
        self._assign_rest()

    def replace(self, sampler: SamplerProcess, fresh: SamplerProcess) -> None:
        """Replace a process by a new one, and end it. Call while no batch is in flight."""
        self.samplers[self.samplers.index(sampler)] = fresh
        end_process(sampler.process)

    def least_loaded(self) -> SamplerProcess | None:
        """Return the sampler with the fewest batches in flight. None if no sampler runs."""
        return min(self.eligible(), key=_load, default=None)

    def eligible(self) -> list[SamplerProcess]:
        """Return the samplers that may get batches: the ones that have started, else all."""
        return [s for s in self.samplers if not s.is_starting] or self.samplers

    def holder(self, key: BatchKey) -> SamplerProcess | None:
        """Return the sampler to which a batch in flight was assigned. None if there is none."""
        return next((s for s in self.samplers if key in s.in_flight), None)

    def assign(self, keys: Iterable[BatchKey], ahead: Iterable[BatchKey] = ()) -> None:
        """Assign batches to the samplers with the fewest batches in flight.

        Args:
            keys: batches to request. Batches that were assigned ahead stay with their samplers.
            ahead: batches that samplers may draw. They are requested later.
        """
        assigned_keys = {**dict.fromkeys(keys, True), **dict.fromkeys(ahead, False)}
        eligible = self.eligible()
        if not eligible:
            self._unassigned.update(assigned_keys)
            return
        assigned: dict[int, tuple[list[BatchKey], list[BatchKey]]] = {}
        for key, is_requested in assigned_keys.items():
            drawn_by = self.holder(key) if is_requested else None
            sampler = drawn_by or min(eligible, key=_load)
            sampler.in_flight[key] = is_requested
            assigned.setdefault(sampler.index, ([], []))[not is_requested].append(key)
        for sampler in self.samplers:
            if sampler.index in assigned:
                self._request(sampler, *assigned[sampler.index])

    def _assign_rest(self) -> None:
        rest, self._unassigned = self._unassigned, {}
        self.assign(
            [key for key, is_requested in rest.items() if is_requested],
            [key for key, is_requested in rest.items() if not is_requested],
        )

    def forget(
        self, is_unwanted: Callable[[BatchKey], bool]
    ) -> list[tuple[SamplerProcess, BatchKey]]:
        """Remove unwanted batches in flight. Return the key of each, with its sampler."""
        self._unassigned = {k: r for k, r in self._unassigned.items() if not is_unwanted(k)}
        removed = [(s, key) for s in self.samplers for key in s.in_flight if is_unwanted(key)]
        for sampler, key in removed:
            del sampler.in_flight[key]
        return removed

    def post(self, op: Op, payload: bytes) -> None:
        """Send a message (operation, payload) to all samplers."""
        for sampler in self.samplers:
            sampler.process.line.post(op, payload)

    def relocate(self, part: int, update: EndpointUpdate) -> None:
        """Send all samplers the new endpoint of a partition's server, or the reason of its end."""
        for sampler in self.samplers:
            send_endpoint(sampler.process, part, update)

    def receive(
        self, sampler: SamplerProcess
    ) -> Iterator[tuple[BatchKey | None, BatchT | SamplerError]]:
        """Read a sampler's messages. Yield its batches, and the errors in place of batches.

        An error with the key None: the sampler could not start, and a restart would fail, too. If
        the sampler has ended, the others get its batches, and its index is `missing`.

        Raises:
            SamplerDiedError: the sampler has ended and is not replaced. Its batches stay in flight.
            ProtocolError: a message is malformed.
        """
        line = sampler.process.line
        try:
            # The user may close the pool between two messages.
            while sampler in self.samplers and (message := line.receive()) is not None:
                if message.op is Op.BATCH:
                    yield self._read(sampler, message)
                elif message.op is Op.ERROR:
                    yield self._read_error(sampler, message)
                else:
                    self._read_state(sampler, message)
        except EOFError:
            self._reap(sampler)

    def _read_error(
        self, sampler: SamplerProcess, message: Message
    ) -> tuple[BatchKey | None, SamplerError]:
        epoch, batch = message.integers("epoch", "batch")
        error = SamplerError(message.json())
        if epoch is None or batch is None:
            return None, error
        sampler.in_flight.pop((epoch, batch), None)
        return (epoch, batch), error

    def _read_state(self, sampler: SamplerProcess, message: Message) -> None:
        """Process other messages than batches and errors: a layout, readiness, a lost server."""
        if message.op is Op.LAYOUT:
            layout = Layout.read_shared(message.descriptor())
            sampler.layouts[layout.id] = layout
        elif message.op is Op.READY:
            sampler.is_starting = False
            sampler.cache_bytes = message.integers("cache_bytes")[0] or 0
        elif message.op is Op.RECORDS:
            recording = current()
            if recording is not None:
                recording.add_message(sampler.process.pid, sampler.index, message.payload)
        elif message.op is Op.LOST and self._endpoints is not None:
            (part,) = message.integers("part")
            if part is not None:
                # A new sampler may lack the last update.
                update = self._endpoints.latest(part)
                if update is not None:
                    send_endpoint(sampler.process, part, update)
                self._endpoints.look_for(part)

    def _reap(self, dead: SamplerProcess) -> None:
        """Remove a sampler that has ended, and request its batches from the others.

        Raises:
            SamplerDiedError: it is not to be replaced.
        """
        process = dead.process
        status = process.exit_status()
        end_process(process)
        self.samplers.remove(dead)
        self._unassigned.update(sorted(dead.in_flight.items()))
        if not process.ended_with_server:  # else not counted: a receiver replaces it
            task = process.last_task()
            task = task if task in dead.in_flight else None
            name = "" if task is None else f"batch {task[1]}"
            why = self._restart_policy.record_exit(task, self.in_flight, name)
            if why is not None:
                raise SamplerDiedError(self._exit_report(dead, status, why))
        _log.warning(
            "sampler-restarted",
            f"sampler {dead.index} (pid {process.pid}) {status}: it is started again",
            sampler=dead.index,
            pid=process.pid,
            owed=len(dead.in_flight),
            restarts=self.num_restarts,
            **({} if self._session is None else {"session": self._session}),
        )
        self._missing.appendleft((dead.index, True))
        self._assign_rest()

    def restart_all(self, in_flight: Iterable[BatchKey]) -> None:
        """End all processes, to be started again. No restart is counted.

        Args:
            in_flight: the batches that the new processes have to make.
        """
        self._unassigned = dict.fromkeys(in_flight, True)
        self._missing = deque((index, True) for index in range(self._num_samplers))
        ended, self.samplers = self.samplers, []
        for sampler in ended:
            end_process(sampler.process)

    def _exit_report(self, dead: SamplerProcess, status: str, why: str) -> str:
        task, tail = dead.process.last_task(), dead.process.log_tail()
        where = "" if self._session is None else " of the graph server"
        last = "It had worked on none" if task is None else f"It worked on batch {task[1]} last"
        due = sorted(batch for (_, batch), is_requested in dead.in_flight.items() if is_requested)
        lost = f"batches {due} were due" if due else "no batch was due"
        return (
            f"sampler process {dead.index} (pid {dead.process.pid}){where} {status} while "
            f"{lost}, and {why}. {last}. Killed processes often mean that memory ran out."
            + (f"\nThe end of its log:\n{tail}" if tail else "")
        )

    def close(self, wait: bool) -> None:
        """End the processes, and forget the batches in flight.

        Args:
            wait: wait until they have ended.
        """
        ended = list(self.samplers)
        self.samplers.clear()
        self._missing.clear()
        self._unassigned.clear()
        for sampler in ended:
            sampler.process.line.close()  # all end at the same time
        for sampler in ended:
            if wait:
                sampler.process.close()
            else:
                end_process(sampler.process)


def _load(sampler: SamplerProcess) -> int:
    return len(sampler.in_flight)
