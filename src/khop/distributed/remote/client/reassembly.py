"""Reassembly of batches from chunks, which are written into the trainer's arena as they arrive.

Run by receivers. Imports no torch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import numpy as np

from khop.channel.arena import ArenaWriter, create_memory, map_memory
from khop.channel.control import BATCH, MAX_PAYLOAD, ControlLine, Op
from khop.channel.layout import Layout
from khop.errors import ProtocolError
from khop.trace.clock import BatchTimings
from khop.typing import Array

_MAX_BATCH = 1 << 40
_MAX_EXTRAS = MAX_PAYLOAD // 2
# Most layouts of one loader. It has one per order in which samplers number their arrays.
_MAX_LAYOUTS = 64
_HEAD = np.dtype(np.int64).itemsize
_TIMINGS = {name: index for index, name in enumerate(BatchTimings._fields)}


class BatchReassembler:
    """Memory of a batch that arrives from a server in chunks, usually a slot of the arena.

    Args:
        arena: the receiver's arena. If the batch does not fit there, separate memory is created.
        nbytes: size of the batch, as sent by the server.

    Attributes:
        arrived: number of bytes that have arrived.
        raw: [nbytes] uint8, the batch.

    Raises:
        ProtocolError: the size is out of bounds.
        MemoryError: there is no memory for the batch.
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
        self.raw: Array = np.frombuffer(self._memory, np.uint8)

    def write(self, offset: int, chunk: Array) -> bool:
        """Write a chunk at its `offset` in the batch. Return True if the batch is complete.

        Raises:
            ProtocolError: the chunk is empty, out of order, or ends beyond the batch.
        """
        end = offset + len(chunk)
        if offset != self.arrived or not offset < end <= self.nbytes:
            raise ProtocolError(
                f"bytes {offset} to {end} of a batch of {self.nbytes} bytes "
                f"of which {self.arrived} have arrived"
            )
        self.raw[offset:end] = chunk
        self.arrived = end
        return end == self.nbytes

    def announce(
        self, line: ControlLine, epoch: int, batch: int, layout: Layout, extras: str | None
    ) -> None:
        """Report the complete batch to the trainer over the control line, as a sampler does.

        `layout.id` is this receiver's number of the layout (list of arrays). `extras` is JSON text.

        Raises:
            ProtocolError: the extras are not a JSON object, or are too long.
        """
        payload = BATCH.pack(epoch, batch, self._offset, self.nbytes) + _extras(extras)
        self._write_head(layout)
        if self._own_memory is None:
            line.send(Op.BATCH, payload)
        else:
            line.send(Op.BATCH, payload, [self._own_memory])
            os.close(self._own_memory)
            self._own_memory = None

    def _write_head(self, layout: Layout) -> None:
        """Replace the sampler's layout number, process id, times and overflow by this process's.

        The sampler's time is of another machine's clock, with which this one cannot be compared.
        """
        head = np.frombuffer(self._memory, np.int64, 1)
        head[0] = layout.id
        if self.nbytes < layout.head_bytes:
            return  # the trainer reports the error
        numbers = np.frombuffer(self._memory, np.int64, layout.num_numbers, 2 * _HEAD)
        span = layout.slices.get("made")
        if span is None or span.stop - span.start != len(_TIMINGS):
            return
        made = numbers[span]
        made[_TIMINGS["process"]] = made[_TIMINGS["thread"]] = os.getpid()
        made[_TIMINGS["ready"]] = time.monotonic_ns()
        made[_TIMINGS["overflows"]] = int(self._own_memory is not None)

    def abandon(self) -> None:
        """Release the memory, since the batch is dropped or another server will send it."""
        if self._own_memory is None:
            self._arena.free(self._offset)
        else:
            os.close(self._own_memory)
            self._own_memory = None


def _memory_for(nbytes: int) -> tuple[int, memoryview]:
    """Create memory for a batch that does not fit in the arena. Return its descriptor and view."""
    descriptor: int | None = None
    try:
        descriptor = create_memory(nbytes, "khop-batch")
        return descriptor, memoryview(map_memory(descriptor))[:nbytes]
    except OSError as error:
        if descriptor is not None:
            os.close(descriptor)
        raise MemoryError(f"no memory for a batch of {nbytes} bytes: {error}") from None


def _extras(text: str | None) -> bytes:
    """Check the JSON text of a batch's extra data, and return it as bytes for the trainer.

    Raises:
        ProtocolError: it is not a JSON object, or too long.
    """
    try:
        content = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the extras of a batch are not JSON: {error}") from None
    plain = json.dumps(content).encode() if content else b""
    if not isinstance(content, dict) or len(plain) > _MAX_EXTRAS:
        raise ProtocolError(f"the extras of a batch are no object of {_MAX_EXTRAS} bytes")
    return plain


class Layouts:
    """Layouts (lists of arrays) of the loader's batches, numbered by this receiver.

    Each server numbers layouts in its own way, so layouts are compared by content.

    Args:
        line: control line to the trainer.
        check: called with a layout. Raises ProtocolError if the loader cannot have such batches.
    """

    def __init__(self, line: ControlLine, check: Callable[[Layout], None]) -> None:
        self._line = line
        self._check = check
        self._known: dict[str, Layout] = {}

    def add(self, content: object) -> Layout:
        """Return a server's layout with this receiver's number. A new one is sent to the trainer.

        `content` is its JSON.

        Raises:
            ProtocolError: the layout is malformed or fails `check`, or there are too many layouts.
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
