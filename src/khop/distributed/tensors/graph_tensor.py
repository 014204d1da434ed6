"""A tensor of a graph store: pulls of rows, and pushes of changes. Runs in trainers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from khop import _native
from khop.channel.message import FRAME_BYTES
from khop.channel.pool import BufferPool
from khop.data.arrays import storage_dtype, to_array
from khop.data.tickets import Ticket
from khop.distributed.tensors.store_client import StoreClient
from khop.distributed.tensors.tensor_requests import (
    GRADIENT,
    PullRows,
    PushRows,
    TensorSpec,
    stored_numbers,
)
from khop.distributed.tensors.tensor_view import TensorView
from khop.loader.batches.collate import to_tensor
from khop.typing import Array, ArrayLike, EdgeType, Int64Array, NodeType, Reduce

_MAX_IDLE = 256 << 20
# Of the values of a message. The first leaves while the next is copied. Graph servers serve several
# jobs: they take smaller pushes.
_PUSH_BYTES, _PUSH_BYTES_OF_JOB = 8 << 20, 2 << 20


class Push:
    """A push of rows in flight, made by `GraphTensor.push`.

    Example:
        >>> store = GraphStore(DistDataset.from_folder(folder))
        >>> push = store.create_node_tensor("h").push([1], [2.0], relaxed=True)
        >>> push.wait(), push.done
        (None, True)
    """

    def __init__(self, client: StoreClient, tickets: Sequence[Ticket]) -> None:
        self._client = client
        self._tickets = tickets

    @property
    def done(self) -> bool:
        """True if all servers have answered, with success or an error."""
        return all(ticket.done for ticket in self._tickets)

    def wait(self) -> None:
        """Wait until the servers have accepted the push. They apply it at the end of the step.

        A push with `relaxed=True` has been applied then.

        Raises:
            StateLostError: a server was started again and has lost its rows.
            PartitionUnavailableError: a server gives no answer in time.
        """
        self._client.wait(self._tickets)


class Pull:
    """Pull of rows in flight, made by `GraphTensor.start_pull`.

    Example:
        >>> store = GraphStore(DistDataset.from_folder(folder))
        >>> pull = store.create_node_tensor("h").start_pull([1, 2])
        >>> pull.wait(), pull.age
        (tensor([0., 0.]), 0)
    """

    def __init__(
        self,
        client: StoreClient,
        dtype: str,
        out: Array,
        pieces: Iterable[tuple[Ticket, Callable[[list[Array]], None] | None]],
    ) -> None:
        self._client, self._dtype, self._out = client, dtype, out
        # With a function that stores the rows, if the ticket's reply has the rows.
        self._pieces = deque(pieces)
        self._step = client.num_steps

    @property
    def age(self) -> int:
        """Number of steps that have ended since the pull began. The rows do not have them."""
        return self._client.num_steps - self._step

    def wait(self) -> Tensor:
        """Return the rows, [n, *shape], on the CPU. Each call returns the same tensor.

        Raises:
            StateLostError, PartitionUnavailableError: see `Push.wait`.
        """
        return to_tensor(self.read(), self._dtype)

    def read(self) -> Array:
        """Return the rows as an array.

        :meta private:
        """
        while self._pieces:  # rows are stored while others arrive, and their memory is used again
            ticket, store = self._pieces[0]
            self._client.wait([ticket])
            if store is not None:
                store(ticket.result())
            self._pieces.popleft()
        return self._out


class GraphTensor(TensorView):
    """Rows of all nodes or edges of a type, in the memory of the partitions' servers.

    `GraphStore.create_node_tensor` and `create_edge_tensor` make these objects.

    Attributes:
        name: name of the tensor.
        group: node type or edge type that has one row per node or edge.
        shape: [num_rows, *shape of a row].
        dtype: dtype of the values.
        spec: description of the tensor, as servers know it.

    Example:
        >>> store = GraphStore(DistDataset.from_folder(folder))
        >>> store.create_node_tensor("level", shape=(2,), dtype=torch.int64)
        GraphTensor('level', 'node', [6, 2], int64)
    """

    def __init__(
        self, client: StoreClient, name: str, group: NodeType | EdgeType, spec: TensorSpec
    ) -> None:
        super().__init__(name, group, spec, client.bounds_of(spec))
        self._client = client
        self._shared: dict[int, Array] = {}
        self._pool = BufferPool(_MAX_IDLE)

    def share_memory(self) -> None:
        """Read rows of servers on this host from their memory from now on, where that is possible.

        Servers change rows only while all trainers are in a step, or by relaxed pushes.

        :meta private:
        """
        self._shared = self._client.shared_rows(self.name, self.spec)

    def shared_parts(self) -> list[Array]:
        """Return the rows of all parts if they are in memory of this host, else an empty list.

        :meta private:
        """
        parts = range(len(self._bounds) - 1)
        return [self._shared[p] for p in parts] if len(self._shared) == len(parts) else []

    def rows_of_part(self, part: int, nbytes: int) -> Iterator[Array]:
        """Yield the rows of a part in their order, in pieces of about `nbytes`.

        Rows in memory of this host are one piece, which is not copied.

        :meta private:
        """
        if part in self._shared:
            yield self._shared[part]
            return
        low, high = self._bounds[part : part + 2]
        count = max(nbytes // max(self.spec.rows.nbytes, 8), 1)
        for first in range(low, high, count):
            yield self.read_at(np.arange(first, min(first + count, high)))

    def release_memory(self) -> None:
        """Unmap the memory of servers.

        :meta private:
        """
        self._shared.clear()

    def read(self, ids: Int64Array) -> Array:
        """Return rows as an array: see `pull`.

        :meta private:
        """
        return self.read_at(self._client.positions(self.spec, ids))

    def read_at(self, rows: Int64Array) -> Array:
        """Return rows by their [n] int64 positions in the folder's order.

        :meta private:
        """
        return self._start(rows, in_thread=False).read()

    def start_pull(self, ids: ArrayLike | slice | None = None) -> Pull:
        """Begin a pull, whose rows come while this process goes on.

        The rows are as a `pull` now would return them: the next step begins when they are read.

        Args:
            ids: see `pull`.

        Raises:
            IndexError: an id does not exist.
        """
        return self._start(self._client.positions(self.spec, self._ids(ids)), in_thread=True)

    def _start(self, rows: Int64Array, in_thread: bool) -> Pull:
        """Request rows of other hosts, and read those in this host's memory, now or in a thread."""
        spec, client = self.spec, self._client
        out = self._pool.empty((len(rows), *spec.shape), storage_dtype(spec.dtype))
        client.check()
        pieces: list[tuple[Ticket, Callable[[list[Array]], None] | None]] = []
        if (parts := self.shared_parts()) and not in_thread:
            _native.gather_parts(parts, rows, out)
            return Pull(client, spec.dtype, out, pieces)
        for part, local, at in self._pieces(rows):
            if part not in self._shared:
                ticket = client.read(part, PullRows(self.name), [local])
                pieces.append((ticket, partial(self._store, at=at, out=out)))
            elif in_thread:
                read = _native.gather, self._shared[part], local, out, at
                pieces.append((client.threads.submit(*read), None))
            else:
                _native.gather(self._shared[part], local, out, at)
        if in_thread:
            client.settle_later([ticket for ticket, _ in pieces])
        return Pull(client, spec.dtype, out, pieces)

    def push(
        self,
        ids: ArrayLike | slice | None,
        values: ArrayLike,
        reduce: Reduce = "set",
        *,
        relaxed: bool = False,
    ) -> Push:
        """Change rows at the end of the step.

        Pushes of several trainers to one row are applied in the order of ranks, and pushes of a
        trainer in its order. Within a push, a repeated id counts each time, from first to last.

        Args:
            ids: [n] int64 original ids, or a slice. If None, all rows.
            values: [n, *shape] tensor or array of the tensor's dtype, or Python's numbers. They are
                copied, so they may change afterwards.
            reduce: 'set', 'add', 'min' or 'max'. 'min' and 'max' give NaN if a value is NaN.
            relaxed: apply the push when it arrives, and not at the end of the step. Sums of floats
                then depend on the order of arrival.

        Returns:
            The push. `GraphStore.step` waits for all pushes, so `wait` is rarely needed.

        Raises:
            IndexError: an id does not exist. Nothing is sent.
            TypeError, ValueError: values of another dtype or shape, or an unknown `reduce`.
        """
        if reduce not in ("set", "add", "min", "max"):
            raise ValueError(f"reduce must be 'set', 'add', 'min' or 'max' (got {reduce!r})")
        spec, client = self.spec, self._client
        original = self._ids(ids)
        array, dtype = to_array(values, "values")
        if dtype != spec.dtype and not isinstance(values, (np.ndarray, Tensor)):
            array, dtype = stored_numbers(array, spec.dtype), spec.dtype  # Python's numbers
        if dtype != spec.dtype:
            raise TypeError(f"'{self.name}' has {spec.dtype} values (got {dtype}): convert them")
        if array.shape != (len(original), *spec.shape):
            raise ValueError(
                f"values must have the shape {[len(original), *spec.shape]} for "
                f"{len(original)} ids of '{self.name}' (got {list(array.shape)})"
            )
        step = None if relaxed else client.num_steps
        return self._send(client.positions(spec, original), array, reduce, step)

    def write(self, ids: Int64Array, values: Array) -> Push:
        """Set rows at once, outside of steps.

        :meta private:
        """
        return self.write_at(self._client.positions(self.spec, ids), values)

    def write_at(self, rows: Int64Array, values: Array) -> Push:
        """Set rows at once, by their [n] int64 positions in the folder's order.

        :meta private:
        """
        return self._send(rows, values, "set", None)

    def push_gradients(self, ids: Int64Array, gradients: Array) -> Push:
        """Push gradients, which `GraphStore.end_step` applies by an optimiser's rule.

        Args:
            ids: [n] int64 original ids.
            gradients: [n, *shape] float32.

        :meta private:
        """
        rows = self._client.positions(self.spec, self._ids(ids))
        return self._send(rows, gradients, GRADIENT, self._client.num_steps)

    def _send(self, rows: Int64Array, values: Array, reduce: Any, step: int | None) -> Push:
        client, tickets = self._client, []
        values = np.ascontiguousarray(values)
        areas = client.staging_areas if values.dtype != np.bool_ else {}
        nbytes = _PUSH_BYTES if client.access.sender is None else _PUSH_BYTES_OF_JOB
        for part, local, at in self._pieces(rows, nbytes):
            message = PushRows(self.name, reduce, step, client.rank, client.next_position())
            area = areas.get(part)
            staged = None if area is None else area.allocate(len(at) * _row_bytes(values))
            if area is None or staged is None:
                tickets.append(client.write(part, message, [local, *self._packed(values, at)]))
                continue
            offset, memory = staged
            _native.gather(values, at, memory.view(values.dtype).reshape(-1, *values.shape[1:]))
            message = replace(message, area=area.index, offset=offset)
            tickets.append(client.write(part, message, [local]))
            area.keep(offset, tickets[-1], step is not None)
        return Push(client, tickets)

    def _packed(self, values: Array, at: Int64Array) -> list[Array]:
        """Return rows of `values`, in arrays that are a frame of a message each."""
        count = max(FRAME_BYTES // max(_row_bytes(values), 1), 1)
        packed = []
        for first in range(0, len(at), count):
            chosen = at[first : first + count]
            packed.append(self._pool.empty((len(chosen), *values.shape[1:]), values.dtype))
            _native.gather(values, chosen, packed[-1])
        return packed


def _row_bytes(values: Array) -> int:
    return math.prod(values.shape[1:]) * values.itemsize
