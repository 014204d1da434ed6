"""A tensor of a graph store, as any process reads it. Runs in trainers and readers."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from khop import _native
from khop.data.arrays import check_range, to_ids
from khop.distributed.tensors.tensor_requests import TensorSpec
from khop.errors import ProtocolError
from khop.loader.batches.collate import to_tensor
from khop.typing import Array, ArrayLike, EdgeType, Int64Array, NodeType

# Of the reply to a request. Few requests, and rows of a reply are stored while the next arrives.
_PULL_BYTES = 4 << 20


class TensorView(abc.ABC):
    """Base of a store's tensors, for trainers and for readers.

    Args:
        name: name of the tensor.
        group: its node type or edge type.
        spec: its description.
        bounds: first position of each part's rows, and the number of rows.
    """

    def __init__(
        self, name: str, group: NodeType | EdgeType, spec: TensorSpec, bounds: list[int]
    ) -> None:
        self.name, self.group, self.spec = name, group, spec
        self._bounds = bounds
        self.shape = torch.Size((bounds[-1], *spec.shape))
        self.dtype: torch.dtype = getattr(torch, spec.dtype)

    def __repr__(self) -> str:
        """Return name, type, shape and dtype."""
        described = f"'{self.name}', {self.group!r}, {list(self.shape)}, {self.spec.dtype}"
        return f"{type(self).__name__}({described})"

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __getitem__(self, ids: ArrayLike | slice | int) -> Tensor:
        """Return rows: short for `pull`. An int gives a row without the first axis."""
        if isinstance(ids, int):
            return self.pull([ids])[0]
        return self.pull(ids)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, over all partitions."""
        return self.shape[0] * self.spec.rows.nbytes

    def pull(self, ids: ArrayLike | slice | None = None) -> Tensor:
        """Return rows as they were after the last step, with all relaxed pushes that have arrived.

        Args:
            ids: [n] int64 original ids, in any order, also repeated, or a slice. If None, all rows.

        Returns:
            [n, *shape] tensor of the tensor's dtype, on the CPU.

        Raises:
            IndexError: an id does not exist.
            StateLostError, PartitionUnavailableError: see `Push.wait`.
        """
        return to_tensor(self.read(self._ids(ids)), self.spec.dtype)

    @abc.abstractmethod
    def read(self, ids: Int64Array) -> Array:
        """Return rows as an array: see `pull`.

        :meta private:
        """

    def _ids(self, ids: ArrayLike | slice | None) -> Int64Array:
        if ids is None or isinstance(ids, slice):
            return np.arange(len(self), dtype=np.int64)[ids or slice(None)]
        original = to_ids(ids, "ids").astype(np.int64, copy=False)
        check_range(original, len(self), f"ids of '{self.name}'")
        return original

    def _pieces(
        self, rows: Int64Array, nbytes: int = _PULL_BYTES
    ) -> Iterable[tuple[int, Int64Array, Int64Array]]:
        """Yield part, local rows and positions in `rows`, for a message with `nbytes` each."""
        count = max(nbytes // max(self.spec.rows.nbytes, 8), 1)
        _, grouped, positions, offsets = _native.split_by_owner(rows, self._bounds)
        for part, (begin, end) in enumerate(itertools.pairwise(offsets)):
            for first in range(begin, end, count):
                piece = slice(first, min(first + count, end))
                yield part, grouped[piece] - self._bounds[part], positions[piece]

    def _store(self, reply: Sequence[Array], at: Int64Array, out: Array) -> None:
        """Write rows that a server sent, in several arrays, to positions `at` of `out`."""
        shapes = [values.shape for values in reply]
        fits = all(len(shape) and shape[1:] == out.shape[1:] for shape in shapes)
        if not fits or any(values.dtype != out.dtype for values in reply):
            shapes = []
        if sum(shape[0] for shape in shapes) != len(at) or not shapes:
            raise ProtocolError(f"a server sent rows of '{self.name}' in another format")
        begin = 0
        for values in reply:
            _native.gather(values, None, out, at[begin : begin + len(values)])
            begin += len(values)
