"""Tensors over the nodes or edges of a partition folder that trainers write to. Runs in trainers.

The rows of a partition are in the memory of its primary, a server process of one trainer. Trainers
push changes and pull rows. All trainers end a *step* together, and the pushes of the step are
applied then, in the order of trainers and of their pushes. So results do not depend on the number
of partitions, nor on which push arrives first.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from khop.data.arrays import STORAGE, to_array
from khop.data.hot_rows import parse_bytes
from khop.distributed.dataset import DistDataset
from khop.distributed.tensors import checkpoint
from khop.distributed.tensors.batch_rows import BatchT, rows_ahead, rows_in_batches
from khop.distributed.tensors.graph_tensor import GraphTensor
from khop.distributed.tensors.propagation import Hops, actions
from khop.distributed.tensors.store_access import access_of
from khop.distributed.tensors.store_client import StoreClient
from khop.distributed.tensors.store_reader import GraphStoreReader
from khop.distributed.tensors.tensor_requests import (
    CreateTensor,
    DeleteTensor,
    EndStep,
    RowUpdate,
    TensorSpec,
    first_values,
    stored_numbers,
)
from khop.distributed.tensors.torch_checkpoint import TorchState
from khop.storage.aggregation import Aggregation
from khop.typing import Array, EdgeType, Int64Array, NodeType, RowInit

_ROWS_AT_ONCE = 1 << 16  # of first values, that a trainer sends before it waits


class GraphStore(TorchState):
    """Tensors over the nodes and edges of a dataset, which trainers read and write.

    All trainers make the store together, and make the same calls of `create_node_tensor`,
    `create_edge_tensor`, `delete` and `step` in the same order. The first trainer at home in a
    partition runs a server process that has the partition's rows. If that process ends, its rows
    are lost, and all trainers get an exception: restore a checkpoint then.

    For clients of graph servers, the servers have the rows. Each job of clients has tensors of its
    own, which end when its clients have left.

    Args:
        dataset: the dataset of this trainer. None for a client of graph servers.
        timeout: seconds that a request may take.
        job: name of the job, for clients. If None, the name of the clients' group.
        clients: ranks of the clients of the job. If None, all clients.

    Raises:
        TypeError: something else than a `DistDataset`.
        ValueError: a client's arguments that do not fit.
        RendezvousError: trainers have different folders, or no trainer has some partition.

    Example:
        >>> store = GraphStore(DistDataset.from_folder(folder))
        >>> history = store.create_node_tensor("history", shape=(2,))
        >>> _ = history.push([3, 1, 3], torch.ones(3, 2), "add")
        >>> store.step(), history[[1, 2, 3]].tolist()
        (1, [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
    """

    def __init__(
        self,
        dataset: DistDataset | None,
        timeout: float = 180.0,
        *,
        job: str | None = None,
        clients: Sequence[int] | None = None,
    ) -> None:
        self._client = StoreClient(access_of(dataset, job, clients), timeout)
        self._meta = self._client.meta
        self._tensors: dict[str, GraphTensor] = {}
        self._first_version = 0
        self._client.access.graph.context.close_before_leaving(self)

    def __repr__(self) -> str:
        """Return the tensors and the number of completed steps."""
        return f"GraphStore({list(self._tensors.values())}, version={self.version})"

    def __enter__(self) -> GraphStore:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    @property
    def version(self) -> int:
        """Number of completed steps, also of those before the checkpoint that was loaded."""
        return self._first_version + self._client.num_steps

    @property
    def num_trainers(self) -> int:
        """Number of trainers of the store."""
        return self._client.num_trainers

    @property
    def node_counts(self) -> dict[NodeType, int]:
        """Number of nodes of each type."""
        return {t.name: t.count for t in self._meta.node_types}

    def create_node_tensor(
        self,
        name: str,
        node_type: NodeType | None = None,
        shape: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        init: RowInit = "zeros",
        on_disk: int | str | None = None,
    ) -> GraphTensor:
        """Make a tensor with one row per node of a type. All trainers call it together.

        Args:
            name: name of the tensor, at most 256 characters.
            node_type: the node type. If None, the only one.
            shape: shape of a row. By default, a row is a number.
            dtype: dtype of the values.
            init: first values: 'zeros', ('normal', seed) with mean 0 and variance 1, or
                [num_nodes, *shape] values. Normal values depend on seed and original id only.
            on_disk: keep rows in files of the servers, with a cache of these bytes per partition,
                such as '2GB'. If None, all rows are in memory.

        Raises:
            KeyError: no such node type.
            ValueError: the name is in use, or an option has a wrong value.
            MemoryError: a server's machine has too little memory.
            OSError: its disk has too little space.
            RendezvousError: another trainer has failed, or made another call.
        """
        names = [t.name for t in self._meta.node_types]
        group = _only(names, node_type, "node_type")
        element: Any = ("node", names.index(group))
        return self._create(name, group, element, shape, dtype, init, on_disk)

    def create_edge_tensor(
        self,
        name: str,
        edge_type: EdgeType | None = None,
        shape: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        init: RowInit = "zeros",
        on_disk: int | str | None = None,
    ) -> GraphTensor:
        """Make a tensor with one row per edge of a type, by original edge id.

        Arguments and errors: see `create_node_tensor`. If the folder keeps edge ids, the first use
        reads the ids of all edges, and keeps 4 or 8 bytes per edge.
        """
        names = [t.name for t in self._meta.edge_types]
        group = _only(names, edge_type, "edge_type")
        element: Any = ("edge", names.index(group))
        return self._create(name, group, element, shape, dtype, init, on_disk)

    def _create(
        self,
        name: str,
        group: Any,
        element: tuple[Literal["node", "edge"], int],
        shape: Sequence[int],
        dtype: torch.dtype,
        init: RowInit,
        on_disk: int | str | None,
    ) -> GraphTensor:
        type_name: Any = str(dtype).removeprefix("torch.")
        if type_name not in STORAGE:
            raise ValueError(f"dtype {dtype} is not supported: one of {', '.join(STORAGE)} is")
        if name in self._tensors or not 0 < len(name) <= 256:
            raise ValueError(f"'{name[:256]}' is the name of a tensor already, or is no name")
        sizes = [operator.index(size) for size in shape]
        if any(size < 0 for size in sizes) or len(sizes) > 8:
            raise ValueError(f"shape must have at most 8 sizes of 0 or more (got {sizes})")
        seed, first = first_values(init)
        cache_bytes = None if on_disk is None else parse_bytes(on_disk)
        spec = TensorSpec(*element, type_name, sizes, seed, cache_bytes)
        tensor = GraphTensor(self._client, name, group, spec)
        values: Array | None = None
        if first is not None:
            values, dtype_name = to_array(first, "init")
            if values.shape != tuple(tensor.shape):
                raise ValueError(
                    f"init must have the shape {list(tensor.shape)} (got {list(values.shape)})"
                )
            values = values if dtype_name == type_name else stored_numbers(values, type_name)
        arguments = [group, asdict(spec), values is not None]
        self._client.together(f"create {name}", arguments, partial(self._make, tensor, values))
        tensor.share_memory()
        self._tensors[name] = tensor
        return tensor

    def _make(self, tensor: GraphTensor, values: Array | None) -> None:
        """Make a tensor at this trainer's servers, and send them the first values of their rows."""
        client, spec = self._client, tensor.spec
        if spec.element == "edge":
            client.connect_to_edges()
        client.write_to_own_parts(CreateTensor(tensor.name, spec))
        if values is None:
            return
        for part in client.own_parts:
            low, high = client.bounds_of(spec)[part : part + 2]
            for first in range(low, high, _ROWS_AT_ONCE):
                rows = np.arange(first, min(first + _ROWS_AT_ONCE, high))
                ids = client.original_ids(spec, part, rows)
                tensor.write(ids, values[ids]).wait()

    @property
    def client(self) -> StoreClient:
        """Connection to the servers and the other trainers.

        :meta private:
        """
        return self._client

    def add(self, tensor: GraphTensor) -> None:
        """Add a tensor that all trainers have made at the servers.

        :meta private:
        """
        self._tensors[tensor.name] = tensor

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
        self._client.settle()
        message = DeleteTensor(name)
        self._client.together(
            f"delete {name}", None, partial(self._client.write_to_own_parts, message)
        )
        self._tensors.pop(name).release_memory()

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
        client = self._client
        client.settle()
        message = EndStep(client.num_steps, updates)
        arguments = [asdict(update) for update in updates]
        client.together(
            f"step {self.version}", arguments, partial(client.write_to_own_parts, message)
        )
        client.end_step()
        return self.version

    def update_all(
        self,
        source: str,
        out: str,
        reduce: Literal["sum", "mean", "min", "max"] = "sum",
        *,
        weight: str | None = None,
        norm: Literal["sym", "row"] | None = None,
        edge_type: EdgeType | None = None,
        self_loops: bool = False,
        hops: int = 1,
        apply: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> int:
        """Set each node's row of `out` from the rows of `source` of its neighbours.

        Neighbours are in-neighbours, as in batches, unless the folder was partitioned by source.
        Each hop reads the rows of the hop before (Jacobi), and ends a step. With `hops=K` and
        `norm='sym'` this is A^K X of SGC and SIGN. All trainers call it together.

        Args:
            source: name of a float32 tensor of the neighbours' node type.
            out: name of a float32 tensor of the nodes, whose rows are set. It may be `source`.
            reduce: 'sum', 'mean', 'min' or 'max' of weight * row. A node without neighbours gets 0.
            weight: name of an edge attribute. If None, all weights are 1.
            norm: 'row' divides by the node's sum of weights, 'sym' by the roots of both ends' sums.
            edge_type: the edge type. If None, the only one.
            self_loops: add an edge of weight 1 to each node that has none to itself.
            hops: number of times. With more than one, both ends have one node type.
            apply: function of reduced rows, [n, *shape of `source`], and the nodes' rows of
                `source`, or of `out` if types differ. It returns rows of `out`, on the CPU.

        Returns:
            The number of completed steps.

        Raises:
            KeyError, ValueError, TypeError: no such name, or arguments that do not fit.
            RendezvousError: another trainer has failed or ended.

        Method: SGC (https://arxiv.org/abs/1902.07153), SIGN (https://arxiv.org/abs/2004.11198).
        """
        names = [t.name for t in self._meta.edge_types]
        index = names.index(_only(names, edge_type, "edge_type"))
        call = Hops(Aggregation(index, reduce, weight, norm, self_loops), apply)
        first, last = self[source], self[out]
        call.check(self._meta, first, last, hops)
        group: Any = last.group
        temporary, other = list[GraphTensor](), last
        if norm == "sym":
            temporary.append(self.create_node_tensor(f"{out}/root", group))
            call = call._replace(roots=temporary[0])
        if hops > 1 or first is last:
            temporary.append(other := self.create_node_tensor(f"{out}/hop", group, last.spec.shape))
        for action in actions(self._client, call, first, last, other, hops):
            self._client.guarded(action)
            self.step()
        for tensor in temporary:
            self.delete(tensor.name)
        return self.version

    def transform(self, names: Sequence[str]) -> Callable[[BatchT], BatchT]:
        """Return a function that adds rows of tensors to batches, for `transform=` of a loader.

        The trainer pulls the rows when a batch is handed out, as they were after the last step.
        A batch gets an attribute per tensor, and `store_version`, the number of completed steps.

        Args:
            names: names of tensors. The loader must deliver `e_id` for tensors of edges.
        """
        tensors = [self[name] for name in names]

        def read(ids: list[Int64Array]) -> tuple[list[Array], int]:
            return [t.read(own) for t, own in zip(tensors, ids, strict=True)], self.version

        return rows_in_batches(tensors, read)

    def prefetch(self, loader: Iterable[BatchT], names: Sequence[str]) -> Iterator[BatchT]:
        """Iterate over a loader, with rows of tensors that are pulled one batch ahead.

        Rows of a batch come while the batch before it trains. They do not have the steps that end
        in this time: with one step per batch, they are one step old. Batches get the attributes
        of `transform`, and `store_version` is the version of the rows.

        Args:
            loader: a loader, or any iterable of its batches.
            names: see `transform`.
        """
        return rows_ahead(loader, [self[name] for name in names], lambda: self.version)

    def reader(self) -> GraphStoreReader:
        """Return read-only access to the tensors, which can be pickled for another process.

        The process is on this trainer's machine, or a graph server's client.
        """
        return GraphStoreReader.of_access(self._client.access.for_readers())

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all tensors to a new folder, as .npy files. All trainers call it together.

        The checkpoint has the values after the last step. It appears when it is complete. Options
        of optimisers and the state of loaders are saved beside it, by `torch.save`.

        Args:
            folder: path of the folder, in storage that all machines share.

        Raises:
            FileExistsError: the folder exists.
            OSError: the disk is full.
            RendezvousError: another trainer has failed.
        """
        client = self._client
        checkpoint.check_is_new(folder)
        client.settle()
        path, tensors = os.fspath(folder), list(self._tensors.values())
        client.together("save", path, partial(checkpoint.save, client, tensors, self.version, path))

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Read all tensors of a checkpoint. All trainers call it together.

        Tensors that the store does not have are made. Trainers and partitions may be others than
        when the checkpoint was written. The version becomes the checkpoint's.

        Args:
            folder: path of a folder that `save` has written.

        Raises:
            FolderError: the folder is no checkpoint, is damaged, or is of another graph.
            RendezvousError: another trainer has failed.
        """
        saved = checkpoint.read_checkpoint(folder)
        for described in saved.tensors:
            if described.name not in self:
                dtype = getattr(torch, described.dtype)
                make = self.create_edge_tensor if described.is_of_edges else self.create_node_tensor
                make(described.name, described.type_name, described.shape, dtype)
            checkpoint.check_fits(folder, described, self[described.name])
        tensors = [self[described.name] for described in saved.tensors]
        self._client.settle()
        self._client.together(
            "load", None, partial(checkpoint.load, self._client, tensors, saved, folder)
        )
        self._client.set_version(saved.version)
        self._first_version = saved.version - self._client.num_steps

    def close(self) -> None:
        """End the connections. The servers end with their trainer. A second call does nothing."""
        self._client.close()
        for tensor in self._tensors.values():
            tensor.release_memory()


def _only(names: Sequence[Any], name: Any, argument: str) -> Any:
    """Return the type that is meant. KeyError if there is none, or None stands for several."""
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        raise KeyError(f"{argument} must be one of {list(names)} (got {name!r})")
    return name
