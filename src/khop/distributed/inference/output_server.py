"""Server of one trainer's layer-wise outputs, for trainers that do not see its files.

Runs as a process of that trainer. Its configuration has the folder and the names of the files.
Requests select one of these files by name and indices: no path is built from network data. The
process has the same sockets as a partition server. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from khop import _native
from khop.channel.message import frame_slices
from khop.data.files import load_npy
from khop.distributed.inference.files import output_file
from khop.distributed.rpc import work
from khop.distributed.rpc.frame_handler import FrameHandler, RequestType, Steps
from khop.distributed.rpc.limits import DEFAULT, check_reply_bytes
from khop.distributed.rpc.partition_server import run_server
from khop.distributed.rpc.protocol import OutputRows, check_index, ids_of
from khop.errors import ProtocolError
from khop.typing import Array, NodeType


class OutputHandler(FrameHandler):
    """Handler of requests for rows of a trainer's outputs, from `file_names` below `root` alone."""

    def __init__(
        self,
        rank: int,
        root: str,
        num_layers: int,
        node_types: Sequence[NodeType],
        file_names: Sequence[str],
    ) -> None:
        types = [RequestType(OutputRows, "read", self._rows, arrays=1)]
        super().__init__("the output server of trainer", rank, types)
        self._root = Path(root)
        self._num_layers = num_layers
        self._node_types = node_types
        self._file_names = frozenset(file_names)
        self._opened: dict[tuple[int, int, str], Array] = {}

    def _rows(self, request: OutputRows, arrays: list[Array]) -> Steps:
        layer = check_index(request.layer, self._num_layers, "layer")
        node_type = check_index(request.node_type, len(self._node_types), "node_type")
        if request.file not in self._file_names:
            raise ProtocolError("no such file of outputs")
        table = self._open(layer, node_type, request.file)
        rows = ids_of(arrays)
        row_bytes = table.itemsize * math.prod(table.shape[1:])
        check_reply_bytes(len(rows) * row_bytes, DEFAULT.reply_bytes, f"{len(rows)} rows")
        out = np.empty((len(rows), *table.shape[1:]), table.dtype)
        for piece in work.ranges(len(rows), work.rows_in_slice(row_bytes)):
            _native.gather(table, rows[piece], out[piece])
            if piece.stop < len(rows):
                yield None
        return [out[piece] for piece in frame_slices(len(rows), row_bytes)]

    def _open(self, layer: int, node_type: int, name: str) -> Array:
        key = (layer, node_type, name)
        opened = self._opened.get(key)
        if opened is None:
            file = output_file(self._root, layer, self._node_types[node_type], name)
            opened = load_npy(file, "r")
            # Trainers begin a layer together, so files of other layers are not needed any more.
            # Other threads see the old dictionary or the new one.
            kept = {k: v for k, v in self._opened.items() if k[0] == layer}
            self._opened = {**kept, key: opened}
        return opened


def main() -> None:
    run_server(
        lambda c: OutputHandler(
            c["rank"], c["output_root"], c["num_layers"], c["node_types"], c["file_names"]
        )
    )
