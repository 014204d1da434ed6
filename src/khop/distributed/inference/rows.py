"""Reader of one attribute of nodes by new id, for layers. Runs in trainers. Imports no torch."""

from __future__ import annotations

from khop.channel.pool import BufferPool
from khop.data.arrays import storage_dtype
from khop.distributed.partitions.shared_client import run
from khop.distributed.rpc.partition_client import PartitionClient
from khop.sampler.row_fetcher import RowFetcher, write_rows
from khop.typing import Array, Int64Array


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
