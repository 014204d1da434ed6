"""Layer-wise inference of clients of graph servers. Outputs are tensors of a `GraphStore`.

A client computes the nodes of the partitions that fall to it in turn. Structure and attributes are
requested from the servers, as for `GraphStore.update_all`. Each layer writes a tensor per node
type, from which the next layer pulls rows. Runs in trainers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from khop import _native
from khop.codec import to_json
from khop.data import RowStore
from khop.data.hot_rows import parse_bytes
from khop.data.tickets import Ticket
from khop.distributed.inference.files import RowSpec, Share
from khop.distributed.inference.inputs import EdgeAttrs, LayerInput, NodeInputs
from khop.distributed.inference.layer_runner import LayerRunner
from khop.distributed.inference.layers import as_layers, device_of, takes_pairs
from khop.distributed.inference.layerwise import agree_on_specs, check_arguments, stored_dtype
from khop.distributed.inference.neighborhoods import FullNeighbors, Neighborhood, Range
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.tensors.graph_store import GraphStore
from khop.distributed.tensors.graph_tensor import GraphTensor
from khop.distributed.tensors.store_access import StoredPart
from khop.distributed.tensors.store_client import StoreClient
from khop.distributed.tensors.tensor_requests import CreateTensor, TensorSpec
from khop.sampler.rows.row_fetcher import FetchedRows, RowFetcher
from khop.storage.folder import AttrMeta, FolderMeta
from khop.typing import Array, Int64Array, IntArray, NodeType


def store_inference(
    store: GraphStore,
    model: nn.Module | Sequence[Callable[..., object]],
    name: str,
    *,
    x: str | Callable[[Tensor], Tensor] | Mapping[NodeType, str | Callable[[Tensor], Tensor]] = "x",
    edge_attrs: Sequence[str] = (),
    batch_size: int = 4096,
    max_edges: int = 1 << 20,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | str | None = None,
    bipartite: bool | None = None,
    on_disk: int | str | None = None,
    timeout: float = 180.0,
) -> dict[NodeType, GraphTensor]:
    """Compute a model's output for all nodes, by clients of graph servers.

    Trainers with partitions call `layerwise_inference`, which gives the same rows. All clients of
    the store call this function together. Servers keep the outputs of two layers at a time. An
    error of a layer ends the store on all clients.

    Args:
        store: a store of clients of graph servers.
        model: see `layerwise_inference`.
        name: name of the new tensor of outputs. In a heterogeneous graph, each node type has one,
            such as 'name/paper'.
        x: see `layerwise_inference`.
        edge_attrs: see `layerwise_inference`.
        batch_size: maximum number of nodes computed at a time.
        max_edges: maximum number of edges of a batch of several nodes.
        device: device of the layers. If None, the device of the model's parameters, else the CPU.
        dtype: floating-point dtype of stored outputs. If None, the dtype of the layer's output.
        bipartite: see `layerwise_inference`.
        on_disk: see `GraphStore.create_node_tensor`.
        timeout: seconds that a request for structure or attributes may take.

    Returns:
        The tensors of outputs, by node type.

    Raises:
        TypeError: a store of trainers that load partitions.
        ValueError, KeyError: bad arguments, a name in use, or layers that return no rows.
        RendezvousError: another client has failed or ended, or makes a different call.
        PartitionUnavailableError, StateLostError: a server has ended.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> model = torch_geometric.nn.GraphSAGE(4, 8, num_layers=2, out_channels=3).eval()
        >>> store_inference(GraphStore(None, clients=[0]), model, "out")
        {'node': GraphTensor('out', 'node', [6, 3], float32)}
    """
    client = store.client
    meta, graph = client.meta, client.access.graph
    if client.access.sender is None:
        raise TypeError(
            "this store is of trainers with partitions: call layerwise_inference(dataset, ...)"
        )
    check_arguments(meta, batch_size, max_edges)
    layers = as_layers(model, bool(edge_attrs))
    inputs, attrs = NodeInputs(graph, x), EdgeAttrs(graph, edge_attrs)
    pairs = takes_pairs(model) if bipartite is None else bipartite
    runner = LayerRunner(
        meta, attrs, device_of(model, device), stored_dtype(dtype), pairs, batch_size, max_edges
    )
    cache_bytes = None if on_disk is None else parse_bytes(on_disk)
    names = [f"{name}/layer-{i}" for i in range(len(layers) - 1)] + [name]
    taken = [known for known in store.tensors() if known == name or known.startswith(f"{name}/")]
    if taken:
        raise ValueError(f"there are tensors {taken} already: choose another name")
    # The thread that reads has connections of its own.
    with contextlib.closing(client.access.client(timeout)) as reads:
        clients = _Clients(client, reads, attrs.by_type, cache_bytes)
        rows = inputs.of_first_layer(
            lambda i, attr: FetchedRows(_NodeRows(meta, reads, i, attr), reads)
        )
        before: dict[int, GraphTensor] = {}
        for i, (layer, name_of_layer) in enumerate(zip(layers, names, strict=True)):
            tensors, rows = clients.run(runner, layer, i, name_of_layer, rows)
            for tensor in tensors.values():
                store.add(tensor)
            for tensor in before.values():  # no client reads them any more
                store.delete(tensor.name)
            before = tensors
    return {meta.node_types[i].name: tensor for i, tensor in before.items()}


class _Clients:
    """Nodes of this client, and the tensors that it writes.

    Args:
        client: connection of the store.
        reads: connections of the thread that reads.
        edge_attrs: names of the edge attributes that layers get, for each edge type.
        cache_bytes: see `TensorSpec`.

    Attributes:
        own: this client's nodes, with the readers of their neighbours.
    """

    def __init__(
        self,
        client: StoreClient,
        reads: PartitionClient,
        edge_attrs: Sequence[Sequence[str]],
        cache_bytes: int | None,
    ) -> None:
        self._client, self._cache_bytes = client, cache_bytes
        bounds = [t.bounds for t in client.meta.node_types]
        parts = client.meet(client.own_parts)
        self._shares = [
            Share(rank, part, 0, 1, [(of_type[part], of_type[part + 1]) for of_type in bounds])
            for rank, own in enumerate(parts)
            for part in own
        ]
        access = client.access
        self.own: list[tuple[Share, FullNeighbors]] = []
        for share in self._shares:
            if share.rank == client.rank:
                part = access.part(reads, share.part)
                self.own.append((share, _RequestedNeighbors(part, share.part, edge_attrs)))
        self._name = ""
        self._made: dict[int, GraphTensor] = {}

    def run(
        self,
        runner: LayerRunner,
        layer: Callable[..., object],
        index: int,
        name: str,
        rows: Sequence[LayerInput | None],
    ) -> tuple[dict[int, GraphTensor], list[LayerInput | None]]:
        """Compute a layer. Return its tensors by index of the type, and the next layer's input."""
        client, self._name, self._made = self._client, name, {}
        specs: list[RowSpec | None] = []

        def compute() -> None:
            specs.extend(runner.run(layer, index, rows, self, client.check_others))
            gathered = client.meet(to_json(specs))
            specs[:] = agree_on_specs(gathered, self._shares, index)
            for node_type, spec in enumerate(specs):
                if spec is not None:
                    self._tensor(node_type, spec)  # of which this client has no nodes
            client.meet(None)

        client.guarded(compute)
        inputs = list[LayerInput | None]()
        for node_type, spec in enumerate(specs):
            inputs.append(None)
            if spec is not None:
                tensor = self._made[node_type]
                tensor.share_memory()
                computed: torch.dtype = getattr(torch, spec.computed)
                inputs[-1] = LayerInput(_TensorRows(tensor), partial(Tensor.to, dtype=computed))
        return dict(sorted(self._made.items())), inputs

    def writer(self, layer: int, node_type: int, share: Share, spec: RowSpec) -> _TensorWriter:
        """Return the writer of a layer's outputs for a type's nodes of a share."""
        return _TensorWriter(self._tensor(node_type, spec), share.ranges[node_type][0])

    def _tensor(self, node_type: int, spec: RowSpec) -> GraphTensor:
        """Return a tensor of the layer. The first call makes its rows in this client's parts."""
        if node_type not in self._made:
            group = self._client.meta.node_types[node_type].name
            name = f"{self._name}/{group}" if self._client.meta.heterogeneous else self._name
            stored = spec.stored, list(spec.shape)
            of_tensor = TensorSpec("node", node_type, *stored, cache_bytes=self._cache_bytes)  # type: ignore[arg-type]
            self._client.write_to_own_parts(CreateTensor(name, of_tensor))
            self._made[node_type] = GraphTensor(self._client, name, group, of_tensor)
        return self._made[node_type]


class _TensorWriter:
    """Writer of a tensor's rows from position `first` on, batch by batch."""

    def __init__(self, tensor: GraphTensor, first: int) -> None:
        self._tensor, self._next = tensor, first

    def append(self, rows: Array) -> None:
        positions = np.arange(self._next, self._next + len(rows))
        self._next += len(rows)
        self._tensor.write_at(positions, rows).wait()

    def finish(self) -> None:
        """Do nothing: servers have the rows."""

    def abandon(self) -> None:
        """Do nothing: an error ends the store."""


class _TensorRows(RowStore):
    """Rows of a tensor, by position in the folder."""

    def __init__(self, tensor: GraphTensor) -> None:
        self.num_rows, self.stored = len(tensor), tensor.spec.rows
        self._tensor = tensor

    def read(self, ids: Int64Array, out: Array) -> Ticket | None:
        """Read rows, and wait for them."""
        out[:] = self._tensor.read_at(ids)
        return None


class _NodeRows(RowFetcher):
    """Rows of an attribute of all nodes of a type, requested from the servers."""

    def __init__(self, meta: FolderMeta, client: PartitionClient, index: int, name: str) -> None:
        described = meta.node_types[index]
        attr = described.attrs.get(name, AttrMeta.of("int64"))  # 'id': original ids
        super().__init__(described.bounds, {name: attr})
        self._client, self._index, self._name = client, index, name

    def local_tables(self, index: int) -> Sequence[RowStore | None] | None:
        return None

    def request(self, index: int, ids: Int64Array) -> Ticket:
        return self._client.fetch(index, "node", self._index, ids, [self._name])

    def owner(self, index: int) -> str:
        return f"partition {index}"


class _RequestedNeighbors(FullNeighbors):
    """Reader of a part of graph servers, which keeps row pointers alone.

    Args:
        part: the part.
        index: index of the part.
        edge_attrs: see `FullNeighbors`.
    """

    def __init__(self, part: StoredPart, index: int, edge_attrs: Sequence[Sequence[str]]) -> None:
        self._served, self._edge_attrs = part, edge_attrs
        meta = part.meta
        types = [t.name for t in meta.node_types]
        self._first = [t.bounds[index] for t in meta.node_types]
        self._counts = [t.count for t in meta.node_types]
        self._rows: list[tuple[int, int, IntArray, Array]] = []
        self._row_starts = [[] for _ in types]
        for i, edge_type in enumerate(meta.edge_types):
            ends = meta.row_type(edge_type).name, meta.neighbor_type(edge_type).name
            own, far = map(types.index, ends)
            self._rows.append((own, far, *part.rows(i)))
            self._row_starts[own].append(self._rows[-1][2])

    def read(self, ranges: list[Range]) -> Neighborhood:
        numbers = [_native.NodeNumbers(count) for count in self._counts]
        for of_type, (low, high) in zip(numbers, ranges, strict=True):
            of_type.number(np.arange(low, high))
        edge_index, attrs = [], []
        for i, (own, far, indptr, neighbors) in enumerate(self._rows):
            first, last = (row - self._first[own] for row in ranges[own])
            entries = slice(int(indptr[first]), int(indptr[last]))
            sources = np.empty(0, np.int64)
            if entries.start < entries.stop:
                sources = neighbors[entries].astype(np.int64, copy=False)
            targets = np.repeat(np.arange(last - first), np.diff(indptr[first : last + 1]))
            edge_index.append(np.stack([numbers[far].number(sources), targets]))
            every = np.arange(entries.start, entries.stop)
            names = self._edge_attrs[i]
            attrs.append({n: self._served.edge_feature(i, n).gather(every) for n in names})
        return Neighborhood(ranges, [of_type.ids() for of_type in numbers], edge_index, attrs)
