"""Bundle of messages in one buffer, for transports that carry bytes between all of a group.

A buffer begins with a table of int64: its own length, then for each message the number of its
frames and their lengths. The frames follow, each at a multiple of 64 bytes, so that arrays share
the buffer's memory. Imports no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from khop.channel.message import MESSAGE_BYTES
from khop.errors import ProtocolError
from khop.typing import Array

BUNDLE_BYTES = 64 << 20
"""Bytes of a bundle of several messages. A single larger message is a bundle of its own."""

MOST_BYTES = MESSAGE_BYTES + (64 << 20)
"""Maximum number of bytes of a bundle."""

# Numbers of a table. A message of 1 GiB in frames of 1 MiB has some thousand.
_MOST_NUMBERS = 1 << 16
_ALIGNMENT = 64

Frames = Sequence[Any]
"""Frames of a message: objects with the buffer protocol."""


class Bundle:
    """Messages that are sent in one buffer.

    Args:
        queue: messages. The first ones, as many as fit in the bundle, are removed.

    Attributes:
        nbytes: size of the buffer. 0 without messages.
    """

    def __init__(self, queue: deque[Frames]) -> None:
        self._frames: list[Any] = []
        self._table: list[int] = []
        nbytes = 0
        while queue:
            lengths = [len(frame) for frame in queue[0]]
            more = sum(map(_padded, lengths))
            numbers = len(self._table) + len(lengths) + 2
            if self._table and (nbytes + more > BUNDLE_BYTES or numbers > _MOST_NUMBERS):
                break
            nbytes += more
            self._table += [len(lengths), *lengths]
            self._frames += queue.popleft()
        self._begin = _padded(8 * (1 + len(self._table)))
        self.nbytes = self._begin + nbytes if self._table else 0

    def write(self, out: Array) -> None:
        """Write the bundle to a buffer, [nbytes] uint8."""
        if not self._table:
            return
        table = np.array([len(self._table), *self._table], np.int64).view(np.uint8)
        out[: len(table)] = table
        at = self._begin
        for frame in self._frames:
            if len(frame):
                out[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
            at += _padded(len(frame))


def read_bundle(data: Array, sender: str) -> list[list[Array]]:
    """Return the frames of each message in a buffer, which they share.

    Args:
        data: [nbytes] uint8, as received.
        sender: name of the sender, for errors.

    Raises:
        ProtocolError: the table does not match the buffer.
    """
    if not len(data):
        return []
    count = int(data[:8].view(np.int64)[0]) if len(data) >= 8 else -1
    if not 0 < count <= _MOST_NUMBERS or 8 * (1 + count) > len(data):
        raise ProtocolError(f"{sender} sent {len(data)} bytes without a table of messages")
    numbers = iter(data[8 : 8 * (1 + count)].view(np.int64).tolist())
    at, messages = _padded(8 * (1 + count)), []
    for num_frames in numbers:
        frames = []
        for _ in range(num_frames):
            length = next(numbers, -1)
            if not 0 <= length <= len(data) - at:
                raise ProtocolError(f"{sender} sent a table of messages that its bytes do not fill")
            frames.append(data[at : at + length])
            at += _padded(length)
        messages.append(frames)
    return messages


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
