"""GLT's `UnifiedTensor`: tensors of several memories as one, read by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from khop.glt.typing import Device
from khop.glt.utils import get_available_device, share_memory

IpcHandle = tuple[list[Tensor], Tensor | None]


class UnifiedTensor:
    """Several tensors as one, concatenated by row, in the host's memory.

    Rows that are read go to the current device. GLT can put tensors into the memory of GPUs. In
    khop, `khop.data.DeviceFeature` does this.

    Args:
        current_device: GPU of the results. Without a GPU, results are on the CPU.
        dtype: dtype of all tensors.

    Raises:
        TypeError: a tensor has another dtype.
        ValueError: rows have different shapes, or there is not one device per tensor.

    Example:
        >>> tensor = UnifiedTensor(0)
        >>> tensor.init_from([torch.zeros(2, 3), torch.ones(1, 3)], [0, -1])
        >>> tensor.shape, tensor[torch.tensor([2, 0])].tolist()
        ([3, 3], [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    """

    def __init__(self, current_device: Device, dtype: torch.dtype = torch.float32) -> None:
        self.current_device = current_device
        self.dtype = dtype
        self._tensors: list[Tensor] = []

    def __getitem__(self, ids: Tensor) -> Tensor:
        ids = torch.as_tensor(ids, dtype=torch.int64).cpu()
        rows = self._rows()
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(rows):
            raise IndexError(
                f"rows must be from 0 to {len(rows) - 1} (got {int(ids.min())} to {int(ids.max())})"
            )
        if not torch.cuda.is_available():
            return rows[ids]
        return rows[ids].to(get_available_device(self.current_device))

    def init_from(self, tensors: Sequence[Tensor], tensor_devices: Sequence[int]) -> None:
        """Append tensors as further rows. One device per tensor is needed, without effect."""
        if len(tensors) != len(tensor_devices):
            raise ValueError(f"{len(tensors)} tensors for {len(tensor_devices)} devices")
        for tensor in tensors:
            self.append_cpu_tensor(tensor)

    def append_cpu_tensor(self, cpu_tensor: Tensor) -> None:
        """Append a tensor as further rows."""
        if cpu_tensor.dtype != self.dtype:
            raise TypeError(f"the tensor must be of {self.dtype} (got {cpu_tensor.dtype})")
        if self._tensors and cpu_tensor.shape[1:] != self._tensors[0].shape[1:]:
            raise ValueError(
                f"rows must have the shape {list(self._tensors[0].shape[1:])} (got "
                f"{list(cpu_tensor.shape[1:])})"
            )
        self._tensors.append(cpu_tensor.cpu())

    append_shared_tensor = append_cpu_tensor

    def _rows(self) -> Tensor:
        if len(self._tensors) > 1:
            self._tensors = [torch.cat(self._tensors)]
        return self._tensors[0] if self._tensors else torch.empty(0, dtype=self.dtype)

    @property
    def shape(self) -> list[int]:
        """Shape of all tensors joined by row."""
        return list(self._rows().shape)

    @property
    def device(self) -> Device:
        """GPU on which rows are returned."""
        return self.current_device

    @property
    def numel(self) -> int:
        """Return the number of values in all rows."""
        return self._rows().numel()

    def size(self, dim: int) -> int:
        """Return the length of axis `dim`."""
        return self._rows().size(dim)

    def stride(self, dim: int) -> int:
        """Return the stride of axis `dim`, in values."""
        return self._rows().stride(dim)

    def share_ipc(self) -> IpcHandle:
        """Move tensors to torch's shared memory. Return a handle for another process."""
        return [], share_memory(self._rows())

    def from_ipc_handle(self, cuda_ipc_list: Sequence[Tensor], cpu_part: Tensor | None) -> None:
        """Append the rows of another process: the tensors of both arguments."""
        for tensor in [*cuda_ipc_list, *([] if cpu_part is None else [cpu_part])]:
            self.append_cpu_tensor(tensor)

    @classmethod
    def new_from_ipc(
        cls, ipc_handles: IpcHandle, current_device: Device, dtype: torch.dtype
    ) -> UnifiedTensor:
        """Return the tensor of a handle that `share_ipc` of another process made."""
        shared = cls(current_device, dtype)
        shared.from_ipc_handle(*ipc_handles)
        return shared
