"""Tensors of a graph store for processes that only read them, such as evaluators.

A reader asks the servers alone. It meets no trainers, and they do not notice it. All rows of a call
are of one completed step. Runs in trainers and in any other process.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any

import numpy as np
from torch import Tensor

from khop import codec
from khop.data.arrays import storage_dtype
from khop.distributed.job.context import get_context
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.tensors.batch_rows import BatchT, rows_in_batches
from khop.distributed.tensors.store_access import HasStoreAccess, ReadAccess
from khop.distributed.tensors.tensor_requests import DescribeStore, PullRows, TensorSpec
from khop.distributed.tensors.tensor_view import TensorView
from khop.errors import ProtocolError
from khop.loader.batches.collate import to_tensor
from khop.typing import Array, ArrayLike, Int64Array, NodeType

# Seconds between two requests to a server that has not applied a step yet.
_PAUSE = 0.001


class ReadOnlyTensor(TensorView):
    """A tensor of a graph store that this process reads, and does not change.

    `GraphStoreReader` makes these objects. Attributes: see `GraphTensor`.

    Example:
        >>> store = GraphStore(DistDataset.from_folder(folder))
        >>> _ = store.create_node_tensor("level", dtype=torch.int64)
        >>> store.reader()["level"]
        ReadOnlyTensor('level', 'node', [6], int64)
    """

    def __init__(self, reader: GraphStoreReader, name: str, spec: TensorSpec) -> None:
        described = reader.graph.meta.types(spec.element)[spec.type_index]
        super().__init__(name, described.name, spec, described.bounds)
        self._reader = reader

    def read(self, ids: Int64Array) -> Array:
        return self._reader.read([self], [ids])[0]


class GraphStoreReader:
    """Read-only access to the tensors of a `GraphStore`, for evaluators and other processes.

    In worker mode, `GraphStore.reader` makes one. It can be pickled for another process of the
    machine. With graph servers, any client makes one by the name of the job, also if it is no
    trainer of the job.

    Args:
        job: name of the job. If None, the name of the clients' group.
        timeout: seconds for a request, and to find the rows of one step.

    Raises:
        RuntimeError: this process is no client of graph servers.

    Example:
        >>> store = GraphStore(DistDataset.from_folder(folder))
        >>> _ = store.create_node_tensor("h", init=torch.arange(6.0))
        >>> reader = store.reader()
        >>> reader.names, reader["h"].pull([5, 1]), reader.version
        (['h'], tensor([5., 1.]), 0)
    """

    def __init__(self, job: str | None = None, timeout: float = 30.0) -> None:
        context: object = get_context()
        if not isinstance(context, HasStoreAccess):
            raise RuntimeError(
                "only clients of graph servers find a store by its name: call init_client, or in "
                "worker mode use GraphStore.reader() of a trainer"
            )
        self._access = context.store_reads(job)
        self._timeout = timeout
        self._begin()

    @classmethod
    def of_access(cls, access: ReadAccess, timeout: float = 30.0) -> GraphStoreReader:
        """Return a reader with an access to the servers.

        :meta private:
        """
        reader = cls.__new__(cls)
        reader.__setstate__({"_access": access, "_timeout": timeout})
        return reader

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = RLock()
        self._client: PartitionClient | None = None
        self._version = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to connect by itself."""
        return {"_access": self._access, "_timeout": self._timeout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore from a pickle. The first use connects."""
        self.__dict__.update(state)
        self._begin()

    def __enter__(self) -> GraphStoreReader:
        """Return the reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the reader."""
        self.close()

    def __repr__(self) -> str:
        """Return the process's access."""
        return f"GraphStoreReader({self._access.graph!r})"

    @property
    def graph(self) -> Any:
        """The graph.

        :meta private:
        """
        return self._access.graph

    @property
    def version(self) -> int:
        """Number of completed steps of the rows that were pulled last. 0 before the first pull."""
        return self._version

    @property
    def node_counts(self) -> dict[NodeType, int]:
        """Number of nodes of each type."""
        return {t.name: t.count for t in self.graph.meta.node_types}

    @property
    def names(self) -> list[str]:
        """Names of the tensors that there are now."""
        return list(self.tensors())

    def tensors(self) -> dict[str, ReadOnlyTensor]:
        """Return all tensors that there are now, by name."""
        with self._lock:
            client = self._connected()
            ticket = client.read_state(0, DescribeStore(self._access.sender))
            client.wait([ticket])
            try:
                described = json.loads(bytes(ticket.result()[0]))
                specs = {n: codec.from_json(TensorSpec, s, n) for n, s in described.items()}
                return {name: ReadOnlyTensor(self, name, spec) for name, spec in specs.items()}
            except (ValueError, IndexError, AttributeError, RecursionError) as error:
                raise ProtocolError(f"a server sent malformed tensors: {error}") from None

    def __getitem__(self, name: str) -> ReadOnlyTensor:
        """Return a tensor by name. KeyError if there is none now."""
        tensors = self.tensors()
        if name not in tensors:
            raise KeyError(f"no tensor '{name}': there are {list(tensors)}")
        return tensors[name]

    def __contains__(self, name: str) -> bool:
        """Return whether there is a tensor of this name now."""
        return name in self.tensors()

    def pull(self, names: Sequence[str], ids: ArrayLike | slice | None = None) -> list[Tensor]:
        """Return rows of several tensors, all as they were after one completed step.

        Args:
            names: names of tensors.
            ids: [n] int64 original ids, or a slice. If None, all rows.

        Returns:
            [n, *shape] rows of each tensor. `version` is the number of completed steps.

        Raises:
            KeyError: no such tensor.
            TimeoutError: trainers end steps faster than the rows are read.
            PartitionUnavailableError, StateLostError: a server has ended.
        """
        known = self.tensors()
        tensors = [known[name] for name in names]
        read = self.read(tensors, [tensor._ids(ids) for tensor in tensors])
        return [to_tensor(rows, t.spec.dtype) for rows, t in zip(read, tensors, strict=True)]

    def read(self, tensors: Sequence[ReadOnlyTensor], ids: Sequence[Int64Array]) -> list[Array]:
        """Return rows of tensors by original ids, of one completed step.

        :meta private:
        """
        with self._lock:
            client, outs, pieces = self._connected(), [], []
            for tensor, own in zip(tensors, ids, strict=True):
                positions = self._access.positions(client, tensor.spec, own)
                out = np.empty((len(own), *tensor.spec.shape), storage_dtype(tensor.spec.dtype))
                outs.append(out)
                pieces += [(tensor, out, *piece) for piece in tensor._pieces(positions)]
            self._version = self._read_pieces(client, pieces)
            return outs

    def _read_pieces(self, client: PartitionClient, pieces: list[Any]) -> int:
        """Read rows in pieces until all are of one step, the newest. Return its version."""
        end, sender = time.monotonic() + self._timeout, self._access.sender
        steps, newest, version = [-1] * len(pieces), 0, self._version
        while missing := [i for i, step in enumerate(steps) if step < newest]:
            if steps[missing[0]] >= 0:  # a step ended meanwhile, and its server may still apply it
                time.sleep(_PAUSE)
            tickets = []
            for i in missing:
                tensor, _, part, local, _ = pieces[i]
                request = PullRows(tensor.name, True, sender)
                tickets.append(client.read_state(part, request, [local]))
            for i, ticket in zip(missing, tickets, strict=True):
                client.wait([ticket])
                tensor, out, _, _, at = pieces[i]
                *rows, numbers = ticket.result() or [np.empty(0)]
                steps[i], of_reply = _checked(numbers)
                tensor._store(rows, at, out)
                if steps[i] >= newest:
                    newest, version = steps[i], of_reply
            if min(steps) < newest and time.monotonic() > end:
                raise TimeoutError(
                    "trainers have ended steps faster than the rows could be read, for "
                    f"{self._timeout:.0f} s: read fewer rows at a time, or between steps"
                )
        return version

    def transform(self, names: Sequence[str]) -> Callable[[BatchT], BatchT]:
        """Return a function that adds rows of tensors to batches. See `GraphStore.transform`."""
        known = self.tensors()
        tensors = [known[name] for name in names]

        def read(ids: list[Int64Array]) -> tuple[list[Array], int]:
            return self.read(tensors, ids), self.version

        return rows_in_batches(tensors, read)

    def _connected(self) -> PartitionClient:
        """Return the connections of this process."""
        if os.getpid() != self._owner:  # a fork
            self._access = copy.copy(self._access)
            self._begin()
        if self._client is None:
            self._client = self._access.client(self._timeout)
        return self._client

    def close(self) -> None:
        """End the connections. The next use connects again."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None:
                client.close()


def _checked(numbers: Array) -> tuple[int, int]:
    """Return step and version of a reply, once their format has been checked."""
    if numbers.dtype != np.int64 or numbers.shape != (2,) or numbers.min() < 0:
        raise ProtocolError("a server sent malformed numbers of steps")
    return int(numbers[0]), int(numbers[1])
