"""Threads of a server that process requests in slices, in turns by user. Imports no torch.

The server's loop passes on what arrives (`put`) and sends replies (`replies`). A thread takes the
request of the user who has used least processor time, works on one slice of it
(`FrameHandler.steps`) and puts it back if it is not done. So neither many requests nor expensive
ones of a user keep others waiting for longer than a slice, also where there is one thread. A server
without threads of its own processes slices in its loop (`work`).

A request whose sender has disconnected ends at its next slice. `close` ends all of them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import zmq

from khop import _native, log
from khop.distributed.rpc.fair_queue import FairQueue
from khop.distributed.rpc.frame_handler import refusal
from khop.distributed.rpc.identity import NOBODY, Source
from khop.distributed.rpc.limits import DEFAULT, Limits, check_unread
from khop.errors import ProtocolError

# Seconds that `close` waits for slices at work.
_CLOSING_SECONDS = 1.0
_log = log.get(__name__)

Reply = tuple[int, bytes, list[Any]]
"""Index of the peer's socket, its name there, and the frames of the reply."""


class Handler(Protocol):
    """Source of replies; see `FrameHandler`."""

    stop: _native.StopFlag

    def steps(self, frames: list[Any], source: Source = ...) -> Generator[None, None, list[Any]]:
        """Process a request in slices, and return the frames of the reply."""


class _Job:
    """A request, and the work on it."""

    __slots__ = ("_inode", "frames", "front", "peer", "source", "steps")

    def __init__(
        self, front: int, peer: bytes, frames: Sequence[zmq.Frame], source: Source
    ) -> None:
        self.source = source
        self.front = front
        self.peer = peer
        self.frames = frames
        self.steps: Generator[None, None, list[Any]] | None = None
        self._inode: int | None = None

    def is_abandoned(self) -> bool:
        """Return whether the connection that the request came from has been closed."""
        try:
            # libzmq attaches the descriptor of its connection, which another may have by now.
            descriptor = int(self.frames[0].get(zmq.SRCFD))
        except (IndexError, ValueError, zmq.ZMQError):
            return False  # unknown
        try:
            inode = os.fstat(descriptor).st_ino
        except OSError:
            return True
        if self._inode is None:
            self._inode = inode
        return inode != self._inode


class RequestThreads:
    """Threads that process requests, and the queue of these.

    Args:
        handler: makes the replies.
        num_threads: number of threads. If 0, the caller processes requests with `work`.
        limits: `waiting` and `waiting_bytes` bound the requests of a user; nothing is made for a
            peer with `unread_bytes` that it has not read.
        unread: returns how many bytes a peer has not read. Called in the threads.
        clock: processor time of the calling thread, in seconds.
        completes: whether a request that was begun is finished even if its sender has
            disconnected.

    Attributes:
        descriptor: readable when there are `replies`.
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
        self._most_unread = limits.unread_bytes
        self._unread = unread
        self._clock = clock
        self._queue: FairQueue[_Job] = FairQueue(limits.waiting, limits.waiting_bytes)
        self._changed = threading.Condition()
        self._is_closed = False
        self._replies: deque[Reply] = deque()
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._threads = [
            threading.Thread(target=self._run, daemon=True, name=f"requests-{i}")
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def has_work(self) -> bool:
        """True if `work` would do something."""
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
        """Queue a request; return whether there was room.

        Args:
            user: its user.
            front: index of the socket where it arrived.
            peer: ZeroMQ's name of the sender there.
            frames: its frames, as received.
            is_bounded: whether the bounds of a user apply.
            source: its sender, for handlers that need to know.
        """
        nbytes = sum(map(len, frames))
        job = _Job(front, peer, frames, source)
        with self._changed:
            if not self._queue.put(user, job, nbytes, (front, peer), is_bounded):
                return False
            self._changed.notify()
        return True

    def work(self) -> None:
        """Process one slice of one request, if there is any."""
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
            if reply is None:
                self._queue.put_back(turn)
            elif reply:
                self._replies.append((job.front, job.peer, reply))
                if self._threads:
                    self.wake()

    def _advance(self, job: _Job) -> list[Any] | None:
        """Process a slice; return the reply's frames, none if nobody waits, or None if not done."""
        is_kept = self._completes and job.steps is not None
        if not is_kept and job.is_abandoned():
            if job.steps is not None:
                job.steps.close()
            return []
        try:
            if job.steps is None:
                # Requests that wait were admitted when their sender had read more.
                check_unread(self._unread(job.peer), self._most_unread)
                frames = [frame.buffer for frame in job.frames]
                job.steps = self._handler.steps(frames, job.source)
            next(job.steps)
        except StopIteration as end:
            reply: list[Any] = end.value
            return reply
        except ProtocolError as error:
            return refusal([frame.buffer for frame in job.frames], error)
        except Exception as error:
            _log.error("unexpected", f"a request failed: {error!r}", exc_info=error)
            frames = [frame.buffer for frame in job.frames]
            return refusal(frames, ProtocolError("the server failed at this request"))
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
            self.work()

    def wake(self) -> None:
        """Make the descriptor readable, though there may be no reply."""
        os.eventfd_write(self.descriptor, 1)

    def replies(self) -> list[Reply]:
        """Return the replies that have been made."""
        if self._threads:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.descriptor)
        return [self._replies.popleft() for _ in range(len(self._replies))]

    def close(self) -> None:
        """Drop all requests, and end the threads; harmless if called again."""
        if self._is_closed:
            return
        self._handler.stop.set()
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()
        end = time.monotonic() + _CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._changed:
            os.close(self.descriptor)
