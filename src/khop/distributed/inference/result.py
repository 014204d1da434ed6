"""Outputs of layer-wise inference: rows of all trainers, by original id. Runs in trainers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from khop.data.arrays import storage_dtype
from khop.data.files import load_npy
from khop.distributed.dataset import DistDataset
from khop.distributed.inference.files import Share
from khop.distributed.tensors.tensor_requests import TensorSpec
from khop.distributed.tensors.tensor_view import TensorView
from khop.loader.batches.collate import to_tensor
from khop.loader.inputs import checked_nodes
from khop.sampler.rows.row_fetcher import FetchedRows
from khop.typing import NODE, Array, ArrayLike, Int64Array, IntArray, NodeType

_CHUNK = 1 << 16


class NodeOutputs(TensorView):
    """Output of the last layer for the nodes of one type: a tensor of all nodes, read-only.

    `layerwise_inference` makes it. Rows come from files or over the network.

    Attributes:
        dtype: dtype of the rows.
        shape: [num_nodes, ...] shape of the whole output.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> model = torch_geometric.nn.GraphSAGE(4, 8, num_layers=2, out_channels=3).eval()
        >>> outputs = layerwise_inference(dataset, model, path / "out")["node"]
        >>> outputs.shape, outputs[torch.tensor([5, 0])].shape
        (torch.Size([6, 3]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        data: DistDataset,
        node_type: NodeType,
        reader: FetchedRows,
        files: Sequence[tuple[Share, Path]],
    ) -> None:
        described = data.meta.node_type(node_type)
        index = [t.name for t in data.meta.node_types].index(node_type)
        spec: Any = TensorSpec("node", index, reader.dtype, list(reader.row_shape))  # type: ignore[arg-type]
        super().__init__("output", node_type, spec, described.bounds)
        self._data = data
        self._node_type = node_type
        self._reader = reader
        self._files = files

    def read(self, ids: Int64Array) -> Array:
        new_ids = self._data.to_new_ids(torch.from_numpy(ids), "ids", self._node_type)
        out: Array = np.empty((len(new_ids), *self.shape[1:]), storage_dtype(self.spec.dtype))
        for first in range(0, len(new_ids), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            self._reader.fill(new_ids[chunk], out[chunk])
        return out

    def _ids(self, ids: ArrayLike | slice | None) -> Int64Array:
        if ids is None or isinstance(ids, slice):
            return super()._ids(ids)
        original = checked_nodes(self._data.info, self._node_type, ids, "ids").ids  # also a mask
        return original.cpu().numpy()

    def gather_all(self) -> Tensor:
        """Read the outputs of all nodes into memory: [num_nodes, ...] by original id."""
        return self.pull()

    @property
    def local(self) -> Tensor:
        """Rows of the nodes that this trainer has computed: [n, ...], in the order of `local_ids`.

        Mapped from their file, so that rows are read on first access. Writes to the tensor do not
        change the file. A trainer that computed several parts gets a copy.
        """
        pieces = [
            to_tensor(load_npy(file, "c"), self.spec.dtype)
            for share, file in self._files
            if share.num_rows(self.spec.type_index)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat([*pieces, torch.empty((0, *self.shape[1:]), dtype=self.dtype)])

    @property
    def local_ids(self) -> Tensor:
        """Original ids of the nodes that this trainer has computed: [n] int64."""
        folder = self._data.opened
        bounds = self._data.meta.node_type(self._node_type).bounds
        pieces: list[IntArray] = [np.empty(0, np.int64)]
        for share, _ in self._files:
            low, high = (i - bounds[share.part] for i in share.ranges[self.spec.type_index])
            pieces.append(folder.node_ids(share.part, self._node_type)[low:high])
        return torch.from_numpy(np.concatenate(pieces).astype(np.int64))


class LayerwiseOutputs(Mapping[NodeType, NodeOutputs]):
    """Output of the last layer, from `layerwise_inference`: {node type: `NodeOutputs`}.

        out = layerwise_inference(data, model, 'embeddings')
        out[ids]                  # homogeneous: rows by original id, as out['node'][ids]
        out['paper'][ids]         # heterogeneous

    If trainers do not see each other's files, their servers run until all trainers end, or all
    `close` it (also: `with layerwise_inference(...) as out`). For one thread at a time.

    Attributes:
        root: the folder with the files of this trainer and of others that share it.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> model = torch_geometric.nn.GraphSAGE(4, 8, num_layers=2, out_channels=3).eval()
        >>> with layerwise_inference(dataset, model, path / "out") as out:
        ...     out[torch.tensor([5, 0])].shape, out["node"].shape
        (torch.Size([2, 3]), torch.Size([6, 3]))
    """

    def __init__(
        self,
        root: Path,
        nodes: Mapping[NodeType, NodeOutputs],
        agree_on_end: Callable[[bool], None],
        close_clients: Callable[[], None],
    ) -> None:
        self.root = root
        self._nodes = nodes
        self._agree_on_end = agree_on_end
        self._finalizer = weakref.finalize(self, close_clients)

    @overload
    def __getitem__(self, key: NodeType) -> NodeOutputs: ...

    @overload
    def __getitem__(self, key: ArrayLike) -> Tensor: ...

    def __getitem__(self, key: ArrayLike | NodeType) -> NodeOutputs | Tensor:
        """Return outputs of a node type (`key`), or for a homogeneous graph of original ids."""
        if isinstance(key, str):
            if key not in self._nodes:
                raise KeyError(f"no outputs of node type '{key}': there are {list(self._nodes)}")
            return self._nodes[key]
        if list(self._nodes) != [NODE]:
            raise KeyError(
                f"name the node type first, out[node_type][ids]: there are {list(self._nodes)}"
            )
        return self._nodes[NODE][key]

    def __iter__(self) -> Iterator[NodeType]:
        """Iterate over the node types."""
        return iter(self._nodes)

    def __len__(self) -> int:
        """Return the number of node types."""
        return len(self._nodes)

    def gather_all(self) -> dict[NodeType, Tensor]:
        """Read outputs of all nodes into memory: {node type: [num_nodes, ...]} by original id."""
        return {node_type: outputs.gather_all() for node_type, outputs in self._nodes.items()}

    def close(self) -> None:
        """End the server of this trainer's outputs, once all trainers have closed theirs.

        Files stay.
        """
        self._close(wait=True)

    def _close(self, wait: bool) -> None:
        if self._finalizer.alive:
            self._finalizer()
            self._agree_on_end(wait)

    def __enter__(self) -> LayerwiseOutputs:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._close(wait=error_type is None)
