"""Requests for rows of tensors that are in files, such as outputs of layer-wise inference.

The files are complete and do not change. So a request depends on no state, and a server that was
started again answers it as its predecessor. Servers import this module with the folder of their
trainer, see `users_requests`. Imports no torch.

```
root/layer-<i>/<node type>/part-<p>.npy              row j belongs to the j-th node of part p
root/layer-<i>/<node type>/part-<p>-share-<s>.npy    ... of share s, if trainers divide the part
```

A request selects a file by indices and by its name, which must be one of the server's part. No path
comes from the network. bfloat16 is stored as uint16.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from khop import _native
from khop.channel.message import frame_slices
from khop.data.files import load_npy
from khop.distributed.rpc import work
from khop.distributed.rpc.frame_handler import RequestType, Steps
from khop.distributed.rpc.limits import DEFAULT, check_reply_bytes
from khop.distributed.rpc.protocol import OutputRows, check_index, ids_of
from khop.errors import ProtocolError
from khop.storage.folder import safe_name
from khop.storage.part import Part
from khop.typing import Array, NodeType

_MAX_LAYERS = 1 << 16


def output_file(root: Path, layer: int, node_type: NodeType, file_name: str) -> Path:
    """Return the path below `root` of a file of a layer's outputs of a type."""
    return root / f"layer-{layer}" / safe_name(node_type) / file_name


class RowFiles:
    """Files of one part below `root`, and the rows in them. For the threads of a server."""

    def __init__(self, part: Part, root: Path) -> None:
        self._part = part
        self._root = root
        self._names = re.compile(rf"part-{part.part}(-share-\d{{1,5}})?\.npy", re.ASCII)
        self._opened: dict[tuple[int, int, str], Array] = {}

    def rows(self, request: OutputRows, arrays: list[Array]) -> Steps:
        """Return rows of a file, in arrays that are a frame of a message each."""
        table = self._open(request)
        rows = ids_of(arrays)
        row_bytes = table.itemsize * math.prod(table.shape[1:])
        check_reply_bytes(len(rows) * row_bytes, DEFAULT.reply_bytes, f"{len(rows)} rows")
        out = np.empty((len(rows), *table.shape[1:]), table.dtype)
        for piece in work.ranges(len(rows), work.rows_in_slice(row_bytes)):
            _native.gather(table, rows[piece], out[piece])
            if piece.stop < len(rows):
                yield None
        return [out[piece] for piece in frame_slices(len(rows), row_bytes)]

    def _open(self, request: OutputRows) -> Array:
        types = self._part.meta.node_types
        layer = check_index(request.layer, _MAX_LAYERS, "layer")
        node_type = check_index(request.node_type, len(types), "node_type")
        if not self._names.fullmatch(request.file):
            raise ProtocolError(f"no such file of partition {self._part.part}")
        key = (layer, node_type, request.file)
        opened = self._opened.get(key)
        if opened is None:
            opened = load_npy(output_file(self._root, layer, types[node_type].name, key[2]), "r")
            # Trainers begin a layer together, so files of other layers are not needed any more.
            # Other threads see the old dictionary or the new one.
            kept = {k: v for k, v in self._opened.items() if k[0] == layer}
            self._opened = {**kept, key: opened}
        return opened


def request_types(part: Part, root: str) -> list[RequestType]:
    """Return the requests for rows in files below `root`. See `state_handler.users_requests`."""
    return [RequestType(OutputRows, "read", RowFiles(part, Path(root)).rows, arrays=1)]
