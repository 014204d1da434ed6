"""Widening of encoded rows to float32 on the trainer's device. Runs in trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.channel.pool import BufferPool
from khop.data.encoding import Encoding
from khop.sampler.rows.collect import CollectSpec
from khop.storage.folder import EdgeTypeMeta, FolderMeta, NodeTypeMeta
from khop.typing import EdgeType

_FLOAT32 = np.dtype(np.float32)


def widened_by(widen: str | None, collect: CollectSpec, is_device: bool) -> CollectSpec:
    """Return the attributes of batches, with encoded rows as stored if the trainer widens them.

    Args:
        widen: the loader's option.
        collect: the attributes.
        is_device: whether batches go to a device that works asynchronously to the host.

    Raises:
        ValueError: `widen` is neither 'sampler', 'trainer' nor None.
    """
    if widen not in ("sampler", "trainer", None):
        raise ValueError(f"widen must be 'sampler', 'trainer' or None (got {widen!r})")
    return replace(collect, as_stored=widen == "trainer" or (widen is None and is_device))


class Widening:
    """Widening of the encoded attributes of a loader's batches.

    Args:
        folder: metadata of the folder.
        collect: the attributes. Unless they are as stored, there is nothing to widen.
        edge_types: names of the folder's edge types in batches.
    """

    def __init__(
        self, folder: FolderMeta, collect: CollectSpec, edge_types: Sequence[EdgeType]
    ) -> None:
        self._encodings: dict[tuple[Any, str], Encoding] = {}
        self._parameters: dict[tuple[Any, str, torch.device], tuple[Tensor, Tensor]] = {}
        self._pool = BufferPool()  # of memory that has been used before
        if not collect.as_stored:
            return
        types: list[tuple[Any, NodeTypeMeta | EdgeTypeMeta, list[str]]] = [
            *((t.name, t, n) for t, n in zip(folder.node_types, collect.node_attrs, strict=True)),
            *zip(edge_types, folder.edge_types, collect.edge_attrs, strict=True),
        ]
        for store, described, names in types:
            for name in names:
                key = (store if folder.heterogeneous else None, name)
                encoding = described.attrs[name].codec
                # Of a homogeneous graph, an edge attribute hides a node attribute of its name.
                self._encodings.pop(key, None)
                if encoding is not None:
                    self._encodings[key] = encoding

    def apply(self, batch: Any) -> None:
        """Replace encoded attributes of a batch by float32 tensors on the same device."""
        for (store, name), encoding in self._encodings.items():
            values = (batch._store if store is None else batch[store])._mapping
            if values[name].device.type == "cpu":
                values[name] = self._on_host(values[name], encoding)
            else:
                values[name] = self._on_device(values[name], store, name, encoding)

    def _on_host(self, rows: Tensor, encoding: Encoding) -> Tensor:
        bits = rows.view(torch.int16) if rows.element_size() == 2 else rows
        wide = self._pool.empty(tuple(rows.shape), _FLOAT32)
        encoding.gather(bits.numpy(), None, wide)
        return torch.from_numpy(wide)

    def _on_device(self, rows: Tensor, store: Any, name: str, encoding: Encoding) -> Tensor:
        """Widen rows with PyTorch's kernels, to the same bits as the host's kernel."""
        if encoding.name == "float8_e4m3fn":
            rows = rows.view(torch.float8_e4m3fn)
        wide = rows.to(torch.float32)
        if encoding.scale is None or encoding.zero is None:
            return wide
        key = (store, name, rows.device)
        if key not in self._parameters:
            scale, zero = (
                torch.from_numpy(numbers).view(rows.shape[1:]).to(rows.device)
                for numbers in (encoding.scale, encoding.zero)
            )
            self._parameters[key] = scale, zero
        scale, zero = self._parameters[key]
        return wide.mul_(scale).add_(zero)
