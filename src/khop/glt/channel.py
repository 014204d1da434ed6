"""GLT's channels: queues of dictionaries of tensors between processes.

Batches of khop's loaders go through an arena (`khop.channel`) instead. Scripts can use these
channels for messages of their own.
"""

from __future__ import annotations

import io
import multiprocessing
import queue
from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor

from khop.data.hot_rows import parse_bytes

SampleMessage: TypeAlias = dict[str, Tensor]


class QueueTimeoutError(Exception):
    """Error of a channel that received no message in time."""


class ChannelBase(ABC):
    """Base of GLT's queues between processes, whose messages are dictionaries of tensors."""

    @abstractmethod
    def send(self, msg: SampleMessage, **kwargs: object) -> None:
        """Put a message, a dictionary of tensors, into the queue."""

    @abstractmethod
    def recv(self, timeout_ms: float | None = None, **kwargs: object) -> SampleMessage:
        """Wait for the next message, at most `timeout_ms` milliseconds, and return it."""


class MpChannel(ChannelBase):
    """Channel over a pipe. Messages stay valid after the process that sent them has ended.

    Args:
        capacity: most messages that wait, or 0 for any number. If it is reached, `send` waits.
    """

    def __init__(self, capacity: int = 0, **kwargs: object) -> None:
        del kwargs
        self._queue = multiprocessing.get_context("spawn").Queue(capacity)

    def send(self, msg: SampleMessage, **kwargs: object) -> None:
        """Put a message, a dictionary of tensors, into the queue. GPU tensors arrive on the CPU."""
        del kwargs
        written = io.BytesIO()
        torch.save({name: tensor.cpu() for name, tensor in msg.items()}, written)
        self._queue.put(written.getvalue())

    def recv(self, timeout_ms: float | None = None, **kwargs: object) -> SampleMessage:
        """Wait for the next message, a dictionary of tensors, and return it.

        If `timeout_ms` is None, wait without a limit.

        Raises:
            QueueTimeoutError: no message arrived within `timeout_ms` milliseconds.
        """
        del kwargs
        try:
            received = self._queue.get(timeout=None if timeout_ms is None else timeout_ms / 1000)
        except queue.Empty:
            raise QueueTimeoutError(f"no message arrived within {timeout_ms} ms") from None
        message: SampleMessage = torch.load(io.BytesIO(received), weights_only=True)
        return message

    def empty(self) -> bool:
        """Return True if the queue has no message."""
        return self._queue.empty()


class ShmChannel(MpChannel):
    """`MpChannel` with the arguments of GLT's channel through shared memory.

    Args:
        capacity: most messages that wait.
        shm_size: bytes of shared memory, '64MB' or a number, checked but not needed.
    """

    def __init__(self, capacity: int = 128, shm_size: str | int = "256MB") -> None:
        parse_bytes(shm_size)
        super().__init__(capacity)

    def pin_memory(self) -> None:
        """Do nothing. GLT's channel would lock its shared memory for GPUs, which this one lacks."""
