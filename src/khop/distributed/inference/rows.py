"""Rows that layers read: attributes by new id, and outputs of other trainers by position.

Runs in trainers. Imports no torch.
"""

from __future__ import annotations

from khop.channel.pool import BufferPool
from khop.data.arrays import storage_dtype
from khop.distributed.partitions.shared_client import run
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.pending import Request
from khop.distributed.rpc.protocol import OutputRows
from khop.sampler.rows.row_fetcher import RowFetcher, write_rows
from khop.typing import Array, Int64Array


class OutputClient(PartitionClient):
    """Connections to the servers of other trainers' outputs; keys of endpoints are ranks."""

    what = "outputs of trainer"

    def rows(
        self, rank: int, layer: int, node_type: int, file_name: str, rows: Int64Array
    ) -> Request:
        """Request rows of one of a trainer's files.

        Args:
            rank: rank of the trainer.
            layer: index of the layer.
            node_type: index of the node type.
            file_name: name of the file, one that the trainer has announced.
            rows: [n] int64 positions in the file.

        Raises:
            RuntimeError: the connections have been closed.
        """
        if not self._connections:
            raise RuntimeError(
                f"rows of trainer {rank} cannot be read any more: the outputs have been closed"
            )
        return self._send(rank, OutputRows(layer, node_type, file_name), [rows])


class RowReader:
    """Reader of rows of one node type. For one thread at a time.

    Args:
        fetcher: fetcher of the rows, of one attribute.
        client: waits for the replies of other trainers. If None, all rows are at hand.

    Attributes:
        dtype: name of the rows' dtype.
        row_shape: shape of one row.
    """

    def __init__(self, fetcher: RowFetcher, client: PartitionClient | None) -> None:
        (attr,) = fetcher.attributes.values()
        self.dtype = attr.dtype
        self.row_shape = attr.shape
        self._fetcher = fetcher
        self._client = client
        self._pool = BufferPool()

    def read(self, ids: Int64Array, out: Array | None = None) -> Array:
        """Read rows.

        Args:
            ids: [n] int64 new ids.
            out: [n, *row_shape] array to fill. If None, reused memory.

        Raises:
            PartitionUnavailableError: a server that has rows is unreachable.
            ProtocolError: a server sent something else than was asked for.
        """
        if out is None:
            out = self._pool.empty((len(ids), *self.row_shape), storage_dtype(self.dtype))
        run(write_rows([(self._fetcher.fetch(ids), [out])]), self._client)
        return out
