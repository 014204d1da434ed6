"""GLT's helpers for tensors, and for dictionaries, lists and tuples of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.glt.typing import Device


def tensor_equal_with_device(lhs: Tensor, rhs: Tensor) -> bool:
    """Return True if two tensors are equal and on the same device."""
    return lhs.device == rhs.device and torch.equal(lhs, rhs)


def id2idx(ids: Sequence[int] | Tensor) -> Tensor:
    """Return the position of each id: [max id + 1] int64, with -1 where there is no such id.

    GLT returns 0 in place of -1, so that an unknown id is taken for the first id.

    Example:
        >>> id2idx([3, 1])
        tensor([-1,  1, -1,  0])
    """
    ids = torch.as_tensor(ids, dtype=torch.int64)
    positions = ids.new_full((int(ids.max()) + 1 if ids.numel() else 0,), -1)
    positions[ids] = torch.arange(ids.numel(), device=ids.device)
    return positions


def _map(data: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(data, dict):
        return {key: _map(value, change) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(_map(value, change) for value in data)
    return change(data)


def convert_to_tensor(data: Any, dtype: torch.dtype | None = None) -> Any:
    """Convert all arrays in dictionaries, lists and tuples to tensors, of `dtype` if not None."""

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        return value.to(dtype) if isinstance(value, Tensor) and dtype is not None else value

    return _map(data, convert)


def apply_to_all_tensor(
    data: Any, tensor_method: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function with each tensor in nested containers. Return containers of the results."""
    return _map(
        data,
        lambda value: tensor_method(value, *args, **kwargs) if isinstance(value, Tensor) else value,
    )


def share_memory(data: Any) -> Any:
    """Move all tensors in dictionaries, lists and tuples to torch's shared memory."""
    return apply_to_all_tensor(data, Tensor.share_memory_)


def squeeze(data: Any) -> Any:
    """Remove axes of length 1 from all tensors in dictionaries, lists and tuples."""
    return apply_to_all_tensor(data, torch.squeeze)


def index_select(data: Any, index: Tensor | tuple[int, int]) -> Any:
    """Index all tensors in dictionaries, lists and tuples. A tuple as index is (start, end)."""
    chosen = slice(*index) if isinstance(index, tuple) else index
    return _map(data, lambda value: None if value is None else value[chosen])


def default_id_select(srcs: Tensor, p_mask: Tensor, node_pb: object = None) -> Tensor:
    """Return the ids in `srcs` for which the mask `p_mask` is True. `node_pb` is not needed."""
    del node_pb
    return srcs[p_mask]


def default_id_filter(node_pb: Tensor, partition_idx: int) -> Tensor:
    """Return the ids of a part, ascending. `node_pb` has the part of each id."""
    return torch.where(node_pb == partition_idx)[0]


def append_tensor_to_file(filename: str | Path, tensor: Tensor) -> None:
    """Append a tensor to a file of arrays, in NumPy's format."""
    with Path(filename).open("ab") as file:
        np.save(file, tensor.detach().cpu().numpy(), allow_pickle=False)


def load_and_concatenate_tensors(filename: str | Path, device: Device = None) -> Tensor:
    """Read the tensors that `append_tensor_to_file` wrote, one after the other.

    Raises:
        ValueError: the file holds something else. GLT's own files are pickles, and are not read.
    """
    pieces = []
    with Path(filename).open("rb") as file:
        while file.peek(1):
            pieces.append(torch.from_numpy(np.load(file, allow_pickle=False)))
    joined = torch.cat(pieces)
    return joined if device is None else joined.to(device)
