"""Rows of GLT's `Feature` on a GPU: in its memory, in its group's, or in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from khop import _native, data as core
from khop.data.device_feature import DeviceFeature, DeviceGroup
from khop.data.node_rows import NodeGroup
from khop.distributed.job.worker_group import require_context
from khop.sampler.pyg.device import TorchDevice, wait_and_record_stream


class Group(Protocol):
    """GLT's `DeviceGroup`."""

    group_id: int
    device_list: list[Any]


class DeviceRows:
    """Rows that a GPU gathers, the first of which are in device memory.

    Trainers of a job that are in a group of several GPUs make the rows together: all call this.

    Args:
        rows: [num_rows, ...] rows in host memory.
        id2index: row of each id, or any object that maps ids by `[]`. If None, ids are rows.
        split_ratio: share of first rows in device memory. With 0 all are read in host memory.
        groups: groups of GPUs, each of which stores these rows once. If None, each GPU stores them.
        device: name of the GPU.
    """

    def __init__(
        self,
        rows: Tensor,
        id2index: Any,
        split_ratio: float,
        groups: Sequence[Group] | None,
        device: str,
    ) -> None:
        self._device = TorchDevice(device)
        if isinstance(id2index, Tensor):
            id2index = id2index.to(self._device.torch_device)
        self._id2index = id2index
        native = self._device.native
        feature = core.Feature(rows)
        if split_ratio == 0:
            self._table = DeviceFeature(feature, native, "ZERO_COPY")
            return
        hotness = np.arange(len(rows), 0, -1)
        own = int(self._device.name.partition(":")[2])
        group = next((g for g in groups or () if own in _indices(g)), None)
        self._table = DeviceFeature(
            feature,
            native,
            "CUDA",
            split_ratio,
            hotness=hotness,
            group=None if group is None else _opened(group, own, native),
        )

    def __getitem__(self, ids: Tensor) -> Tensor:
        """Return the rows of ids, [n, ...], on the GPU. Raise IndexError for ids without a row."""
        device = self._device
        begun = device.mark_of_user()
        with device.lock, device.scope():
            wait_and_record_stream([ids], begun)
            ids = ids.to(device.torch_device, torch.int64)
            rows = ids if self._id2index is None else self._id2index[ids]
            shape = (len(rows), *self._table.row_shape)
            out = device.empty(shape, getattr(torch, self._table.dtype))
            self._table.gather(rows, out)
            written = device.mark()
        wait_and_record_stream([out], written)
        return out


def _indices(group: Group) -> list[int]:
    """Return the GPUs of a group, as numbers, by which GLT's scripts mostly name them."""
    return [int(str(device).rpartition(":")[2]) for device in group.device_list]


def _opened(group: Group, own: int, native: _native.Device) -> DeviceGroup | NodeGroup | None:
    indices = _indices(group)
    if len(indices) == 1:
        return None
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        require_context()
        return NodeGroup(group_id=group.group_id)
    return DeviceGroup(group.group_id, [native if i == own else i for i in indices])
