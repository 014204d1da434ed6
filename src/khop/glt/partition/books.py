"""GLT's partition books: which part owns each id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from khop.glt.typing import Device, EdgeType, NodeType, TensorDataType


class PartitionBook:
    """Base of maps from ids to the parts that own them: `book[ids]`, [n] int64."""

    def __getitem__(self, indices: TensorDataType | Sequence[int]) -> Tensor:
        raise NotImplementedError

    @property
    def offset(self) -> int | None:
        """Number to subtract from ids before they are looked up, or None."""
        return None


class GLTPartitionBook(PartitionBook, torch.Tensor):
    """Map from ids to parts, as a tensor with the part of each id."""

    def __getitem__(self, indices: Any) -> Tensor:
        return torch.Tensor.__getitem__(self, indices)


class OffsetId2Index:
    """Map from the ids of one part, a range, to its rows: `ids - offset`."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __getitem__(self, ids: Tensor) -> Tensor:
        return ids - self.offset

    def to(self, device: Device) -> OffsetId2Index:
        """Return this object, since it has no tensors that a device could hold."""
        del device
        return self


class RangePartitionBook(PartitionBook):
    """Map from ids to parts, where each part has one range of ids.

    The ranges follow one another.

    Args:
        partition_ranges: (first id, last id + 1) of each part.
        partition_idx: the part whose ids `id2index` maps to rows.

    Raises:
        ValueError: a range is empty, or ranges do not follow one another.

    Example:
        >>> book = RangePartitionBook([(0, 10), (10, 20)], 1)
        >>> book[torch.tensor([3, 10])].tolist(), book.id2index[torch.tensor([12])].tolist()
        ([0, 1], [2])
    """

    def __init__(self, partition_ranges: list[tuple[int, int]], partition_idx: int) -> None:
        starts = [partition_ranges[0][0], *(end for _, end in partition_ranges)]
        for start, (first, end) in zip(starts, partition_ranges, strict=False):
            if first >= end or start != first:
                raise ValueError(
                    "ranges must have ids and follow one another, as [(0, 10), (10, 20)] (got "
                    f"{partition_ranges})"
                )
        self.partition_bounds = torch.tensor([end for _, end in partition_ranges])
        self.partition_idx = partition_idx
        self._ranges = list(partition_ranges)
        self._id2index = OffsetId2Index(partition_ranges[partition_idx][0])

    def __getitem__(self, indices: TensorDataType | Sequence[int]) -> Tensor:
        return torch.searchsorted(self.partition_bounds, torch.as_tensor(indices), right=True)

    @property
    def device(self) -> torch.device:
        """Device of the tensors with the ranges' bounds."""
        return self.partition_bounds.device

    @property
    def id2index(self) -> OffsetId2Index:
        """Map from the ids of part `partition_idx` to its rows."""
        return self._id2index

    def id_filter(self, node_pb: object, partition_idx: int) -> Tensor:
        """Return the ids of a part, ascending. `node_pb` is not needed."""
        del node_pb
        return torch.arange(*self._ranges[partition_idx])

    def owners(self) -> Tensor:
        """Return the part of each id: [number of ids] int64."""
        return self[torch.arange(int(self.partition_bounds[-1]))]


Book: TypeAlias = Tensor | PartitionBook | TensorDataType


def owners_of(book: Book) -> Tensor:
    """Return the part of each id, [number of ids] int64, of a book or of such a tensor."""
    if isinstance(book, RangePartitionBook):
        return book.owners()
    return torch.as_tensor(book, dtype=torch.int64).as_subclass(torch.Tensor)


HeteroNodePartitionDict: TypeAlias = dict[NodeType, PartitionBook]
HeteroEdgePartitionDict: TypeAlias = dict[EdgeType, PartitionBook]
