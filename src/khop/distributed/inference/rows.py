"""Client of other trainers' outputs, whose rows are read by position. Runs in trainers.

Imports no torch.
"""

from __future__ import annotations

from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.pending import Request
from khop.distributed.rpc.protocol import OutputRows
from khop.typing import Int64Array


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
