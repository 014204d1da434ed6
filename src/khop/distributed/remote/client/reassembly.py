"""A batch on its way from a graph server: chunks, written into the ring as they arrive."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from khop.channel.arena import ArenaWriter, create_memory, map_memory
from khop.channel.control import BATCH, MAX_PAYLOAD, ControlLine, Op
from khop.channel.layout import Layout
from khop.errors import ProtocolError
from khop.trace.clock import BatchTimings
from khop.typing import Array

_MAX_BATCH = 1 << 40
_MAX_EXTRAS = MAX_PAYLOAD // 2
# Layouts of one loader: there is one, in as many orders as there are kinds of samplers.
_MAX_LAYOUTS = 64
_HEAD = np.dtype(np.int64).itemsize
_MADE = {name: place for place, name in enumerate(BatchTimings._fields)}


class BatchReassembler:
    """The memory of a batch that arrives.

    Args:
        ring: the receiver's ring; a batch that finds no room there gets memory of its own.
        nbytes: its size, as the server says.

    Attributes:
        nbytes: see above.
        arrived: bytes that have arrived.

    Raises:
        ProtocolError: a size that no batch has.
        MemoryError: there is no memory for it.
    """

    def __init__(self, ring: ArenaWriter, nbytes: int) -> None:
        if not 2 * _HEAD <= nbytes <= _MAX_BATCH:
            raise ProtocolError(f"a batch of {nbytes} bytes")
        self._ring = ring
        self.nbytes = nbytes
        self.arrived = 0
        self._own_memory: int | None = None
        slot = ring.allocate(nbytes)
        if slot is not None:
            self._offset, self._memory = slot
        else:
            self._offset = 0
            self._own_memory, self._memory = _memory_for(nbytes)

    def write(self, offset: int, chunk: Array) -> bool:
        """Writes a chunk; returns whether the batch is complete.

        Raises:
            ProtocolError: it is empty, does not follow the one before, or ends beyond the batch.
        """
        end = offset + len(chunk)
        if offset != self.arrived or not offset < end <= self.nbytes:
            raise ProtocolError(
                f"bytes {offset} to {end} of a batch of {self.nbytes} bytes "
                f"of which {self.arrived} have arrived"
            )
        np.frombuffer(self._memory, np.uint8)[offset:end] = chunk
        self.arrived = end
        return end == self.nbytes

    @property
    def raw(self) -> Array:
        """[nbytes] uint8, the batch."""
        return np.frombuffer(self._memory, np.uint8)

    def announce(
        self, line: ControlLine, epoch: int, batch: int, layout: Layout, extras: str | None
    ) -> None:
        """Tells the trainer of the batch, as a sampler does.

        Args:
            line: to the trainer.
            epoch: of the batch.
            batch: its index.
            layout: its layout, numbered as the trainer knows it.
            extras: JSON of what travels beside it.

        Raises:
            ProtocolError: the extras are no JSON object, or too long.
        """
        payload = BATCH.pack(epoch, batch, self._offset, self.nbytes) + _extras(extras)
        self._number(layout)
        if self._own_memory is None:
            line.send(Op.BATCH, payload)
        else:
            line.send(Op.BATCH, payload, [self._own_memory])
            os.close(self._own_memory)
            self._own_memory = None

    def _number(self, layout: Layout) -> None:
        """Writes what is this process's to say: the layout's number, who brought it, and when.

        Clocks of other machines mean nothing here.
        """
        head = np.frombuffer(self._memory, np.int64, 1)
        head[0] = layout.number
        if self.nbytes < layout.head_bytes:
            return  # the trainer says what is wrong with it
        numbers = np.frombuffer(self._memory, np.int64, layout.num_numbers, 2 * _HEAD)
        place = layout.places.get("made")
        if place is None or place.stop - place.start != len(_MADE):
            return
        made = numbers[place]
        made[_MADE["process"]] = made[_MADE["thread"]] = os.getpid()
        made[_MADE["ready"]] = time.monotonic_ns()
        made[_MADE["overflows"]] = int(self._own_memory is not None)

    def abandon(self) -> None:
        """Gives the memory back: the batch is not wanted any more, or comes from another server."""
        if self._own_memory is None:
            self._ring.free(self._offset)
        else:
            os.close(self._own_memory)
            self._own_memory = None


def _memory_for(nbytes: int) -> tuple[int, memoryview]:
    """Memory of a batch that finds no room in the ring: its descriptor, and a view."""
    descriptor: int | None = None
    try:
        descriptor = create_memory(nbytes, "khop-batch")
        return descriptor, memoryview(map_memory(descriptor))[:nbytes]
    except OSError as error:
        if descriptor is not None:
            os.close(descriptor)
        raise MemoryError(f"no memory for a batch of {nbytes} bytes: {error}") from None


def _extras(text: str | None) -> bytes:
    """What travels beside a batch, if it is what a trainer reads."""
    try:
        content = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"what travels beside a batch is not JSON: {error}") from None
    plain = json.dumps(content).encode() if content else b""
    if not isinstance(content, dict) or len(plain) > _MAX_EXTRAS:
        raise ProtocolError(f"what travels beside a batch is no object of {_MAX_EXTRAS} bytes")
    return plain


class Layouts:
    """Layouts as this receiver numbers them for its trainer.

    Servers, and samplers on them, number theirs as they like: what a layout says decides.

    Args:
        line: to the trainer.
        check: raises ProtocolError if a layout is not that of the loader's batches.
    """

    def __init__(self, line: ControlLine, check: Callable[[Layout], None]) -> None:
        self._line = line
        self._check = check
        self._known: dict[str, Layout] = {}

    def learn(self, content: Any) -> Layout:
        """Takes in a layout of a server's; tells the trainer if it is new.

        Raises:
            ProtocolError: malformed, not that of the loader's batches, or one too many.
        """
        plain = Layout.from_json(content).to_json()
        text = json.dumps({**plain, "number": 0})
        if text not in self._known:
            layout = Layout.from_json({**json.loads(text), "number": len(self._known)})
            self._check(layout)
            if len(self._known) >= _MAX_LAYOUTS:
                raise ProtocolError(f"more than {_MAX_LAYOUTS} layouts of a loader's batches")
            memory = layout.share()
            try:
                self._line.send(Op.LAYOUT, b"", [memory])
            finally:
                os.close(memory)
            self._known[text] = layout
        return self._known[text]
