"""Tensors over the nodes or edges of a partition folder that trainers write to. Runs in trainers.

The rows of a partition are in the memory of its primary, a server process of one trainer. Trainers
push changes and pull rows. All trainers end a *step* together, and the pushes of the step are
applied then, in the order of trainers and of their pushes. So results do not depend on the number
of partitions, nor on which push arrives first.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from threading import RLock
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop import _native, codec
from khop.channel.message import FRAME_BYTES
from khop.data.arrays import STORAGE, check_range, storage_dtype, to_array, to_ids
from khop.data.tickets import Ticket
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.membership.barrier import Barrier
from khop.distributed.membership.members import Membership
from khop.distributed.partitions.service import PartitionService
from khop.distributed.tensors.tensor_requests import (
    GRADIENT,
    CreateTensor,
    DeleteTensor,
    EndStep,
    PullRows,
    PushRows,
    ReadStep,
    Reduce,
    RowUpdate,
    TensorSpec,
    stored_numbers,
)
from khop.errors import PartitionUnavailableError, ProtocolError, RendezvousError
from khop.loader.batches.collate import to_tensor
from khop.storage.part import Part
from khop.typing import Array, ArrayLike, EdgeType, Int64Array, NodeType

Init: TypeAlias = "str | tuple[str, int] | ArrayLike"
"""First values: 'zeros', ('normal', seed), or [num_rows, *shape] values by original id."""

_Batch = TypeVar("_Batch", Data, HeteroData)
_REQUESTS = "khop.distributed.tensors.shard"
_RELAXED_AT_ONCE = 1 << 16  # rows of first values that a trainer sends before it waits


class Push:
    """A push of rows in flight, made by `GraphTensor.push`."""

    def __init__(self, store: GraphStore, tickets: Sequence[Ticket]) -> None:
        self._store = store
        self._tickets = tickets

    @property
    def done(self) -> bool:
        """Whether all servers have answered, with success or an error."""
        return all(ticket.done for ticket in self._tickets)

    def wait(self) -> None:
        """Wait until the servers have accepted the push. They apply it at the end of the step.

        A push with `relaxed=True` has been applied then.

        Raises:
            StateLostError: a server was started again and has lost its rows.
            PartitionUnavailableError: a server gives no answer in time.
        """
        self._store.wait(self._tickets)


class GraphTensor:
    """Rows of all nodes or edges of a type, in the memory of the partitions' servers.

    `GraphStore.create_node_tensor` and `create_edge_tensor` make these objects.

    Attributes:
        name: name of the tensor.
        group: node type or edge type that has one row per node or edge.
        shape: [num_rows, *shape of a row].
        dtype: dtype of the values.
    """

    def __init__(
        self, store: GraphStore, name: str, group: NodeType | EdgeType, spec: TensorSpec
    ) -> None:
        self.name, self.group = name, group
        self._store, self._spec = store, spec
        self._bounds = store.bounds_of(spec)
        self.shape = torch.Size((self._bounds[-1], *spec.shape))
        self.dtype: torch.dtype = getattr(torch, spec.dtype)

    def __repr__(self) -> str:
        """Return name, type, shape and dtype."""
        return f"GraphTensor('{self.name}', {self.group!r}, {list(self.shape)}, {self._spec.dtype})"

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, ids: ArrayLike | slice | int) -> Tensor:
        """Return rows: short for `pull`. An int gives a row without the first axis."""
        if isinstance(ids, int):
            return self.pull([ids])[0]
        return self.pull(ids)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, over all partitions."""
        return self.shape[0] * self._spec.rows.nbytes

    def pull(self, ids: ArrayLike | slice | None = None) -> Tensor:
        """Return rows as they were after the last step, with all relaxed pushes that have arrived.

        Args:
            ids: [n] int64 original ids, in any order, also repeated, or a slice. If None, all rows.

        Returns:
            [n, *shape] tensor of the tensor's dtype, on the CPU.

        Raises:
            IndexError: an id does not exist.
            StateLostError, PartitionUnavailableError: see `Push.wait`.
        """
        spec, store = self._spec, self._store
        rows = store.positions(spec, self._ids(ids))
        out = np.empty((len(rows), *spec.shape), storage_dtype(spec.dtype))
        tickets, targets = [], []
        for part, local, at in self._pieces(rows):
            tickets.append(store.read(part, PullRows(self.name), [local]))
            targets.append(at)
        store.wait(tickets)
        for ticket, at in zip(tickets, targets, strict=True):
            (values,) = ticket.result() or [None]
            if values is None or values.dtype != out.dtype or values.shape[1:] != out.shape[1:]:
                raise ProtocolError(f"a server sent rows of '{self.name}' in another format")
            _native.gather(values, None, out, at)
        return to_tensor(out, spec.dtype)

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
        spec, store = self._spec, self._store
        wanted = self._ids(ids)
        array, dtype = to_array(values, "values")
        if dtype != spec.dtype and not isinstance(values, (np.ndarray, Tensor)):
            array, dtype = stored_numbers(array, spec.dtype), spec.dtype  # Python's numbers
        if dtype != spec.dtype:
            raise TypeError(f"'{self.name}' has {spec.dtype} values (got {dtype}): convert them")
        if array.shape != (len(wanted), *spec.shape):
            raise ValueError(
                f"values must have the shape {[len(wanted), *spec.shape]} for {len(wanted)} ids "
                f"of '{self.name}' (got {list(array.shape)})"
            )
        return self._send(wanted, array, reduce, None if relaxed else store.version)

    def push_gradients(self, ids: Int64Array, gradients: Array) -> Push:
        """Push gradients, which `GraphStore.end_step` applies by an optimiser's rule.

        Args:
            ids: [n] int64 original ids.
            gradients: [n, *shape] float32.

        :meta private:
        """
        return self._send(self._ids(ids), gradients, GRADIENT, self._store.version)

    def _send(self, ids: Int64Array, values: Array, reduce: Any, step: int | None) -> Push:
        store, tickets = self._store, []
        for part, local, at in self._pieces(store.positions(self._spec, ids)):
            message = PushRows(self.name, reduce, step, store.rank, store.next_position())
            tickets.append(store.write(part, message, [local, values[at]]))
        return Push(store, tickets)

    def _ids(self, ids: ArrayLike | slice | None) -> Int64Array:
        if ids is None or isinstance(ids, slice):
            return np.arange(len(self), dtype=np.int64)[ids or slice(None)]
        wanted = to_ids(ids, "ids").astype(np.int64, copy=False)
        check_range(wanted, len(self), f"ids of '{self.name}'")
        return wanted

    def _pieces(self, rows: Int64Array) -> Iterable[tuple[int, Int64Array, Int64Array]]:
        """Yield part, local rows and positions in `rows`, for one message each."""
        count = max(FRAME_BYTES // max(self._spec.rows.nbytes, 8), 1)
        _, grouped, positions, offsets = _native.split_by_owner(rows, self._bounds)
        for part, (begin, end) in enumerate(itertools.pairwise(offsets)):
            for first in range(begin, end, count):
                piece = slice(first, min(first + count, end))
                yield part, grouped[piece] - self._bounds[part], positions[piece]


class _StoreBarrier(Barrier):
    """Barrier of a store's steps, which also notices that the server of a partition has ended."""

    def __init__(self, members: Membership, name: str, store: GraphStore) -> None:
        super().__init__(members, name)
        self._store = weakref.ref(store)

    def check(self) -> None:
        super().check()
        store = self._store()
        if store is not None:
            store.check_servers()


class GraphStore:
    """Tensors over the nodes and edges of a dataset, which trainers read and write.

    All trainers make the store together, and make the same calls of `create_node_tensor`,
    `create_edge_tensor`, `delete` and `step` in the same order. The first trainer at home in a
    partition runs a server process that has the partition's rows. If that process ends, its rows
    are lost, and all trainers get an exception: restore a checkpoint then.

    Args:
        dataset: the dataset of this trainer.
        timeout: seconds that a request may take.

    Raises:
        TypeError: something else than a `DistDataset`, such as a client's graph servers.
        RendezvousError: trainers have different folders, or no trainer has some partition.

    Example:
        >>> store = GraphStore(DistDataset.from_folder(folder))
        >>> history = store.create_node_tensor("history", shape=(2,))
        >>> _ = history.push([3, 1, 3], torch.ones(3, 2), "add")
        >>> store.step(), history[[1, 2, 3]].tolist()
        (1, [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    """

    def __init__(self, dataset: DistDataset, timeout: float = 180.0) -> None:
        self._dataset = check_dataset(dataset, "dataset")
        self._meta = dataset.meta
        context = dataset.context
        self.rank, self.num_trainers = context.rank, context.world_size
        self._service = PartitionService(
            context, dataset.opened, dataset.partition_idx, dataset.parts, [_REQUESTS]
        )
        self._client = self._service.state_client(timeout)
        self._own_parts = [
            part
            for part in range(self._meta.num_parts)
            if self._service.primary(part) == context.rank
        ]
        self._lock = RLock()
        self._tensors: dict[str, GraphTensor] = {}
        self._in_flight: deque[Ticket] = deque()
        self._version = 0
        self._num_pushes = itertools.count()
        self._num_steps = itertools.count()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._barrier = _StoreBarrier(context.members, context.next_name("store"), self)
        self._barrier.start()
        context.close_before_leaving(self)
        self._together("begin", None, self._know_servers)

    def _know_servers(self) -> None:
        """Send a request to each server.

        From then on, a server that is another process than before is noticed, and a server that
        ends with its trainer sends its reason.
        """
        self.wait([self.read(p, ReadStep(), []) for p in range(self._meta.num_parts)])

    def __repr__(self) -> str:
        """Return the tensors and the number of completed steps."""
        return f"GraphStore({list(self._tensors.values())}, version={self._version})"

    def __enter__(self) -> GraphStore:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    @property
    def version(self) -> int:
        """Number of completed steps."""
        return self._version

    def create_node_tensor(
        self,
        name: str,
        node_type: NodeType | None = None,
        shape: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        init: Init = "zeros",
    ) -> GraphTensor:
        """Make a tensor with one row per node of a type. All trainers call it together.

        Args:
            name: name of the tensor, at most 256 characters.
            node_type: the node type. If None, the only one.
            shape: shape of a row. By default, a row is a number.
            dtype: dtype of the values.
            init: first values: 'zeros', ('normal', seed) with mean 0 and variance 1, or
                [num_nodes, *shape] values. Normal values depend on seed and original id only.

        Raises:
            KeyError: no such node type.
            ValueError: the name is in use, or an option has a wrong value.
            MemoryError: a server's machine has too little memory.
            RendezvousError: another trainer has failed, or made another call.
        """
        names = [t.name for t in self._meta.node_types]
        group = _only(names, node_type, "node_type")
        return self._create(name, group, "node", names.index(group), shape, dtype, init)

    def create_edge_tensor(
        self,
        name: str,
        edge_type: EdgeType | None = None,
        shape: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        init: Init = "zeros",
    ) -> GraphTensor:
        """Make a tensor with one row per edge of a type, by original edge id.

        Arguments and errors: see `create_node_tensor`. If the folder keeps edge ids, the first use
        reads the ids of all edges, and keeps 4 or 8 bytes per edge.
        """
        names = [t.name for t in self._meta.edge_types]
        group = _only(names, edge_type, "edge_type")
        return self._create(name, group, "edge", names.index(group), shape, dtype, init)

    def _create(
        self,
        name: str,
        group: Any,
        element: str,
        index: int,
        shape: Sequence[int],
        dtype: torch.dtype,
        init: Init,
    ) -> GraphTensor:
        type_name = str(dtype).removeprefix("torch.")
        if type_name not in STORAGE:
            raise ValueError(f"dtype {dtype} is not supported: one of {', '.join(STORAGE)} is")
        if name in self._tensors or not 0 < len(name) <= 256:
            raise ValueError(f"'{name[:256]}' is the name of a tensor already, or is no name")
        sizes = [operator.index(size) for size in shape]
        if any(size < 0 for size in sizes) or len(sizes) > 8:
            raise ValueError(f"shape must have at most 8 sizes of 0 or more (got {sizes})")
        described = {"element": element, "type_index": index, "dtype": type_name}
        seed, given_values = _first_values(init)
        spec = codec.from_json(TensorSpec, {**described, "shape": sizes, "seed": seed}, "a tensor")
        tensor = GraphTensor(self, name, group, spec)
        values: Array | None = None
        if given_values is not None:
            array, given = to_array(given_values, "init")
            if array.shape != tuple(tensor.shape):
                raise ValueError(
                    f"init must have the shape {list(tensor.shape)} (got {list(array.shape)})"
                )
            values = stored_numbers(array, type_name) if given != type_name else array

        def create() -> None:
            if element == "edge" and self._meta.num_parts > 1:
                self._dataset.peers()  # positions of edges need them: all trainers connect now
            message = CreateTensor(name, spec)
            self.wait([self.write(part, message, []) for part in self._own_parts])
            if values is not None:
                for part in self._own_parts:
                    self._fill(tensor, part, values)

        self._together(f"create {name}", [group, asdict(spec), values is not None], create)
        self._tensors[name] = tensor
        return tensor

    def _fill(self, tensor: GraphTensor, part: int, values: Array) -> None:
        """Send the first values of a part's rows."""
        bounds = self.bounds_of(tensor._spec)
        for first in range(bounds[part], bounds[part + 1], _RELAXED_AT_ONCE):
            new = np.arange(first, min(first + _RELAXED_AT_ONCE, bounds[part + 1]))
            ids = self.original_ids(tensor._spec, part, new)
            tensor.push(ids, to_tensor(values[ids], tensor._spec.dtype), relaxed=True).wait()

    def __getitem__(self, name: str) -> GraphTensor:
        """Return a tensor by name. KeyError if there is none."""
        if name not in self._tensors:
            raise KeyError(f"no tensor '{name}': there are {list(self._tensors)}")
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        """Return whether there is a tensor of this name."""
        return name in self._tensors

    def tensors(self) -> dict[str, GraphTensor]:
        """Return all tensors by name. `nbytes` of each is its memory over all servers."""
        return dict(self._tensors)

    def delete(self, name: str) -> None:
        """End a tensor, with its pushes of this step. All trainers call it together."""
        self[name]
        self._settle()

        def delete() -> None:
            self.wait([self.write(part, DeleteTensor(name), []) for part in self._own_parts])

        self._together(f"delete {name}", None, delete)
        del self._tensors[name]

    def step(self) -> int:
        """Apply the pushes of all trainers, and return the number of completed steps.

        All trainers call it together. When it returns, `pull` gives the new values everywhere.

        Raises:
            StateLostError, PartitionUnavailableError: see `Push.wait`.
            RendezvousError: another trainer has failed or ended. The message names it.
        """
        return self.end_step([])

    def end_step(self, updates: list[RowUpdate]) -> int:
        """Do a step, with updates of tensors by the gradients that were pushed.

        :meta private:
        """
        self._settle()
        message = EndStep(self._version, updates)

        def end_step() -> None:
            self.wait([self.write(part, message, []) for part in self._own_parts])

        self._together(f"step {self._version}", [asdict(update) for update in updates], end_step)
        self._version += 1
        return self._version

    def transform(self, names: Sequence[str]) -> Callable[[_Batch], _Batch]:
        """Return a function that adds rows of tensors to batches, for `transform=` of a loader.

        The trainer pulls the rows when a batch is handed out, so they are those of the last step.
        A batch gets an attribute per tensor, and `store_version`, the number of completed steps.

        Args:
            names: names of tensors. The loader must deliver `e_id` for tensors of edges.
        """
        tensors = [self[name] for name in names]

        def add_rows(batch: _Batch) -> _Batch:
            for tensor in tensors:
                is_typed = isinstance(batch, HeteroData)
                target = batch[tensor.group] if is_typed else batch
                ids = target.n_id if tensor._spec.element == "node" else target.e_id
                target[tensor.name] = tensor.pull(ids)
            batch.store_version = self._version
            return batch

        return add_rows

    def close(self) -> None:
        """End the connections and this trainer's servers. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._barrier.close(self._failure)
            self._client.close()

    @property
    def node_counts(self) -> dict[NodeType, int]:
        """Number of nodes of each type."""
        return {t.name: t.count for t in self._meta.node_types}

    # For tensors ----------------------------------------------------------------------------------

    def bounds_of(self, spec: TensorSpec) -> list[int]:
        """Return the first position of each part's rows, and the number of rows.

        :meta private:
        """
        return self._meta.types(spec.element)[spec.type_index].bounds

    def positions(self, spec: TensorSpec, ids: Int64Array) -> Int64Array:
        """Return the positions of rows in the folder's order, by original ids.

        :meta private:
        """
        if spec.element == "node":
            return self._dataset._new_ids_of(ids, self._meta.node_types[spec.type_index].name)
        return self._dataset.reader.positions(spec.type_index, ids, self._dataset.peers)

    def original_ids(self, spec: TensorSpec, part: int, positions: Int64Array) -> Int64Array:
        """Return the original ids of rows of a part, by their positions in the folder's order.

        :meta private:
        """
        name = "id" if spec.element == "node" else "edge_id"
        feature = Part(self._dataset.opened, part).feature(spec.element, spec.type_index, name)
        return feature.gather(positions - self.bounds_of(spec)[part]).astype(np.int64)

    def next_position(self) -> int:
        """Return the position of this trainer's next push.

        :meta private:
        """
        return next(self._num_pushes)

    def write(self, part: int, message: Any, arrays: Sequence[Array]) -> Ticket:
        """Send a write to a part's primary.

        :meta private:
        """
        with self._lock:
            self._check()
            ticket = self._client.write(part, message, arrays)
            while self._in_flight and self._in_flight[0].done:
                self._in_flight.popleft().result()
            self._in_flight.append(ticket)
            return ticket

    def read(self, part: int, message: Any, arrays: Sequence[Array]) -> Ticket:
        """Send a request for rows to a part's primary.

        :meta private:
        """
        with self._lock:
            self._check()
            return self._client.read_state(part, message, arrays)

    def wait(self, tickets: Sequence[Ticket]) -> None:
        """Wait for requests. After an error, the store cannot be used, and all trainers know it.

        :meta private:
        """
        with self._lock:
            self._check()
            try:
                self._client.wait(tickets)
                for ticket in tickets:
                    ticket.result()
            except Exception as error:
                self._fail(error)
                raise

    def check_servers(self) -> None:
        """Raise PartitionUnavailableError if a server has ended with its trainer.

        :meta private:
        """
        with self._lock:
            self._client.pump()
            for part, why in self._client.ended().items():
                rank = self._service.primary(part)
                raise PartitionUnavailableError(
                    f"the server of partition {part}, which trainer {rank} ran, {why}"
                )

    def _settle(self) -> None:
        """Wait until the servers have accepted all pushes."""
        with self._lock:
            tickets, self._in_flight = list(self._in_flight), deque()
        self.wait(tickets)

    def _together(self, name: str, arguments: object, action: Callable[[], None]) -> None:
        """Run an action between two meetings of all trainers.

        The first shows that all have made the same call and sent their pushes. After the second,
        the action of all trainers is done.
        """
        self._check()
        number = next(self._num_steps)
        try:
            calls = self._barrier.all_gather(f"{number}-begin", [name, arguments])
            if any(call != calls[self.rank] for call in calls):
                raise RendezvousError(
                    f"trainers make different calls of a GraphStore: {dict(enumerate(calls))}"
                )
            action()
            self._barrier.all_gather(f"{number}-end", None)
        except BaseException as error:
            self._fail(error)
            raise

    def _check(self) -> None:
        if self._failure is not None:
            raise RendezvousError(f"the store cannot be used any more: {self._failure}")
        if self._is_closed:
            raise RuntimeError("the store has been closed: make a new one")

    def _fail(self, error: BaseException) -> None:
        """Let the other trainers' next call raise."""
        if self._failure is None:
            self._failure = error
            self._barrier.close(error)


def _only(names: Sequence[Any], name: Any, argument: str) -> Any:
    """Return the type that is meant. KeyError if there is none, or None stands for several."""
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        raise KeyError(f"{argument} must be one of {list(names)} (got {name!r})")
    return name


def _first_values(init: Init) -> tuple[int | None, ArrayLike | None]:
    """Return the seed of normal values, and the values, of which one or both are None."""
    if isinstance(init, str):
        if init != "zeros":
            raise ValueError(f"init must be 'zeros', ('normal', seed) or values (got {init!r})")
        return None, None
    if isinstance(init, tuple) and len(init) == 2 and init[0] == "normal":
        return operator.index(init[1]), None  # type: ignore[arg-type]
    return None, init  # type: ignore[return-value]
