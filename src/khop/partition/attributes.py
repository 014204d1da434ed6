"""Attributes of nodes, written to parts some rows at a time. Imports no torch."""

from __future__ import annotations

import numpy as np

from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.partition.workspace import Workspace
from khop.storage.folder import AttrMeta, FolderWriter
from khop.typing import Array, IntArray

# Bytes of rows copied at a time: limits the extra memory.
_CHUNK_BYTES = 32 << 20


def save_rows(
    writer: FolderWriter, workspace: Workspace, path: str, feature: Feature, rows: IntArray
) -> None:
    """Write rows of an attribute, in their order.

    Args:
        writer: writes the folder.
        workspace: its threads gather; it is told of each chunk.
        path: of the file in the folder.
        feature: the attribute.
        rows: [n] ids of rows.
    """
    if writer.has(path):
        return

    def gathered(first: int) -> Array:
        return feature.gather(np.ascontiguousarray(rows[first : first + step]))

    row_bytes = max(1, AttrMeta(feature.dtype, feature.row_shape).row_bytes)
    step = max(1, min(_CHUNK_BYTES, workspace.resources.share()) // row_bytes)
    shape = (len(rows), *feature.row_shape)
    with writer.array(path, storage_dtype(feature.dtype), shape) as file:
        chunks = range(file.rows, len(rows), step)
        for chunk in workspace.resources.in_order(gathered, chunks):
            file.append(chunk)
            workspace.release(feature)
            workspace.checkpoint(chunk.nbytes)
