"""Pushes and optimiser updates, applied to rows in short slices of work. Imports no torch.

Each generator yields between two slices, so that the thread that runs it can serve others.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.channel.pool import BufferPool
from khop.distributed.tensors.disk_rows import (
    DiskRows,
    Table,
    begin_change,
    end_change,
    most_rows,
)
from khop.distributed.tensors.tensor_requests import RowUpdate, TensorSpec
from khop.typing import Array, Int64Array

BYTES_AT_ONCE = 4 << 20
"""Bytes of a slice of work."""


class Held(NamedTuple):
    """A push that waits for the end of its step.

    Attributes:
        rank: rank of its trainer.
        position: position among the pushes of its trainer.
        name: name of its tensor.
        rows: [n] rows of the part.
        values: [n, ...] their values.
        reduce: how values are combined with rows.
    """

    rank: int
    position: int
    name: str
    rows: Int64Array
    values: Array
    reduce: str

    @property
    def nbytes(self) -> int:
        """Bytes of rows and values."""
        return self.rows.nbytes + self.values.nbytes

    def slices(self) -> Iterator[Held]:
        """Divide the push into pushes of at most `BYTES_AT_ONCE` bytes."""
        count = max(BYTES_AT_ONCE * len(self.rows) // max(self.nbytes, 1), 1)
        for first in range(0, len(self.rows), count):
            piece = slice(first, first + count)
            yield self._replace(rows=self.rows[piece], values=self.values[piece])


def apply_pushes(
    pushes: Sequence[Held], tables: Mapping[str, Table], specs: Mapping[str, TensorSpec]
) -> Generator[None, None, None]:
    """Apply pushes in their order.

    Args:
        pushes: the pushes.
        tables: rows of each tensor, by its name.
        specs: specification of each tensor, by its name.
    """
    done = 0
    for push in pushes:
        for piece in push.slices():
            table, is_narrow = tables[push.name], specs[push.name].dtype == "bfloat16"
            if isinstance(table, DiskRows):
                yield from _apply_on_disk(table, piece, is_narrow)
            else:
                _native.scatter(table, piece.rows, piece.values, push.reduce, is_narrow)
            done += piece.nbytes
            if done > BYTES_AT_ONCE:
                done = 0
                yield None


def _apply_on_disk(table: DiskRows, push: Held, is_narrow: bool) -> Iterator[None]:
    for first in range(0, len(push.rows), table.most_rows):
        piece = slice(first, first + table.most_rows)
        distinct = _native.DistinctRows(len(table))
        positions = distinct.add(push.rows[piece])
        values, at = table.begin_change(distinct.rows())
        _native.scatter(values, positions, push.values[piece], push.reduce, is_narrow)
        table.end_change(at, values)
        yield None


def update_rows(
    update: RowUpdate, tables: Sequence[Table], pushes: Sequence[Held], pool: BufferPool
) -> Generator[None, None, None]:
    """Update rows by the sums of their gradients, which run in the order of the pushes.

    Args:
        update: the rule and its constants.
        tables: rows of the tensor, then rows of its states.
        pushes: the gradients.
        pool: memory for the sums.
    """
    table = tables[0]
    distinct = _native.DistinctRows(len(table))
    pieces = [piece for push in pushes for piece in push.slices()]
    positions, done = [], 0
    for piece in pieces:
        positions.append(distinct.add(piece.rows))
        done += piece.rows.nbytes
        if done > BYTES_AT_ONCE:
            done = 0
            yield None
    rows = distinct.rows()
    sums = pool.empty((len(rows), *table.shape[1:]), np.dtype(np.float32))
    count = max(BYTES_AT_ONCE // max(4 * math.prod(table.shape[1:]), 1), 1)
    for begin in range(0, len(rows), count):
        sums[begin : begin + count] = 0
        yield None
    done = 0
    for piece, at in zip(pieces, positions, strict=True):
        _native.scatter(sums, at, piece.values, "add")
        done += piece.nbytes
        if done > BYTES_AT_ONCE:
            done = 0
            yield None
    constants = update.rate, update.epsilon, update.beta1, update.beta2, update.scale
    count, rule = most_rows(count, *tables), update.rule
    is_on_disk = any(isinstance(one, DiskRows) for one in tables)
    for begin in range(0, len(rows), count):
        chosen, gradients = rows[begin : begin + count], sums[begin : begin + count]
        taken = [begin_change(one, chosen) for one in tables] if is_on_disk else []
        arrays: list[Any] = [values for values, _ in taken] or [*tables]
        at = np.arange(len(chosen)) if taken else chosen
        first, second = [*arrays[1:], None, None][:2]
        _native.update_rows(arrays[0], at, gradients, rule, first, second, *constants)
        for one, (values, where) in zip(tables, taken, strict=False):
            end_change(one, where, values)
        yield None
