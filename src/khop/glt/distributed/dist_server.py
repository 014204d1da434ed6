"""GLT's `DistServer`: methods by which a client reads a graph server's partition.

In GLT, clients pass the methods to `request_server`, and servers call them. khop's servers run no
functions of clients: here the methods run in the client, and send khop's own requests.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from khop.distributed.remote.client.client_context import ClientContext, require_client
from khop.distributed.remote.client.served_part import fetched_rows
from khop.distributed.rpc.partition_client import PartitionClient
from khop.glt.partition.parts import FEATURES, LABELS
from khop.glt.typing import EdgeType, NodeType
from khop.loader.batches.collate import to_tensor
from khop.storage.folder import NodeTypeMeta
from khop.typing import EDGE, NODE, Int64Array

_clients: weakref.WeakKeyDictionary[ClientContext, PartitionClient] = weakref.WeakKeyDictionary()


class DistServer:
    """Client's access to a graph server: sizes, rows and edges of its first partition.

    Args:
        server_rank: rank of the server.

    Raises:
        RuntimeError: this process is no client.

    Example:
        >>> context = init_client(1, 0, 0, "127.0.0.1", port)
        >>> request_server(0, DistServer.get_tensor_size, "node")
        torch.Size([6, 4])
    """

    def __init__(self, server_rank: int) -> None:
        self._context = require_client()
        self._graph = self._context.graph
        servers = self._context.remote.wait_for_servers().servers
        if server_rank not in servers:
            raise ValueError(f"server_rank {server_rank} is not one of {len(servers)} servers")
        self._entry = servers[server_rank]
        self._part = self._entry.parts[0]

    def get_dataset_meta(self) -> tuple[int, int, list[NodeType] | None, list[EdgeType] | None]:
        """Return (number of partitions, this server's partition, node types, edge types).

        Types are None for a homogeneous graph.
        """
        meta = self._graph.meta
        if not meta.heterogeneous:
            return meta.num_parts, self._part, None, None
        nodes, edges = [t.name for t in meta.node_types], [t.name for t in meta.edge_types]
        return meta.num_parts, self._part, nodes, edges

    def get_node_partition_id(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        """Return the partitions of nodes, [n] int64, given their ids (`index`)."""
        described = self._described(node_type)
        new_ids = self._graph.to_new_ids(index, "index", described.name)
        return torch.from_numpy(described.book.owner(new_ids))

    def get_node_feature(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        """Return the features, [n, ...], of nodes `index` (ids) of this server's partition."""
        return self._rows_of(node_type, index, FEATURES)

    def get_node_label(self, node_type: NodeType | None, index: Tensor) -> Tensor:
        """Return the labels, [n, ...], of nodes `index` (ids) of this server's partition."""
        return self._rows_of(node_type, index, LABELS)

    def get_node_mask(self, node_type: NodeType | None, name: str) -> Tensor:
        """Return the ids, [n] int64, of this server's nodes whose boolean attribute is True."""
        described = self._described(node_type)
        new_ids = np.arange(described.bounds[self._part], described.bounds[self._part + 1])
        chosen = new_ids[self._rows(described, new_ids, name).numpy()]
        return torch.from_numpy(self._graph.to_original_ids(chosen, described.name))

    def get_tensor_size(self, node_type: NodeType | None) -> torch.Size:
        """Return the shape of the features of nodes (of a type) in this server's partition."""
        described = self._described(node_type)
        return torch.Size([described.book.size(self._part), *described.attrs[FEATURES].shape])

    def get_edge_index(
        self, edge_type: EdgeType | None, layout: str = "coo"
    ) -> tuple[Tensor, Tensor]:
        """Return sources and destinations of the edges of this server's partition.

        They are sorted by destination, then source. With a graph of `edge_dir='out'` they are
        sorted by source, then destination. `layout` must be 'coo'.
        """
        if layout != "coo":
            raise ValueError(f"layout must be 'coo' (got {layout!r})")
        name = EDGE if edge_type is None else tuple(edge_type)
        index = [t.name for t in self._graph.meta.edge_types].index(name)  # type: ignore[arg-type]
        none = np.empty((2, 0), np.int64)
        ends = np.concatenate([none, *self._graph.edges_of_part(index, self._part, 0, 1)], axis=1)
        order = np.lexsort(ends[::-1] if self._graph.meta.edge_dir == "out" else ends)
        return torch.from_numpy(ends[0, order]), torch.from_numpy(ends[1, order])

    def get_edge_size(self, edge_type: EdgeType | None, layout: str = "coo") -> tuple[int, int]:
        """Return the largest source and destination of the server's edges, plus one."""
        row, col = self.get_edge_index(edge_type, layout)
        return (int(row.max()) + 1, int(col.max()) + 1) if len(row) else (0, 0)

    def _described(self, node_type: NodeType | None) -> NodeTypeMeta:
        return self._graph.meta.node_type(NODE if node_type is None else node_type)

    def _rows_of(self, node_type: NodeType | None, index: Tensor, name: str) -> Tensor:
        described = self._described(node_type)
        new_ids = self._graph.to_new_ids(index, "index", described.name)
        foreign = described.book.owner(new_ids) != self._part
        if foreign.any():
            raise IndexError(
                f"node {int(torch.as_tensor(index)[torch.from_numpy(foreign)][0])} is not one of "
                f"partition {self._part}: get_node_partition_id says whose it is"
            )
        return self._rows(described, new_ids, name)

    def _rows(self, described: NodeTypeMeta, new_ids: Int64Array, name: str) -> Tensor:
        if name not in described.attrs:
            raise KeyError(
                f"nodes of type '{described.name}' have no attribute '{name}' to read: there are "
                f"{sorted(described.attrs)}"
            )
        meta, attr = self._graph.meta, described.attrs[name]
        index = [t.name for t in meta.node_types].index(described.name)
        client = self._client()
        stored = fetched_rows(client, meta, self._part, "node", index, name, new_ids)
        return to_tensor(attr.decode(stored), attr.dtype)

    def _client(self) -> PartitionClient:
        """Return this process's connections to the servers of all partitions."""
        if self._context not in _clients:
            reads = self._context.store_reads(None)
            _clients[self._context] = PartitionClient(reads.endpoints, reads.credentials)
        return _clients[self._context]
