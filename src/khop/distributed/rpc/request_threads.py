"""Threads of a server that process requests in slices, in turns by user. Imports no torch.

The server's loop passes on requests that arrive (`put`) and sends replies (`replies`). A thread
takes a request of the user who has used the least processor time. It works on one slice of this
request (`FrameHandler.steps`), and puts the request back if it is not done. So a user with many or
expensive requests delays other users by one slice at most, even if there is one thread. A server
without threads of its own processes slices in its loop (`work`). A request that waits for rows of a
user's store leaves the queue until these are read, so that it holds no thread.

A request whose sender has disconnected ends at its next slice. `close` ends all requests.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import zmq

from khop import _native, log
from khop.data.tickets import Ticket
from khop.data.waiter import Waiter
from khop.distributed.rpc.fair_queue import FairQueue, Turn
from khop.distributed.rpc.frame_handler import refusal
from khop.distributed.rpc.identity import NOBODY, Source, descriptor_of, has_ended
from khop.distributed.rpc.limits import DEFAULT, Limits, check_unread
from khop.errors import ProtocolError

# Seconds that `close` waits for slices at work.
_CLOSING_SECONDS = 1.0
_log = log.get(__name__)

Reply = tuple[int, bytes, list[Any]]
"""Index of the peer's socket, its name there, and the frames of the reply."""


class Handler(Protocol):
    """Object that makes replies to requests, such as a `FrameHandler`."""

    stop: _native.StopFlag

    def steps(
        self, frames: list[Any], source: Source = ...
    ) -> Generator[list[Ticket] | None, None, list[Any]]:
        """Return the frames of a request's reply. Before, yield None, or tickets to wait for."""


@dataclass(slots=True, eq=False)
class _Job:
    """A queued request with its sender, and the generator that works on it.

    Attributes:
        front: index of the server's socket that it came from.
        peer: ZeroMQ's name of the sender.
        tickets: the reads that the generator waits for, if any.
        connection: descriptor and inode of the sender's connection, by which its end is noticed.
    """

    front: int
    peer: bytes
    frames: Sequence[zmq.Frame]
    source: Source
    steps: Generator[list[Ticket] | None, None, list[Any]] | None = None
    tickets: list[Ticket] | None = None
    connection: tuple[int, int] | None = None

    def is_abandoned(self) -> bool:
        """Return True if the connection over which the request came has been closed."""
        if self.connection is None and self.frames:
            self.connection = descriptor_of(self.frames[0])
            return self.connection is not None and self.connection[1] == -1
        return has_ended(self.connection)


class RequestThreads:
    """Threads of a server that process requests in slices, and the queue of the requests.

    Args:
        handler: makes the replies.
        num_threads: number of threads. If 0, the caller processes requests with `work`.
        limits: `waiting` and `waiting_bytes` bound the requests of a user. A peer that leaves more
            than `unread_bytes` unread gets errors.
        unread: returns the number of bytes that a peer has not read. Called in the threads.
        clock: returns the processor time of the calling thread, in seconds.
        completes: whether to finish a request that was begun, even if its sender has disconnected.

    Attributes:
        descriptor: descriptor that is readable when `replies` should be called.
    """

    def __init__(
        self,
        handler: Handler,
        num_threads: int,
        limits: Limits = DEFAULT,
        unread: Callable[[bytes], int] = lambda peer: 0,
        clock: Callable[[], float] = time.thread_time,
        completes: bool = False,
    ) -> None:
        self._completes = completes
        self._handler = handler
        self._most_unread, self._most_reading = limits.unread_bytes, limits.waiting
        self._unread = unread
        self._clock = clock
        self._queue: FairQueue[_Job] = FairQueue(limits.waiting, limits.waiting_bytes)
        self._changed = threading.Condition()
        self._is_closed = False
        self._replies: deque[Reply] = deque()
        self._reading: list[Turn[_Job]] = []  # requests that wait for row stores
        self._waiter = Waiter()
        self.descriptor, self.wake = self._waiter.descriptor, self._waiter.wake
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"requests-{i}")
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_work(self) -> bool:
        """True if the caller must call `work`: requests are queued, and there are no threads."""
        return not self._threads and bool(self._queue)

    def put(
        self,
        user: str,
        front: int,
        peer: bytes,
        frames: Sequence[zmq.Frame],
        is_bounded: bool = True,
        source: Source = NOBODY,
    ) -> bool:
        """Queue a request. Return False if `is_bounded` and the user has too many requests."""
        nbytes = sum(map(len, frames))
        job = _Job(front, peer, frames, source)
        with self._changed:
            reading = sum(turn.user == user for turn in self._reading)
            if is_bounded and reading >= self._most_reading:
                return False
            if not self._queue.put(user, job, nbytes, (front, peer), is_bounded):
                return False
            self._changed.notify()
        return True

    def work(self) -> None:
        """Process one slice of a queued request, if there is one. For servers without threads."""
        with self._changed:
            turn = self._queue.take()
        if turn is None:
            return
        job, began = turn.entry, self._clock()
        reply = self._advance(job)
        seconds = self._clock() - began
        with self._changed:
            if self._is_closed:
                return
            self._queue.charge(turn, seconds)
            if reply is None and job.tickets:
                self._reading.append(turn)
                self.wake()
            elif reply is None:
                self._queue.put_back(turn)
            elif reply:
                self._replies.append((job.front, job.peer, reply))
                if self._threads:
                    self.wake()

    def _advance(self, job: _Job) -> list[Any] | None:
        """Work on one slice of a request. Return the reply's frames when the request is done.

        None if it is not done. If the sender has disconnected, the reply has no frames.
        """
        is_kept = self._completes and job.steps is not None
        if not is_kept and job.is_abandoned():
            if job.steps is not None:
                job.steps.close()
            return []
        try:
            if job.steps is None:
                # Its sender may have stopped reading since the request was queued.
                check_unread(self._unread(job.peer), self._most_unread)
                job.steps = self._handler.steps([f.buffer for f in job.frames], job.source)
            job.tickets = next(job.steps)
            return None
        except StopIteration as end:
            reply: list[Any] = end.value
            return reply
        except ProtocolError as error:
            why = error
        except Exception as error:
            _log.error("unexpected", f"a request failed: {error!r}", exc_info=error)
            why = ProtocolError("the server failed at this request")
        return refusal([f.buffer for f in job.frames], why)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
            self.work()

    def replies(self) -> list[Reply]:
        """Return the finished replies. Requests whose rows have been read are queued again."""
        self._waiter.collect()
        with self._changed:
            reading, self._reading = self._reading, []
            for turn in reading:
                tickets = turn.entry.tickets or []
                if all(ticket.done for ticket in tickets):
                    self._queue.put_back(turn)
                    self._changed.notify()
                else:
                    self._waiter.add(tickets)
                    self._reading.append(turn)
        return [self._replies.popleft() for _ in range(len(self._replies))]

    def close(self) -> None:
        """Drop all requests, and end the threads. A second call does nothing."""
        if self._is_closed:
            return
        self._handler.stop.set()
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._reading.clear()
            self._changed.notify_all()
        end = time.monotonic() + _CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
