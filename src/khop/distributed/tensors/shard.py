"""The rows of a part of all tensors, at the part's primary server. Imports no torch.

The writer thread of the part (`khop.distributed.rpc.state_handler`) runs the functions, so that
there is no lock. A push of a step is checked when it arrives, and held until the step ends. Then
all pushes of the step are applied in the order of (rank, position). So a row's values do not depend
on the order of arrival, nor on the number of parts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Generator, Sequence
from io import FileIO
from typing import Any

import numpy as np

from khop import _native, codec
from khop.channel.arena import create_memory, map_memory
from khop.channel.message import frame_slices
from khop.channel.pool import BufferPool
from khop.cores import available_memory
from khop.distributed.rpc.frame_handler import Answer, RequestType, Steps
from khop.distributed.rpc.limits import DEFAULT, check_reply_bytes
from khop.distributed.rpc.protocol import check_empty, check_index, ids_of
from khop.distributed.tensors.accounts import Account
from khop.distributed.tensors.disk_rows import DiskRows, Table, most_rows
from khop.distributed.tensors.row_updates import BYTES_AT_ONCE, Held, apply_pushes, update_rows
from khop.distributed.tensors.tensor_requests import (
    GRADIENT,
    HELD_BYTES,
    STAGED_ALIGNMENT,
    STAGED_BYTES,
    CreateTensor,
    DeleteTensor,
    DescribeStore,
    EndStep,
    MakeStagingArea,
    PullRows,
    PushRows,
    ReadStep,
    RowUpdate,
    SetVersion,
    ShareTensor,
    TensorSpec,
    normal_rows,
    rows_in,
)
from khop.errors import ProtocolError, StateLostError
from khop.storage.part import Part
from khop.typing import Array, Int64Array

_MAX_IDLE = 64 << 20
_MAX_TENSORS = 4096
_PUSH_BYTES = 64 << 20
_PUSH_PIECES = 64
_MAX_AREAS = 1024
_TRAINED = ("float32", "bfloat16")
_NUM_STATES = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 1, "adam": 2}


class Shard:
    """The rows of one part of all tensors of a store.

    Args:
        part: the part.
        account: counts the bytes of rows and of pushes. If None, rows are bounded by the machine's
            memory.
    """

    def __init__(self, part: Part, account: Account | None = None) -> None:
        self._part = part
        self._account = account or Account(None, "the server")
        self._specs: dict[str, TensorSpec] = {}
        self._values: dict[str, Table] = {}
        self._memory: dict[str, FileIO] = {}
        self._step = self._version = 0
        self._is_in_step = self._is_damaged = False
        self._held: list[Held] = []
        self._held_bytes = 0
        self._areas: list[tuple[FileIO, Array]] = []
        self._pool = BufferPool(_MAX_IDLE)

    @property
    def num_tensors(self) -> int:
        return len(self._specs)

    @property
    def version(self) -> int:
        return self._version

    def types(self) -> list[RequestType]:
        """Return the table of the requests to the shard."""
        staging = RequestType(MakeStagingArea, "read_state", self.make_area, carries=0)
        return [*tensor_types(lambda request: self), staging]

    def create(self, request: CreateTensor, arrays: list[Array]) -> Steps:
        """Make a tensor's rows with their first values."""
        check_empty(arrays)
        name, spec = request.name, request.spec
        self._check_new(name)
        types = self._part.meta.types(spec.element)
        bounds = types[check_index(spec.type_index, len(types), "type")].bounds
        first, count = bounds[self._part.part], bounds[self._part.part + 1]
        count -= first
        if spec.seed is not None and not spec.dtype.startswith(("float", "bfloat")):
            raise ProtocolError(f"normal first values need floats (got '{spec.dtype}')")
        nbytes = count * spec.rows.nbytes
        in_memory = nbytes if spec.cache_bytes is None else min(nbytes, spec.cache_bytes)
        available = available_memory()
        if available is not None and in_memory > available:
            raise MemoryError(
                f"{in_memory >> 20} MiB for tensor '{name}' in partition {self._part.part}: the "
                f"server's machine has {available >> 20} MiB"
            )
        self._account.take(nbytes, f"tensor '{name}' in partition {self._part.part}")
        table: Table | None = None
        memory = None
        try:
            if spec.cache_bytes is None:
                memory = os.fdopen(create_memory(nbytes, "khop-tensor"), "r+b", 0)
                table = rows_in(memory.fileno(), count, spec.rows)
            else:
                table = DiskRows(count, spec.rows, spec.cache_bytes)
            if spec.seed is not None:
                yield from self._fill(table, spec, spec.seed)
            self._check_new(name)  # between slices, another request may have made it
        except BaseException:
            self._account.give(nbytes)
            if isinstance(table, DiskRows):
                table.close()
            raise
        self._specs[name], self._values[name] = spec, table
        if memory is not None:
            self._memory[name] = memory
        return []

    def _check_new(self, name: str) -> None:
        if name in self._specs:
            raise ProtocolError(f"there is a tensor '{name}' already")
        if len(self._specs) >= _MAX_TENSORS:
            raise ProtocolError(f"there are {_MAX_TENSORS} tensors already: delete some")

    def _fill(self, table: Table, spec: TensorSpec, seed: int) -> Generator[None, None, None]:
        """Fill a new tensor's rows with normal values."""
        name_of_ids = "id" if spec.element == "node" else "edge_id"
        ids = self._part.feature(spec.element, spec.type_index, name_of_ids)
        at_once = most_rows(max(BYTES_AT_ONCE // max(8 * spec.rows.nbytes, 8), 1), table)
        for begin in range(0, len(table), at_once):
            rows = np.arange(begin, min(begin + at_once, len(table)))
            values = normal_rows(seed, ids.gather(rows), spec.rows)
            if isinstance(table, DiskRows):
                table.write(rows, values)
            else:
                _native.gather(values, None, table, rows)
            yield None

    def delete(self, request: DeleteTensor, arrays: list[Array]) -> list[Array]:
        """End a tensor, and drop its pushes."""
        check_empty(arrays)
        table = self._tensor(request.name)
        self._account.give(table.nbytes)
        del self._specs[request.name], self._values[request.name]
        if isinstance(table, DiskRows):
            table.close()
        else:
            self._memory.pop(request.name).close()
        before = self._held_bytes
        self._held = [push for push in self._held if push.name != request.name]
        self._held_bytes = sum(push.nbytes for push in self._held)
        self._account.give(before - self._held_bytes)
        return []

    def push(self, request: PushRows, arrays: list[Array]) -> list[Array] | Steps:
        """Hold a push until its step ends, or apply it now if it belongs to no step."""
        table, rows = self._tensor(request.name), ids_of(arrays[:1])
        dtype = table.dtype
        if request.reduce == GRADIENT:
            if request.step is None or self._specs[request.name].dtype not in _TRAINED:
                raise ProtocolError(f"'{request.name}' cannot take gradients of no step, or at all")
            dtype = np.dtype(np.float32)
        pieces = arrays[1:]
        if request.area is not None:
            pieces = [*pieces, self._staged(request, dtype, (len(rows), *table.shape[1:]))]
        if not pieces or any(values.dtype != dtype for values in pieces):
            raise ProtocolError(f"a push to '{request.name}' needs rows and {dtype} values")
        shapes = [list(values.shape) for values in pieces]
        fits = all(values.shape[1:] == table.shape[1:] and values.ndim for values in pieces)
        if not fits or sum(map(len, pieces)) != len(rows):
            raise ProtocolError(
                f"a push to '{request.name}' has values {shapes} for {len(rows)} rows "
                f"{list(table.shape[1:])}"
            )
        self._check_rows(request.name, rows)
        if request.step is not None and request.step != self._step:
            raise ProtocolError(f"a push of step {request.step} came in step {self._step}")
        nbytes = rows.nbytes + sum(values.nbytes for values in pieces)
        if request.step is not None and self._held_bytes + nbytes > HELD_BYTES:
            raise ProtocolError(
                f"the pushes of this step need more than {HELD_BYTES >> 20} MiB at partition "
                f"{self._part.part}: call step() more often, or push with relaxed=True"
            )
        pushes, begin = [], 0
        for values in pieces:
            of_piece = rows[begin : begin + len(values)]
            begin += len(values)
            # The arrays are views of the message, or of the staging area until the step ends.
            described = request.rank, request.position, request.name, of_piece, values
            pushes.append(Held(*described, request.reduce))
        if request.step is None:
            return self._apply(pushes)
        self._account.take(nbytes, "the pushes of this step")
        self._held += pushes
        self._held_bytes += nbytes
        return []

    def make_area(self, request: MakeStagingArea, arrays: list[Array]) -> list[Array]:
        """Make shared memory for the values of a trainer's pushes. Its pages come with their use.

        Rows come by message: they are checked once, and no other process can change them then.
        """
        check_empty(arrays)
        if len(self._areas) >= _MAX_AREAS:
            raise ProtocolError(f"there are {_MAX_AREAS} staging areas already")
        memory = os.fdopen(create_memory(STAGED_BYTES, "khop-pushes"), "r+b", 0)
        self._areas.append((memory, np.frombuffer(map_memory(memory.fileno()), np.uint8)))
        return [np.array([os.getpid(), memory.fileno(), len(self._areas) - 1])]

    def _staged(self, request: PushRows, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return the values of a push in a staging area."""
        nbytes = math.prod(shape) * dtype.itemsize
        begin, area = request.offset, request.area
        if area is None or area >= len(self._areas) or dtype == np.bool_:
            raise ProtocolError(f"there is no staging area {area} for {dtype} values")
        if begin % STAGED_ALIGNMENT or begin + nbytes > STAGED_BYTES:
            raise ProtocolError(f"{nbytes} bytes at {begin} do not lie in a staging area")
        return self._areas[area][1][begin : begin + nbytes].view(dtype).reshape(shape)

    def end_step(self, request: EndStep, arrays: list[Array]) -> Steps:
        """Apply the pushes of the step, in the order of trainers and of their pushes."""
        check_empty(arrays)
        if request.step != self._step:
            raise ProtocolError(f"step {request.step} cannot end in step {self._step}")
        gradients: dict[str, list[Held]] = {}
        for push in self._held:
            if push.reduce == GRADIENT:
                gradients.setdefault(push.name, [])
        updates = {update.name: update for update in request.updates}
        if len(updates) < len(request.updates) or not updates.keys() >= gradients.keys():
            raise ProtocolError("each tensor with gradients needs an optimiser, and one only")
        states = {name: self._states(update) for name, update in updates.items()}
        held, nbytes = self._held, self._held_bytes
        self._held, self._held_bytes = [], 0
        held.sort(key=lambda push: (push.rank, push.position))
        self._is_in_step = True
        try:
            for push in held:
                if push.reduce == GRADIENT:
                    gradients[push.name].append(push)
            yield from self._apply([push for push in held if push.reduce != GRADIENT])
            for name, pushes in gradients.items():
                tables = [self._values[name], *states[name]]
                yield from update_rows(updates[name], tables, pushes, self._pool)
        except BaseException:
            self._is_damaged = True
            raise
        finally:
            self._is_in_step = False
            self._account.give(nbytes)
        self._step, self._version = self._step + 1, self._version + 1
        return []

    def set_version(self, request: SetVersion, arrays: list[Array]) -> list[Array]:
        """Count versions from another number."""
        check_empty(arrays)
        self._version = request.version
        return []

    def describe(self, request: DescribeStore, arrays: list[Array]) -> list[Array]:
        """Return the specifications of all tensors, as JSON text."""
        check_empty(arrays)
        text = json.dumps({name: codec.to_json(spec) for name, spec in self._specs.items()})
        return [np.frombuffer(text.encode(), np.uint8)]

    def _states(self, update: RowUpdate) -> list[Table]:
        """Return the tables with the state of an update."""
        self._tensor(update.name)
        states = [self._tensor(name) for name in update.states]
        if len(states) != _NUM_STATES[update.rule]:
            raise ProtocolError(f"'{update.rule}' has {_NUM_STATES[update.rule]} tensors of state")
        return states

    def read_step(self, request: ReadStep, arrays: list[Array]) -> list[Array]:
        """Return the number of completed steps."""
        check_empty(arrays)
        return [np.array([self._step])]

    def share(self, request: ShareTensor, arrays: list[Array]) -> list[Array]:
        """Return where processes of this user and host find a tensor's memory."""
        check_empty(arrays)
        self._tensor(request.name)
        memory = self._memory.get(request.name)
        return [np.array([os.getpid(), -1 if memory is None else memory.fileno()])]

    def pull(self, request: PullRows, arrays: list[Array]) -> Steps:
        """Return rows as they are now, or as they were after a step."""
        table, rows = self._tensor(request.name), ids_of(arrays)
        self._check_rows(request.name, rows)
        nbytes = len(rows) * self._specs[request.name].rows.nbytes
        check_reply_bytes(nbytes, min(DEFAULT.reply_bytes, _PUSH_BYTES), f"{len(rows)} rows")
        if request.with_step:
            out, numbers = yield from self._completed(table, rows)
        else:
            out, numbers = (yield from self._gather(table, rows)), []
        pieces = frame_slices(len(rows), self._specs[request.name].rows.nbytes)
        return [*(out[piece] for piece in pieces), *numbers]

    def _completed(
        self, table: Table, rows: Int64Array
    ) -> Generator[None, None, tuple[Array, list[Array]]]:
        """Return rows, completed steps and version when no step is being applied."""
        while True:
            while self._is_in_step:
                yield None
            if self._is_damaged:
                raise StateLostError(
                    "a step of the store has failed half way: its rows are damaged"
                )
            step = self._step
            out = yield from self._gather(table, rows)
            if self._step == step and not self._is_in_step:
                return out, [np.array([self._step, self._version])]

    def _gather(self, table: Table, rows: Int64Array) -> Generator[None, None, Array]:
        out = self._pool.empty((len(rows), *table.shape[1:]), table.dtype)
        if not isinstance(table, DiskRows):
            _native.gather(table, rows, out)
            return out
        for begin in range(0, len(rows), table.most_rows):
            piece = slice(begin, begin + table.most_rows)
            out[piece] = table.read(rows[piece])
            yield None
        return out

    def _tensor(self, name: str) -> Table:
        if name not in self._values:
            raise KeyError(f"there is no tensor '{name[:100]}'")
        return self._values[name]

    def _apply(self, pushes: Sequence[Held]) -> Steps:
        yield from apply_pushes(pushes, self._values, self._specs)
        return []

    def _check_rows(self, name: str, rows: Int64Array) -> None:
        count = len(self._values[name])
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
            raise IndexError(f"tensor '{name}' has {count} rows in partition {self._part.part}")


def tensor_types(
    shard_of: Callable[[Any], Shard], most_bytes: int = _PUSH_BYTES
) -> list[RequestType]:
    """Return the table of the requests to tensors.

    Args:
        shard_of: returns the shard that a request is for. It may refuse the request by an error.
        most_bytes: maximum bytes that a push or a pull carries.
    """

    def at_shard(answer: Callable[[Shard, Any, list[Array]], list[Array] | Steps]) -> Answer:
        return lambda request, arrays: answer(shard_of(request), request, arrays)

    arrays = 1 + _PUSH_PIECES
    return [
        RequestType(CreateTensor, "write", at_shard(Shard.create), carries=0),
        RequestType(DeleteTensor, "write", at_shard(Shard.delete), carries=0),
        RequestType(PushRows, "write", at_shard(Shard.push), carries=most_bytes, arrays=arrays),
        RequestType(EndStep, "write", at_shard(Shard.end_step), carries=0),
        RequestType(SetVersion, "write", at_shard(Shard.set_version), carries=0),
        RequestType(ReadStep, "read_state", at_shard(Shard.read_step), carries=0),
        RequestType(DescribeStore, "read_state", at_shard(Shard.describe), carries=0),
        RequestType(ShareTensor, "read_state", at_shard(Shard.share), carries=0),
        RequestType(PullRows, "read_state", at_shard(Shard.pull), carries=most_bytes, arrays=1),
    ]


def request_types(part: Part) -> list[RequestType]:
    """Return the requests to the tensors of a part. See `state_handler.users_requests`."""
    return Shard(part).types()
