"""A store's tensors as torch.distributed.checkpoint takes them. Runs in trainers.

A tensor is saved in pieces of consecutive original ids. Trainer r of n has the r-th of n equal
ranges of ids, also of rows that another trainer's server has. So a checkpoint does not depend on
partitions. Pieces are pulled one by one while they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from khop.data.arrays import to_array
from khop.distributed.tensors.graph_tensor import GraphTensor
from khop.distributed.tensors.store_client import StoreClient

_BYTES_AT_ONCE = 64 << 20


class RowPieces(Tensor):
    """Pieces of a tensor that one trainer saves or loads. It has the shape of all, and no memory.

    torch.distributed.checkpoint calls the methods with two underscores, as it does for `DTensor`,
    for subclasses of `torch.Tensor` alone.
    """

    _tensor: GraphTensor
    _pieces: dict[int, ChunkStorageMetadata]
    _loaded: dict[int, Tensor] | None

    @staticmethod
    def __new__(cls, tensor: GraphTensor, rank: int, num_trainers: int) -> RowPieces:
        """Describe the pieces of a trainer."""
        self: RowPieces = Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype)
        self._tensor, self._loaded = tensor, None
        begin, end = (len(tensor) * r // num_trainers for r in (rank, rank + 1))
        count = max(_BYTES_AT_ONCE // max(tensor.spec.rows.nbytes, 1), 1)
        self._pieces = {
            first: ChunkStorageMetadata(
                torch.Size((first, *(0 for _ in tensor.shape[1:]))),
                torch.Size((min(count, end - first), *tensor.shape[1:])),
            )
            for first in range(begin, end, count)
        }
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any) -> Any:
        """Refuse calculations: there is no memory."""
        raise TypeError(f"a description of rows for a checkpoint has no values for {function}")

    def __repr__(self) -> str:  # type: ignore[override]
        """Return the tensor's description."""
        return f"RowPieces({self._tensor})"

    def loaded(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the first id and the rows of each piece that has been loaded."""
        yield from (self._loaded or {}).items()

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self._tensor.dtype)
        return [
            WriteItem(
                MetadataIndex(name, piece.offsets, i),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(piece, properties, self._tensor.shape),
            )
            for i, piece in enumerate(self._pieces.values())
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        self._loaded = {}
        return list(self._pieces.values())

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        first = 0 if index.offset is None else index.offset[0]
        count = self._pieces[first].sizes[0]
        if self._loaded is None:
            return self._tensor.pull(slice(first, first + count))
        if first not in self._loaded:
            self._loaded[first] = torch.empty(self._pieces[first].sizes, dtype=self._tensor.dtype)
        return self._loaded[first]


class TorchState:
    """Methods of a `GraphStore` for torch's checkpoints and scalers of gradients."""

    _client: StoreClient
    _tensors: dict[str, GraphTensor]
    _first_version: int

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors and the version, for `torch.distributed.checkpoint`.

        Pass the store itself: `save({"store": store}, checkpoint_id="checkpoint")`. All trainers
        call `save` and `load` together, between steps. They need a process group of
        torch.distributed if they are several.

        Example:
            >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
            >>> _ = store.create_node_tensor("h", init="zeros")
            >>> torch.distributed.checkpoint.save({"store": store}, checkpoint_id=path / "saved")
            >>> torch.distributed.checkpoint.load({"store": store}, checkpoint_id=path / "saved")
        """
        client = self._client
        client.settle()
        pieces = {
            name: RowPieces(tensor, client.rank, client.num_trainers)
            for name, tensor in self._tensors.items()
            if tensor.shape.numel() > 0
        }
        return {"tensors": pieces, "version": self._first_version + client.num_steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the rows that `torch.distributed.checkpoint.load` has read.

        All tensors of the checkpoint must be in the store, with their shapes. The numbers of
        trainers and partitions may be others. All trainers call `load` together. Each needs
        memory for its share of the rows.

        Raises:
            RendezvousError: another trainer has failed.
        """
        client, version = self._client, int(state_dict["version"])
        client.settle()
        client.together("load", version, partial(self._write_rows, state_dict["tensors"]))
        client.set_version(version)
        self._first_version = version - client.num_steps

    def _write_rows(self, pieces: Mapping[str, RowPieces]) -> None:
        for name, of_tensor in pieces.items():
            for first, rows in of_tensor.loaded():
                values, _ = to_array(rows, name)
                self._tensors[name].write(np.arange(first, first + len(rows)), values).wait()

    def any_trainer(self, flag: bool) -> bool:
        """Return True if `flag` is True at any trainer. All trainers call it together.

        :meta private:
        """
        return self._client.any_trainer(flag)
