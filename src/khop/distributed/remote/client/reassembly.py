"""Reassembly of batches from chunks, which are written into the arena as they arrive.

Run by receivers.
"""

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
# Bound of the layouts of one loader: there is one, in an order for each kind of sampler.
_MAX_LAYOUTS = 64
_HEAD = np.dtype(np.int64).itemsize
_MADE = {name: place for place, name in enumerate(BatchTimings._fields)}


class BatchReassembler:
    """The memory of a batch that arrives in chunks.

    Args:
        arena: the receiver's arena. If it has no room for the batch, separate memory is created.
        nbytes: size of the batch, as sent by the server.

    Attributes:
        nbytes: as above.
        arrived: bytes that have arrived.

    Raises:
        ProtocolError: the size is out of bounds.
        MemoryError: there is no memory for it.
    """

    def __init__(self, arena: ArenaWriter, nbytes: int) -> None:
        if not 2 * _HEAD <= nbytes <= _MAX_BATCH:
            raise ProtocolError(f"a batch of {nbytes} bytes")
        self._arena = arena
        self.nbytes = nbytes
        self.arrived = 0
        self._own_memory: int | None = None
        slot = arena.allocate(nbytes)
        if slot is not None:
            self._offset, self._memory = slot
        else:
            self._offset = 0
            self._own_memory, self._memory = _memory_for(nbytes)

    def write(self, offset: int, chunk: Array) -> bool:
        """Write a chunk; return whether the batch is complete.

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
        """Report the batch to the trainer, as a sampler does.

        Args:
            line: control line to the trainer.
            epoch: epoch of the batch.
            batch: its index.
            layout: its layout, with the number that was sent to the trainer.
            extras: JSON of the batch's extras.

        Raises:
            ProtocolError: the extras are not a JSON object, or are too long.
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
        """Write this process's values: number of the layout, process id, time, overflow.

        Clocks of other machines cannot be compared with this one's.
        """
        head = np.frombuffer(self._memory, np.int64, 1)
        head[0] = layout.id
        if self.nbytes < layout.head_bytes:
            return  # the trainer reports the error
        numbers = np.frombuffer(self._memory, np.int64, layout.num_numbers, 2 * _HEAD)
        place = layout.slices.get("made")
        if place is None or place.stop - place.start != len(_MADE):
            return
        made = numbers[place]
        made[_MADE["process"]] = made[_MADE["thread"]] = os.getpid()
        made[_MADE["ready"]] = time.monotonic_ns()
        made[_MADE["overflows"]] = int(self._own_memory is not None)

    def abandon(self) -> None:
        """Release the memory of a batch that is dropped, or that another server will send."""
        if self._own_memory is None:
            self._arena.free(self._offset)
        else:
            os.close(self._own_memory)
            self._own_memory = None


def _memory_for(nbytes: int) -> tuple[int, memoryview]:
    """Create memory of a batch that the arena has no room for; return descriptor and view."""
    descriptor: int | None = None
    try:
        descriptor = create_memory(nbytes, "khop-batch")
        return descriptor, memoryview(map_memory(descriptor))[:nbytes]
    except OSError as error:
        if descriptor is not None:
            os.close(descriptor)
        raise MemoryError(f"no memory for a batch of {nbytes} bytes: {error}") from None


def _extras(text: str | None) -> bytes:
    """Return a batch's extras, as the trainer reads them; raise ProtocolError if invalid."""
    try:
        content = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"what travels beside a batch is not JSON: {error}") from None
    plain = json.dumps(content).encode() if content else b""
    if not isinstance(content, dict) or len(plain) > _MAX_EXTRAS:
        raise ProtocolError(f"what travels beside a batch is no object of {_MAX_EXTRAS} bytes")
    return plain


class Layouts:
    """Layouts of the loader's batches, with the numbers that this receiver gives them.

    Servers and samplers use other numbers, so layouts are compared by content.

    Args:
        line: control line to the trainer.
        check: raises ProtocolError if a layout is not that of the loader's batches.
    """

    def __init__(self, line: ControlLine, check: Callable[[Layout], None]) -> None:
        self._line = line
        self._check = check
        self._known: dict[str, Layout] = {}

    def learn(self, content: Any) -> Layout:
        """Return a server's layout with this receiver's number; send new ones to the trainer.

        Raises:
            ProtocolError: malformed, not that of the loader's batches, or too many.
        """
        plain = Layout.from_json(content).to_json()
        text = json.dumps({**plain, "id": 0})
        if text not in self._known:
            layout = Layout.from_json({**json.loads(text), "id": len(self._known)})
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
