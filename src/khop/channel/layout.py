"""Binary format of a batch.

The process that samples writes a batch. Trainers, receivers and graph servers read it. Imports no
torch.

The batches of a loader have the same arrays with different sizes. A `Layout` lists the arrays,
their dtypes and the axes that are the same for all. The sampler sends each layout once, as JSON,
before its first batch. A batch (a `Record`) then carries a few integers, followed by its arrays:

    layout's id | number of integers | sizes | counters | padding | arrays

`sizes` are the lengths of the axes that differ. `counters` are all other counts of a batch: per
hop, rows by source, nanoseconds by activity. They have names and positions in the layout, and may
be written until the batch is delivered. Data without a fixed length is sent next to the batch
(`khop.channel.control.Op.BATCH`).

Every array begins at a multiple of 64 bytes. All input is checked. A layout is checked in full,
once. A batch is checked for the number of its integers, for sizes that are not negative, and for
arrays within its memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from khop.channel.arena import create_memory
from khop.codec import AtMost, Between, from_json
from khop.data.arrays import storage_dtype
from khop.errors import ProtocolError
from khop.typing import Array, Int64Array

Buffer = bytes | bytearray | memoryview

_ALIGNMENT = 64
_PREFIX = struct.Struct("<qq")
_MAX_NUMBERS = 1 << 16
_MAX_ENTRIES = 1 << 14
_MAX_AXES = 16
_MAX_SIZE = 1 << 48
_MAX_TEXT = 64 << 20
# Entries of up to 8 bytes.
_MOST_ENTRIES = 1 << 59


class ArrayLayout(NamedTuple):
    """Description of one array that all batches of a layout have.

    Attributes:
        name: its name.
        dtype: name of its dtype.
        shape: its axes. -1 - i means the i-th of a batch's sizes.
    """

    name: str
    dtype: str
    shape: Annotated[
        tuple[Annotated[int, Between(-_MAX_NUMBERS, _MAX_SIZE - 1)], ...], AtMost(_MAX_AXES)
    ]


class CounterLayout(NamedTuple):
    """Description of a counter that all batches of a layout have: name, and number of integers."""

    name: str
    length: Annotated[int, Between(0, _MAX_NUMBERS)]


@dataclass(frozen=True)
class _Description:
    """Type of the JSON object that describes a layout."""

    id: Annotated[int, Between(0, _MAX_SIZE - 1)]
    arrays: Annotated[list[ArrayLayout], AtMost(_MAX_ENTRIES)]
    counters: Annotated[list[CounterLayout], AtMost(_MAX_ENTRIES)]


class _Plan(NamedTuple):
    """Properties of an array that are the same for all batches of a layout, computed once.

    If exactly one axis differs, `size` is its index among the sizes, and `before` and `after` are
    the axes around it. Otherwise `size` is -1.
    """

    dtype: np.dtype[Any]
    row_bytes: int
    size: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    shape: tuple[int, ...]


class Layout:
    """Schema of batches: their arrays and counters.

    Args:
        id: its id, which each batch carries.
        arrays: the arrays.
        counters: the counters.

    Attributes:
        slices: {counter: its slice of a batch's integers, which are sizes, then counters}.
        num_sizes: number of lengths of axes that differ between batches.
        index: {name of an array: its position in `arrays`}.
        has_bfloat16: True if there are bfloat16 arrays, which NumPy holds as uint16.
        head_bytes: size of a batch's integers in bytes, before its arrays.
    """

    def __init__(
        self, id: int, arrays: Sequence[ArrayLayout], counters: Sequence[CounterLayout]
    ) -> None:
        self.id = id
        self.arrays = tuple(arrays)
        self.counters = tuple(counters)
        self.num_sizes = max((-axis for a in arrays for axis in a.shape if axis < 0), default=0)
        self.index = {array.name: i for i, array in enumerate(self.arrays)}
        self.has_bfloat16 = any(array.dtype == "bfloat16" for array in self.arrays)
        self.slices: dict[str, slice] = {}
        end = self.num_sizes
        for counter in self.counters:
            self.slices[counter.name] = slice(end, end + counter.length)
            end += counter.length
        self.num_numbers = end
        self._numbers = struct.Struct(f"<{1 + end}q")  # with their number first
        self.head_bytes = 8 + self._numbers.size
        self._plans = [_plan(array) for array in self.arrays]
        self._dtypes = [plan.dtype for plan in self._plans]

    def to_json(self) -> dict[str, Any]:
        """Return the layout (arrays and counters of batches) as a JSON object."""
        return {"id": self.id, "arrays": self.arrays, "counters": self.counters}

    def share(self) -> int:
        """Write the layout as JSON into a new memfd, and return its descriptor.

        The caller passes it to another process and closes it.
        """
        text = json.dumps(self.to_json()).encode()
        memory = create_memory(len(text), "khop-layout")
        os.pwrite(memory, text, 0)
        return memory

    @classmethod
    def read_shared(cls, descriptor: int) -> Layout:
        """Read a layout that `share` wrote, and close the descriptor.

        Raises:
            ProtocolError: the layout is malformed.
        """
        try:
            text = os.pread(descriptor, min(os.fstat(descriptor).st_size, _MAX_TEXT), 0)
        except OSError as error:
            raise ProtocolError(f"a layout cannot be read: {error}") from None
        finally:
            os.close(descriptor)
        return cls.from_text(text)

    @classmethod
    def from_text(cls, text: bytes) -> Layout:
        """Make a layout from JSON text of `to_json`, as received.

        Raises:
            ProtocolError: the layout is malformed.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a layout is not JSON: {error}") from None
        return cls.from_json(content)

    @classmethod
    def from_json(cls, content: Any) -> Layout:
        """Make a layout from the JSON object of `to_json`, as received.

        Raises:
            ProtocolError: the layout is malformed.
        """
        described = from_json(_Description, content, "a layout")
        try:
            layout = cls(described.id, described.arrays, described.counters)
        except TypeError as error:  # of a dtype
            raise ProtocolError(f"a layout: {error}") from None
        if any(_least_bytes(plan) >= _MAX_SIZE for plan in layout._plans):
            raise ProtocolError("an array's shape does not fit any memory")
        if len(layout.index) < len(layout.arrays) or len(layout.slices) < len(layout.counters):
            raise ProtocolError("a layout names an array or a counter twice")
        if layout.num_numbers > _MAX_NUMBERS:
            raise ProtocolError(f"a layout has more than {_MAX_NUMBERS} sizes and counters")
        return layout

    def shapes(self, sizes: Sequence[int]) -> tuple[list[tuple[int, ...]], list[int], int]:
        """Return shape and offset (bytes) of each array of a batch, and the end of the last one.

        `sizes` are the batch's sizes: the lengths of its differing axes.
        """
        shapes, begins, end = [], [], self.head_bytes
        for _, row_bytes, axis, before, after, shape in self._plans:
            if axis >= 0:
                size = sizes[axis]
                shapes.append((*before, size, *after))
                nbytes = row_bytes * size
            else:
                actual = tuple([sizes[-1 - length] if length < 0 else length for length in shape])
                shapes.append(actual)
                nbytes = row_bytes * math.prod(sizes[-1 - n] for n in shape if n < 0)
            begin = (end + _ALIGNMENT - 1) & -_ALIGNMENT
            begins.append(begin)
            end = begin + nbytes
        return shapes, begins, end

    def read(self, raw: Array) -> Received:
        """Read a batch that has this layout. Errors: as `read_record`.

        `raw` is the batch, [nbytes] uint8.
        """
        if len(raw) < self.head_bytes:
            raise ProtocolError(f"a batch of {len(raw)} bytes is too short for its numbers")
        numbers, begins, shapes = self.parse(raw.data, len(raw))
        arrays = [
            np.ndarray(shape, dtype, raw, begin)
            for shape, dtype, begin in zip(shapes, self._dtypes, begins, strict=True)
        ]
        return Received(self, arrays, numbers)

    def parse(
        self, head: Buffer, nbytes: int
    ) -> tuple[list[int], list[int], list[tuple[int, ...]]]:
        """Read the integers before the arrays of a batch of `nbytes` bytes.

        Returns:
            The batch's integers, and offset and shape of each array.

        Raises:
            ProtocolError: the integers do not match this layout, or describe arrays that exceed
                the batch.
        """
        # Copied first, so that the writer cannot change them after the checks.
        count, *numbers = self._numbers.unpack_from(head, 8)
        if count != self.num_numbers:
            raise ProtocolError(f"a batch has {count} numbers instead of {self.num_numbers}")
        sizes = numbers[: self.num_sizes]
        if sizes and (min(sizes) < 0 or max(sizes) >= _MAX_SIZE):
            raise ProtocolError(f"a batch has axes of {sizes[:100]}")
        shapes, begins, end = self.shapes(numbers)
        if end > nbytes:
            raise ProtocolError(f"a batch of {nbytes} bytes promises {end}")
        # NumPy counts the other axes of an empty array, too.
        if 0 in sizes and any(_counted(shape) >= _MOST_ENTRIES for shape in shapes):
            raise ProtocolError("an empty array of a batch has axes that fit no memory")
        return numbers, begins, shapes


class Received(NamedTuple):
    """Batch as received, in views of the memory that it came in.

    Attributes:
        layout: its layout.
        arrays: views of its arrays, in the layout's order, or `DeviceArray`s in device memory.
        numbers: its sizes and counters, at `Layout.slices`.
        extras: data without a fixed length, or None.
        must_copy: True if memory is short: copy the arrays, so that their slot is freed.
    """

    layout: Layout
    arrays: list[Any]
    numbers: list[int]
    extras: Mapping[str, Any] | None = None
    must_copy: bool = False

    def counter(self, name: str) -> list[int]:
        """Return the integers of the counter `name`, such as the numbers of nodes per hop."""
        return self.numbers[self.layout.slices[name]]

    def named(self) -> dict[str, tuple[Array, str]]:
        """Return the arrays by name: {name: (array, name of its dtype)}."""
        described = zip(self.layout.arrays, self.arrays, strict=True)
        return {of.name: (array, of.dtype) for of, array in described}


class Record:
    """Batch to be written to a slot of memory.

    Args:
        layout: its layout.
        sizes: the lengths of the axes that differ.

    Attributes:
        nbytes: bytes of memory that it needs.
        numbers: view of its sizes and counters, or None until it is written.
        extras: data to send next to it, as JSON.
    """

    def __init__(self, layout: Layout, sizes: Sequence[int]) -> None:
        self.layout = layout
        self._sizes = sizes
        self._shapes, self._begins, self.nbytes = layout.shapes(sizes)
        self.numbers: Int64Array | None = None
        self.extras: dict[str, Any] = {}

    def write(self, buffer: memoryview) -> dict[str, Array]:
        """Write the sizes and counters to `buffer`. Return its views for the arrays, by name.

        The caller fills the views.
        """
        self.write_head(buffer)
        described = zip(
            self.layout.arrays, self.layout._plans, self._shapes, self._begins, strict=True
        )
        return {
            of.name: np.ndarray(shape, plan.dtype, buffer, begin)
            for of, plan, shape, begin in described
        }

    def write_head(self, buffer: memoryview) -> None:
        """Write only the sizes to `buffer`, and 0 for each counter.

        The arrays belong at `positions`.
        """
        layout = self.layout
        _PREFIX.pack_into(buffer, 0, layout.id, layout.num_numbers)
        numbers = np.frombuffer(buffer, np.int64, layout.num_numbers, _PREFIX.size)
        numbers[: layout.num_sizes] = self._sizes
        numbers[layout.num_sizes :] = 0
        self.numbers = numbers

    def positions(self) -> list[tuple[ArrayLayout, tuple[int, ...], int]]:
        """Return layout, shape and offset in the slot (bytes) of each array."""
        return [*zip(self.layout.arrays, self._shapes, self._begins, strict=True)]

    def note(self, name: str, values: int | Sequence[int]) -> None:
        """Set the counter `name`. The batch must have been written and not yet delivered."""
        assert self.numbers is not None
        self.numbers[self.layout.slices[name]] = values


def read_record(raw: Array, layouts: Mapping[int, Layout]) -> Received:
    """Read a batch that `Record.write` wrote.

    Args:
        raw: [nbytes] uint8.
        layouts: known layouts, by id.

    Raises:
        ProtocolError: the batch has none of these layouts, or describes arrays that exceed it.
    """
    return layout_of(raw.data, layouts).read(raw)


def layout_of(head: Buffer, layouts: Mapping[int, Layout]) -> Layout:
    """Return the layout of a batch, by the id that the batch carries.

    Raises:
        ProtocolError: the batch is too short for an id, or the id is unknown.
    """
    nbytes = len(memoryview(head))
    if nbytes < _PREFIX.size:
        raise ProtocolError(f"a batch of {nbytes} bytes has no layout")
    layout_id = _PREFIX.unpack_from(head)[0]
    layout = layouts.get(layout_id)
    if layout is None:
        raise ProtocolError(f"unknown layout {layout_id}: no LAYOUT message announced it")
    return layout


def _counted(shape: Sequence[int]) -> int:
    return math.prod(axis for axis in shape if axis)


def _least_bytes(plan: _Plan) -> int:
    """Return the size in bytes of an array's smallest form: its differing and empty axes are 1."""
    return plan.dtype.itemsize * math.prod(axis for axis in plan.shape if axis > 0)


def _plan(array: ArrayLayout) -> _Plan:
    dtype, shape = storage_dtype(array.dtype), array.shape
    row_bytes = math.prod(axis for axis in shape if axis >= 0) * dtype.itemsize
    differing = [i for i, axis in enumerate(shape) if axis < 0]
    if len(differing) != 1:
        return _Plan(dtype, row_bytes, -1, (), (), shape)
    i = differing[0]
    return _Plan(dtype, row_bytes, -1 - shape[i], shape[:i], shape[i + 1 :], shape)
