"""Pool of sampler processes: assigns batches to them, and restarts those that end.

Run by trainers (`sampling.pool`) and, for each session, by graph servers (`remote.server.session`),
which start processes and decide what is requested. Imports no torch.

When a sampler ends, its batches in flight are requested from the others at once: batches are
functions of their requests, so they are the same. A new process with a new arena replaces it. It
gets batches when it is ready, or at once if it is the only one.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence

from khop import log
from khop.channel.control import Message, Op
from khop.channel.layout import Layout
from khop.distributed.rpc.endpoint import EndpointUpdate
from khop.distributed.sampling.control_messages import BatchKey
from khop.distributed.sampling.process_handle import SamplerProcess, end_process, send_endpoint
from khop.errors import SamplerDiedError

_log = log.get(__name__)

# Exits on the same batch that end the loader. A second may happen by chance, if batches take long
# or samplers are killed often; a fourth does not.
_MAX_AT_A_BATCH = 4


class RestartPolicy:
    """Count of the restarts of a loader's samplers, with its limits.

    Args:
        max_restarts: maximum number of restarts.

    Attributes:
        num_restarts: number of restarts so far.

    Example:
        >>> policy = RestartPolicy(max_restarts=1)
        >>> policy.record_exit(None, in_flight=[])
        >>> policy.record_exit(None, in_flight=[])
        'samplers have been restarted 1 times; max_restarts bounds it'
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
            in_flight: keys of all batches in flight; exits on others are forgotten.
            name: name of the batch for the reason.

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
            return f"samplers have been restarted {self.num_restarts} times; max_restarts bounds it"
        self.num_restarts += 1
        return None


class ProcessPool:
    """Sampler processes of one loader, and the batches that they have to make.

    The owner starts processes: as long as `missing` is a number, it adds a process of that number.

    Args:
        num_samplers: number of processes.
        max_restarts: maximum number of restarts.
        request: requests batches from a sampler.
        session: name of the graph server's session that has the pool. If None, a trainer has it.

    Attributes:
        samplers: the processes that run, ordered by number.
    """

    def __init__(
        self,
        num_samplers: int,
        max_restarts: int,
        request: Callable[[SamplerProcess, Sequence[BatchKey]], None],
        session: str | None = None,
    ) -> None:
        self.samplers: list[SamplerProcess] = []
        self._num_samplers = num_samplers
        self._request = request
        self._session = session
        self._restart_policy = RestartPolicy(max_restarts)
        # Processes to start: number, and whether it replaces one that has ended.
        self._missing = deque((number, False) for number in range(num_samplers))
        # Batches in flight at samplers that have ended, while there is no other.
        self._unassigned: dict[BatchKey, None] = {}

    @property
    def num_restarts(self) -> int:
        """Number of restarts of samplers."""
        return self._restart_policy.num_restarts

    @property
    def missing(self) -> int | None:
        """Number of the next process to start; None if all run."""
        return self._missing[0][0] if self._missing else None

    @property
    def in_flight(self) -> set[BatchKey]:
        """Batches that were assigned and not delivered."""
        return {*self._unassigned, *(key for s in self.samplers for key in s.in_flight)}

    def add(self, sampler: SamplerProcess) -> None:
        """Add a process that was missing."""
        _, sampler.is_starting = self._missing.popleft()
        bisect.insort(self.samplers, sampler, key=lambda s: s.number)
        self._assign_rest()

    def replace(self, sampler: SamplerProcess, fresh: SamplerProcess) -> None:
        """Replace a process by a new one, and end it. Call while no batch is in flight."""
        self.samplers[self.samplers.index(sampler)] = fresh
        end_process(sampler.process)

    def least_loaded(self) -> SamplerProcess | None:
        """Return the sampler that `assign` would choose next; None if there is none."""
        return min(self.eligible(), key=_load, default=None)

    def eligible(self) -> list[SamplerProcess]:
        """Return the samplers to request batches from: those not starting, or all if all are."""
        return [s for s in self.samplers if not s.is_starting] or self.samplers

    def assign(self, keys: Iterable[BatchKey]) -> None:
        """Request each batch from the sampler with the fewest batches in flight."""
        eligible = self.eligible()
        if not eligible:
            self._unassigned.update(dict.fromkeys(keys))
            return
        wanted: dict[int, list[BatchKey]] = {}
        for key in keys:
            sampler = min(eligible, key=_load)
            sampler.in_flight[key] = None
            wanted.setdefault(sampler.number, []).append(key)
        for sampler in eligible:
            if sampler.number in wanted:
                self._request(sampler, wanted[sampler.number])

    def _assign_rest(self) -> None:
        keys, self._unassigned = self._unassigned, {}
        self.assign(keys)

    def forget(
        self, is_unwanted: Callable[[BatchKey], bool]
    ) -> list[tuple[SamplerProcess, BatchKey]]:
        """Remove batches in flight; return those removed, each with its sampler."""
        self._unassigned = {key: None for key in self._unassigned if not is_unwanted(key)}
        found = [(s, key) for s in self.samplers for key in s.in_flight if is_unwanted(key)]
        for sampler, key in found:
            del sampler.in_flight[key]
        return found

    def post(self, op: Op, payload: bytes) -> None:
        """Send a message to all samplers."""
        for sampler in self.samplers:
            sampler.process.line.post(op, payload)

    def relocate(self, part: int, update: EndpointUpdate) -> None:
        """Send an endpoint update of a partition to all samplers."""
        for sampler in self.samplers:
            send_endpoint(sampler.process, part, update)

    def messages(self, sampler: SamplerProcess) -> Iterator[Message]:
        """Yield the messages that a sampler has sent, but those about itself.

        If it has died, its batches are requested from the others, and its number is `missing`.

        Raises:
            SamplerDiedError: it has died and is not to be replaced. Its batches stay in flight.
            ProtocolError: a message is malformed.
        """
        line = sampler.process.line
        try:
            # The user may close the pool between two messages.
            while sampler in self.samplers and (message := line.receive()) is not None:
                if message.op is Op.LAYOUT:
                    sampler.learn(Layout.read_shared(message.descriptor()))
                elif message.op is Op.READY:
                    sampler.is_starting = False
                else:
                    yield message
        except EOFError:
            self._reap(sampler)

    def _reap(self, dead: SamplerProcess) -> None:
        """Remove a sampler that has ended; raise SamplerDiedError if it is not to be replaced."""
        process = dead.process
        status = process.exit_status()
        end_process(process)
        self.samplers.remove(dead)
        self._unassigned.update(dict.fromkeys(sorted(dead.in_flight)))
        if not process.ended_with_server:  # else not counted: a receiver replaces it
            task = process.last_task()
            task = task if task in dead.in_flight else None
            name = "" if task is None else f"batch {task[1]}"
            why = self._restart_policy.record_exit(task, self.in_flight, name)
            if why is not None:
                raise SamplerDiedError(self._exit_report(dead, status, why))
        _log.warning(
            "sampler-restarted",
            f"sampler {dead.number} (pid {process.pid}) {status}: it is started again",
            sampler=dead.number,
            pid=process.pid,
            owed=len(dead.in_flight),
            restarts=self.num_restarts,
            **({} if self._session is None else {"session": self._session}),
        )
        self._missing.appendleft((dead.number, True))
        self._assign_rest()

    def restart_all(self, in_flight: Iterable[BatchKey]) -> None:
        """End all processes, to be started again; no restart is counted.

        Args:
            in_flight: the batches that they have to make.
        """
        self._unassigned = dict.fromkeys(in_flight)
        self._missing = deque((number, True) for number in range(self._num_samplers))
        ended, self.samplers = self.samplers, []
        for sampler in ended:
            end_process(sampler.process)

    def _exit_report(self, dead: SamplerProcess, status: str, why: str) -> str:
        """Return a text with a sampler's exit status, batches in flight, current task and log."""
        task, tail = dead.process.last_task(), dead.process.log_tail()
        where = "" if self._session is None else " of the graph server"
        last = "It had worked on none" if task is None else f"It worked on batch {task[1]} last"
        due = sorted(batch for _, batch in dead.in_flight)
        lost = f"batches {due} were due" if due else "no batch was due"
        return (
            f"sampler process {dead.number} (pid {dead.process.pid}){where} {status} while "
            f"{lost}, and {why}. {last}. Killed processes often mean that memory ran out."
            + (f"\nThe end of its log:\n{tail}" if tail else "")
        )

    def close(self, wait: bool) -> None:
        """End the processes, and forget the batches in flight.

        Args:
            wait: return when they have ended.
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
