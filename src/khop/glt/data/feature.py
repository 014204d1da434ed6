"""GLT's `Feature`: feature rows, read by id through a map from ids to rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop import _native, data as core
from khop.data.hot_rows import rows_in_share
from khop.glt.data.device_rows import DeviceRows
from khop.glt.data.graph import Topology
from khop.glt.typing import Device, TensorDataType
from khop.glt.utils import convert_to_tensor, get_available_device, share_memory
from khop.loader.batches.collate import to_tensor


class DeviceGroup:
    """GPUs that reach each other's memory, as GLT's scripts name them.

    A `Feature` stores its first rows once per group. Trainers of a job have one GPU each.

    Args:
        group_id: number of the group.
        device_list: its GPUs.
    """

    def __init__(self, group_id: int, device_list: list[Device]) -> None:
        self.group_id = group_id
        self.device_list = device_list

    @property
    def size(self) -> int:
        """Number of GPUs in the group."""
        return len(self.device_list)


class Feature:
    """Rows of features by id.

    A GPU gathers rows, if there is one and `with_gpu` is True: in its memory, in its group's, and
    in host memory. Otherwise the CPU does, in parallel if they are many.

    Trainers of torch.distributed whose GPUs are in one group make the feature together, at their
    first access. All of them need one.

    Args:
        feature_tensor: [num_rows, ...] rows.
        id2index: [largest id + 1] row of each id, or any object that maps a tensor of ids by `[]`.
            If None, ids are rows.
        split_ratio: share of first rows in the memory of GPUs.
        device_group_list: groups of GPUs, each of which has these rows once. If None, each GPU has
            them.
        device: GPU of the results. If None, torch's current one.
        with_gpu: results are on a GPU, if there is one.
        dtype: dtype of the rows. If None, `feature_tensor`'s. GLT's default is float32.

    Example:
        >>> feature = Feature(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0]), with_gpu=False)
        >>> feature[torch.tensor([0, 0, 1])].tolist()
        [[2.0], [2.0], [1.0]]
    """

    def __init__(
        self,
        feature_tensor: TensorDataType,
        id2index: Any = None,
        split_ratio: float = 0.0,
        device_group_list: Sequence[DeviceGroup] | None = None,
        device: Device = None,
        with_gpu: bool = True,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.feature_tensor: Tensor = convert_to_tensor(feature_tensor, dtype)
        self.id2index = convert_to_tensor(id2index, torch.int64)
        rows_in_share(float(split_ratio), len(self.feature_tensor))
        self.split_ratio = float(split_ratio)
        self.device_group_list = device_group_list
        self.device = device
        self.with_gpu = with_gpu
        self.dtype = self.feature_tensor.dtype
        self._on_device: DeviceRows | None = None

    def __getitem__(self, ids: TensorDataType | Sequence[int]) -> Tensor:
        """Return the rows of ids, [n, ...]. Raise IndexError for ids without a row."""
        device = self._gpu()
        if device is None:
            return self.cpu_get(ids)
        if not (device.startswith("emulated") or _native.cuda_status()["compiled"]):
            return self.cpu_get(ids).to(device)
        if self._on_device is None:
            self._on_device = DeviceRows(
                self.feature_tensor, self.id2index, self.split_ratio, self.device_group_list, device
            )
        return self._on_device[torch.as_tensor(ids)]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without rows in device memory, which belong to this process."""
        return {**self.__dict__, "_on_device": None}

    def _gpu(self) -> str | None:
        """Return the name of the GPU that gathers, or None for the CPU."""
        if not self.with_gpu or str(self.device) == "cpu":
            return None
        if str(self.device).startswith("emulated"):  # in tests
            return str(self.device)
        return str(get_available_device(self.device)) if torch.cuda.is_available() else None

    def cpu_get(self, ids: TensorDataType | Sequence[int]) -> Tensor:
        """Return the rows of ids, [n, ...], in the host's memory."""
        ids = torch.as_tensor(ids, dtype=torch.int64).cpu()
        rows = self.rows_of(ids).numpy()
        feature = core.Feature(self.feature_tensor)
        return to_tensor(feature.gather(rows, num_threads=torch.get_num_threads()), feature.dtype)

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the row number of each id. Raise IndexError for ids without a row."""
        if self.id2index is None:
            return ids
        rows: Tensor = self.id2index[ids]
        if rows.numel() and int(rows.min()) < 0:
            missing = ids[rows < 0]
            raise IndexError(f"id {int(missing[0])} has no row of this feature")
        return rows

    @property
    def shape(self) -> torch.Size:
        """Shape of all rows as one tensor, [num_rows, ...]."""
        return self.feature_tensor.shape

    def size(self, dim: int) -> int:
        """Return the length of axis `dim` of all rows."""
        return self.feature_tensor.size(dim)

    def lazy_init_with_ipc_handle(self) -> None:
        """Do nothing: features of khop are complete when they are made."""

    def share_ipc(self) -> tuple[Any, ...]:
        """Move tensors to torch's shared memory. Return a handle for another process."""
        self.feature_tensor = share_memory(self.feature_tensor)
        self.id2index = share_memory(self.id2index)
        placement = self.split_ratio, self.device_group_list, self.device, self.with_gpu
        return self.feature_tensor, self.id2index, *placement

    @classmethod
    def from_ipc_handle(cls, ipc_handle: tuple[Any, ...]) -> Feature:
        """Return the feature of a handle that `share_ipc` of another process made."""
        return cls(*ipc_handle)


rebuild_feature = Feature.from_ipc_handle


def reduce_feature(feature: Feature) -> tuple[Callable[..., Feature], tuple[tuple[Any, ...]]]:
    """Return a function and its arguments for `pickle`, which shares a feature's memory."""
    return rebuild_feature, (feature.share_ipc(),)


def sort_by_in_degree(
    cpu_tensor: Tensor, shuffle_ratio: float, topo: Topology
) -> tuple[Tensor, Tensor]:
    """Sort feature rows: nodes that most rows of the topology have as a neighbour are first.

    Args:
        cpu_tensor: [num_nodes, ...] rows by id.
        shuffle_ratio: share of first rows to shuffle, so that GPUs get equally popular rows.
        topo: the topology.

    Returns:
        The rows in their new order, and the row of each id, [num_nodes] int64.
    """
    counts = np.bincount(topo.indices.numpy(), minlength=len(cpu_tensor))[: len(cpu_tensor)]
    order = torch.from_numpy(np.argsort(-counts, kind="stable"))
    head = rows_in_share(float(shuffle_ratio), len(order))
    order[:head] = order[:head][torch.randperm(head)]
    rows = torch.empty_like(order)
    rows[order] = torch.arange(len(order))
    return cpu_tensor[order], rows
