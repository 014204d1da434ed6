"""Requests to other trainers' partitions by collective calls. Runs in trainers.

Trainers exchange requests in rounds (`trainer_group`): all requests of all trainers, then all
replies. Messages are the same as to partition servers, and the same handler answers them. So every
method works that works with servers, whatever number of rounds it needs. A trainer whose
batch is complete takes part in rounds without requests, until the batches of all are complete.
"""

from __future__ import annotations

import itertools
import os
import select
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from khop.channel.bundle import MOST_BYTES, Bundle, Frames, read_bundle
from khop.channel.message import pack, unpack
from khop.channel.pool import BufferPool, reuse_heaps
from khop.data.tickets import Ticket
from khop.data.waiter import waiter
from khop.distributed.loaders.trainer_group import Step, TrainerGroup
from khop.distributed.rpc.frame_handler import FrameHandler, refusal
from khop.distributed.rpc.part_requests import PartRequests
from khop.distributed.rpc.pending import Request
from khop.distributed.rpc.protocol import RequestFields, peek_part, rebuild_error, request_header
from khop.errors import ProtocolError
from khop.forks import check_process
from khop.trace.requests import RequestLog
from khop.typing import Array

# Flags of a trainer in a round: its batch will be complete, it sends something.
_DONE, _SENDS = 1, 2


class ExchangedParts(PartRequests):
    """Other trainers' partitions, by collective calls of all trainers. For one thread.

    Requests are sent in `step`, which all trainers enter together.

    Args:
        group: the trainers.
        handlers: {partition: handler} of the requests that other trainers send to this one.
        answering: {partition: rank of the trainer that answers this trainer's requests}.
    """

    def __init__(
        self,
        group: TrainerGroup,
        handlers: Mapping[int, FrameHandler],
        answering: Mapping[int, int],
    ) -> None:
        self._group, self._handlers, self._answering = group, handlers, answering
        reuse_heaps()
        self._pool = BufferPool()
        self._owner = os.getpid()
        self._step = Step(0, 0, 0)
        self._numbers = itertools.count(1)
        self._pending: dict[int, Request] = {}
        # For each trainer, messages that are not sent yet.
        self._requests: list[deque[Frames]] = [deque() for _ in range(group.size)]
        self._replies: list[deque[Frames]] = [deque() for _ in range(group.size)]
        self.poller = _Poller(self._pending)
        self.bytes_received = 0
        self.log: RequestLog | None = None

    @contextmanager
    def step(self, epoch: int, batch: int) -> Iterator[None]:
        """Return a context in which this trainer makes a batch. All trainers enter it together.

        It is left when all batches are complete. An error of a trainer is an error of all.

        Args:
            epoch: number of epochs that the loader has begun before.
            batch: number of batches that it has made in the epoch.

        Raises:
            ProtocolError: another trainer sent a malformed message.
            RendezvousError: another trainer has failed or ended, or does not take this batch.
        """
        self._step, earlier = Step(epoch, batch, 0), self._group.failure
        try:
            yield
            while not self._round(is_complete=True):
                pass
        except BaseException as error:
            first = self._group.failure
            self._group.fail(error)
            if earlier is None and first is not None and isinstance(error, Exception):
                raise first from None  # drawing ahead has hidden it
            raise

    def leave_epoch(self, epoch: int, num_batches: int) -> None:
        """Publish that this trainer has ended an epoch after `num_batches` batches."""
        self._group.leave_epoch(epoch, num_batches)

    def _send(self, part: int, message: RequestFields, arrays: list[Array]) -> Request:
        check_process(self._owner, "group of trainers", "make a loader there")
        request_id = next(self._numbers)
        timed = {} if self.log is None else {"timed": True}
        header = request_header(message, request_id, part=part, **timed)
        request = Request(part, pack(header, arrays), float("inf"))
        if self.log is not None:
            request.log_entry = self.log.log_request(part, message.op, len(arrays[0]))
        self._pending[request_id] = request
        self._requests[self._answering[part]].append(request.frames)
        return request

    def wait(self, tickets: Sequence[Ticket]) -> None:
        waiter().wait(tickets, self)

    def pump(self) -> None:
        """Take part in a round, if requests are in flight. An error ends all exchanges."""
        if self._pending:
            with self._group.publishing():
                self._round(is_complete=False)

    def _round(self, is_complete: bool) -> bool:
        """Exchange requests, then replies. Return True if the batches of all are complete.

        `is_complete` says that this trainer's batch will be, with the replies of this round.
        """
        step, self._step = self._step, self._step._replace(hop=self._step.hop + 1)
        bundles = [Bundle(queue) for queue in self._requests]
        is_complete = is_complete and not any(self._requests)
        flags = _DONE * is_complete + _SENDS * any(self._replies)
        requests, done, sends = self._exchange(bundles, step, flags)
        if not sends:
            return done
        for rank, messages in enumerate(requests):
            self._replies[rank] += map(self._answer, messages)
        bundles = [Bundle(queue) for queue in self._replies]
        flags = _DONE * (not any(self._replies))
        replies, all_sent, _ = self._exchange(bundles, step, flags)
        for rank, messages in enumerate(replies):
            for frames in messages:
                self._complete(rank, frames)
        return done and all_sent

    def _exchange(
        self, bundles: Sequence[Bundle], step: Step, flags: int
    ) -> tuple[list[list[list[Array]]], bool, bool]:
        """Send a bundle to each trainer.

        Returns:
            The messages of each trainer, whether all set `_DONE`, and whether any trainer sends or
            sets `_SENDS`.
        """
        group, sent = self._group, [bundle.nbytes for bundle in bundles]
        flags |= _SENDS * any(sent)
        received, others = group.send_counts(sent, step, MOST_BYTES, flags)
        done, sends = all(f & _DONE for f in others), any(f & _SENDS for f in others)
        if not sends:
            return [[] for _ in bundles], done, sends
        out = self._pool.empty((sum(sent),), np.dtype(np.uint8))
        for bundle, piece in zip(bundles, np.split(out, np.cumsum(sent)), strict=False):
            bundle.write(piece)
        data = group.send_all(torch.from_numpy(out), sent, received, step).numpy()
        data.flags.writeable = False
        pieces = np.split(data, np.cumsum(received)[:-1])
        names = [f"trainer {rank}" for rank in range(group.size)]
        return list(map(read_bundle, pieces, names)), done, sends

    def _answer(self, frames: list[Array]) -> list[Any]:
        """Return the frames of the reply to a request of another trainer."""
        part = peek_part(frames[0]) if frames else None
        handler = None if part is None else self._handlers.get(part)
        if handler is None:
            return refusal(frames, ProtocolError(f"trainer {self._group.rank} has other parts"))
        return handler(frames)

    def _complete(self, rank: int, frames: list[Array]) -> None:
        """Complete the request that a reply of the trainer `rank` belongs to."""
        header, arrays = unpack(frames)
        request_id = header.get("id")
        request = self._pending.pop(request_id, None) if type(request_id) is int else None
        if request is None or request.server is None or self._answering[request.server] != rank:
            raise ProtocolError(f"trainer {rank} sent a reply to no request")
        nbytes = sum(map(len, frames))
        self.bytes_received += nbytes
        if request.log_entry is not None and self.log is not None:
            self.log.log_reply(request.log_entry, header.get("served"), nbytes)
        if "error" in header:
            request.fail(rebuild_error(header["error"], f"trainer {rank}"))
        else:
            request.succeed(arrays)

    def start_again(self) -> None:
        for queue in (*self._requests, *self._replies):
            queue.clear()
        self._pending.clear()

    def close(self) -> None:
        if os.getpid() == self._owner:
            self._group.close()


class _Poller:
    """Poller of descriptors that does not wait while requests (`pending`) are to be exchanged."""

    def __init__(self, pending: Mapping[int, Request]) -> None:
        self._pending = pending
        self._poll = select.poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def poll(self, timeout: int) -> None:
        """Wait for a descriptor, at most `timeout` milliseconds. Return at once with requests."""
        if not self._pending:
            self._poll.poll(timeout)
