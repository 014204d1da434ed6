"""Process group of trainers that make batches together, and its exchanges of rows.

Runs in trainers.

An exchange is a collective call: a trainer that has ended, has left the epoch or is at another step
would block all others. So each call is watched. Trainers renew leases and publish early ends in the
job's store (`membership.barrier`). Exchanged counts carry their step, and each wait has a timeout.
The gloo group ends with the loader, and before the trainer leaves the job. Gloo's threads hold
tensors for a moment after a call has returned, and must not free them while the interpreter ends.
A group of NCCL exchanges tensors of the current GPU. Others are copied to it and back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from khop.distributed.job.context import WorkerContext
from khop.distributed.membership.barrier import Barrier
from khop.errors import ProtocolError, RendezvousError
from khop.interrupts import raise_dropped

# Seconds between looks for trainers that have failed or left, while a call waits.
_LOOK_SECONDS = 0.25
# Seconds between looks whether a call on a GPU is complete.
_GPU_PAUSE = 50e-6
# Seconds in which a trainer renews its lease, or has ended, once a connection has been lost.
_SILENCE_SECONDS = 4.0


class Step(NamedTuple):
    """Step of making a batch. All trainers take the same steps, in order.

    Attributes:
        epoch: number of epochs that the loader has begun before.
        batch: index of the batch in the epoch.
        hop: index of the hop, or of the round of requests.
    """

    epoch: int
    batch: int
    hop: int


class TrainerGroup:
    """Process group of all trainers of a job, for the exchanges of one loader.

    All trainers create it together. After an error it cannot be used again.

    Args:
        context: the trainers' job.
        group: process group of all trainers. If None, a new one, with gloo.
        timeout: seconds that an exchange may wait for other trainers.

    Attributes:
        rank: rank of this trainer.
        size: number of trainers.
        failure: the first error of an exchange, or of `fail`, after which all exchanges fail.

    Raises:
        RuntimeError: torch.distributed is not initialised, or counts trainers in another way.
    """

    def __init__(
        self, context: WorkerContext, group: dist.ProcessGroup | None, timeout: float
    ) -> None:
        check_initialized()
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if (self.rank, self.size) != (context.rank, context.world_size):
            raise RuntimeError(
                f"the process group has this trainer as rank {self.rank} of {self.size}, but its "
                f"job as rank {context.rank} of {context.world_size}: pass a group of all trainers "
                "in the order of their ranks"
            )
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._timeout = timeout
        self._name = context.next_name("exchange")
        self._members = context.members
        self._barrier = Barrier(context.members, self._name)
        self.failure: BaseException | None = None
        self._pending: dist.Work | None = None
        self._is_own = group is None
        limit = timedelta(seconds=timeout)
        self._group = dist.new_group(backend="gloo", timeout=limit) if self._is_own else group
        self._uses_gpu = dist.get_backend(self._group) == "nccl"
        self._barrier.start()
        context.close_before_leaving(self)

    def send_all(
        self, rows: Tensor, sent: list[int], received: list[int], step: Step | None = None
    ) -> Tensor:
        """Send rows to all trainers, and return the rows that they have sent, on the same device.

        Args:
            rows: [n, ...] rows, trainer by trainer.
            sent: number of rows for each trainer.
            received: number of rows from each trainer.
            step: the step, if the exchange belongs to the drawing of a batch.

        Raises:
            RendezvousError: a trainer has ended, failed or left the epoch, or is too late.
        """
        if self.failure is not None:
            raise RendezvousError(f"an earlier exchange failed: {self.failure!r}")
        if self._group is None:
            raise RendezvousError("this loader has been shut down, or its trainer has left the job")
        own_device, rows = rows.device, rows.to("cuda" if self._uses_gpu else "cpu").contiguous()
        out = rows.new_empty((sum(received), *rows.shape[1:]))
        try:
            work = dist.all_to_all_single(
                out, rows, received, sent, group=self._group, async_op=True
            )
            self._pending = work
            self._wait(work, step)
            self._pending = None
        except RendezvousError as error:
            self.fail(error)
            raise
        except RuntimeError as error:
            failure = self._lost(error)
            self.fail(failure)
            raise failure from None
        except BaseException:  # the call goes on: those that follow would not fit
            self.failure = RendezvousError("it was interrupted")
            raise
        return out.to(own_device)

    def send_counts(
        self, sent: list[int], step: Step, most: int, flags: int = 0
    ) -> tuple[list[int], list[int]]:
        """Send a number and flags to each trainer. Return the numbers and the flags of each.

        Args:
            sent: the number for each trainer.
            step: the step.
            most: maximum number that another trainer may send.
            flags: the flags, the same for all trainers.

        Raises:
            ProtocolError: a trainer has sent a number below 0 or above `most`.
            RendezvousError: a trainer is at another step, or as for `send_all`.
        """
        numbers = self.send_numbers([[count, flags] for count in sent], step, [most])
        return [count for count, _ in numbers], [flag for _, flag in numbers]

    def send_numbers(
        self, sent: Sequence[Sequence[int]], step: Step, most: Sequence[int]
    ) -> list[list[int]]:
        """Send equally many numbers to each trainer. Return the numbers of each.

        Args:
            sent: the numbers for each trainer: counts, and others behind them.
            step: the step.
            most: maximum of each count that another trainer may send.

        Raises:
            ProtocolError: a trainer has sent a count below 0 or above its maximum.
            RendezvousError: a trainer is at another step, or as for `send_all`.
        """
        one = [1] * self.size
        rows = torch.tensor([[*step, *numbers] for numbers in sent])
        failure: Exception | None = None
        received = []
        for rank, numbers in enumerate(self.send_all(rows, one, one, step).tolist()):
            theirs = Step(*numbers[:3])
            received.append(numbers[3:])
            if theirs != step:
                failure = RendezvousError(
                    f"trainers have to take each batch together, but trainer {rank} is at "
                    f"{_where(theirs)}, trainer {self.rank} at {_where(step)}"
                )
                continue
            for count, limit in zip(numbers[3:], most, strict=False):
                if not 0 <= count <= limit:
                    failure = ProtocolError(
                        f"trainer {rank} announced {count} rows, not 0 to {limit}"
                    )
        if failure is not None:
            self.fail(failure)
            raise failure
        return received

    def leave_epoch(self, epoch: int, num_batches: int) -> None:
        """Publish that this trainer leaves an epoch after `num_batches` batches."""
        if self._group is not None and self._others:
            with contextlib.suppress(RuntimeError):
                self._members.publish(f"{self._name}/left", [epoch, num_batches])

    def _wait(self, work: dist.Work, step: Step | None) -> None:
        """Wait for an exchange of rows. Check at intervals that the other trainers can still come.

        Python's signal handlers run between these checks.

        Raises:
            RendezvousError: a trainer has ended, failed or left the epoch, or is too late.
        """
        end = time.monotonic() + self._timeout
        look = time.monotonic() + _LOOK_SECONDS
        while not work.is_completed():
            if self._uses_gpu:  # its wait would return at once: it makes the stream wait
                time.sleep(_GPU_PAUSE)
                if time.monotonic() < look:
                    continue
                look = time.monotonic() + _LOOK_SECONDS
            else:
                with contextlib.suppress(RuntimeError):  # the time is over
                    work.wait(timedelta(seconds=_LOOK_SECONDS))
            if work.is_completed():
                break
            raise_dropped()
            self._barrier.check()
            if step is not None:
                self._check_left(step)
            if time.monotonic() > end:
                raise RendezvousError(
                    f"trainer {self.rank} waited {self._timeout:g} s for others to exchange rows"
                    f"{'' if step is None else f' in {_where(step)}'}: they do not take this batch,"
                    " or take longer between two batches (timeout)"
                )
        work.wait()

    def _check_left(self, step: Step) -> None:
        """Raise RendezvousError if a trainer has left the epoch before this step."""
        for rank, (epoch, num_batches) in self._members.poll(
            f"{self._name}/left", self._others
        ).items():
            if epoch == step.epoch and step.batch >= num_batches:
                raise RendezvousError(
                    f"trainer {self.rank} waits in {_where(step)} for trainer {rank}, which has "
                    f"left this epoch after {num_batches} batch(es): trainers have to end epochs "
                    "alike"
                )

    def _lost(self, error: RuntimeError) -> RendezvousError:
        """Return the error to raise for a lost connection: another trainer's, or who has ended."""
        try:
            self._barrier.look()
        except RendezvousError as failure:
            return failure
        try:
            ended = self._barrier.find_silent(_SILENCE_SECONDS)
        except RendezvousError:
            return RendezvousError(
                f"trainer {self.rank} lost the connection to others: trainer 0 or the launcher, "
                f"whichever has the job's store, has ended ({_first_line(error)})"
            )
        who = f"trainer(s) {ended} have ended" if ended else "all trainers are still there"
        return RendezvousError(
            f"trainer {self.rank} lost the connection to others: {who} ({_first_line(error)})"
        )

    @contextlib.contextmanager
    def publishing(self) -> Iterator[None]:
        """Return a context whose errors end all exchanges, see `fail`."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, failure: BaseException) -> None:
        """Publish an error that ends all exchanges, so that no trainer waits for this one."""
        self.failure = self.failure or failure
        self._close(failure)

    def close(self) -> None:
        """Release the group: its threads end, and no exchange follows. A second call is ignored."""
        self._close(None)

    def __del__(self) -> None:
        if getattr(self, "_group", None) is not None:
            self._close(None)

    def _close(self, failure: BaseException | None) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        self._barrier.close(failure)
        if not self._is_own:
            return
        pending, self._pending = self._pending, None
        if pending is not None and self._others:
            # The group's threads would wait for it. Gloo closes all connections of a group when a
            # wait in it is timed out.
            with contextlib.suppress(RuntimeError):
                message = dist.irecv(torch.empty(1), self._others[0], group)
                assert message is not None
                message.wait(timedelta(milliseconds=1))
            with contextlib.suppress(RuntimeError):
                pending.wait()
        # The user may have destroyed all groups.
        with contextlib.suppress(AssertionError, ValueError, RuntimeError):
            dist.destroy_process_group(group)


class _Exchange(torch.autograd.Function):
    """Differentiable exchange: sends rows, and in the backward pass returns their gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange, ctx.size = exchange, x.size(0)
        rows: Tensor = exchange.group.send_all(x[exchange.rows], exchange.sent, exchange.received)
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        exchange = ctx.exchange
        back = exchange.group.send_all(grad, exchange.received, exchange.sent)
        out = back.new_zeros((ctx.size, *back.shape[1:]))
        return out.index_add_(0, exchange.rows, back), None


class Exchange:
    """Exchange of rows with other trainers: which rows are sent, and how many are received.

    All trainers make the same calls in the same order, also in the backward pass.

    Args:
        rows: [n] int64 positions of rows to be sent, trainer by trainer.
        sent: number of rows for each trainer.
        received: number of rows from each trainer.
        group: the trainers.
    """

    def __init__(
        self, rows: Tensor, sent: list[int], received: list[int], group: TrainerGroup
    ) -> None:
        self.rows, self.sent, self.received, self.group = rows, sent, received, group

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows received from other trainers, trainer by trainer, differentiable.

        Args:
            x: [num_rows, ...] this trainer's rows. A row has the same shape on all trainers.
        """
        rows: Tensor = _Exchange.apply(x, self)  # type: ignore[no-untyped-call]
        return rows


def check_initialized() -> None:
    """Raise RuntimeError unless torch.distributed is initialised."""
    if not dist.is_initialized():
        raise RuntimeError(
            "trainers exchange rows over torch.distributed: call "
            "torch.distributed.init_process_group first"
        )


def _where(step: Step) -> str:
    return f"batch {step.batch} of its epoch {step.epoch} (hop {step.hop})"


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().partition("\n")[0]
