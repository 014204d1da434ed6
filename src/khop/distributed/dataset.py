"""A trainer's partition of a data set."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from khop.data.arrays import check_range, to_array, to_ids
from khop.distributed.context import require_context
from khop.distributed.service import PartitionService
from khop.partition.folder import FolderMeta, PartitionFolder
from khop.typing import NODE, ArrayLike, EdgeDir, Int64Array, NodeType


class DistDataset:
    """One partition of a folder, and the way to the others.

        dataset = DistDataset().load('products-parts', partition_idx=rank)

    Loading maps files and reads none of them; all processes of a machine share the page cache.

    Attributes:
        folder: the partition folder; None before `load`.
        partition_idx: the home partition.
        node_labels: labels from `whole_node_label_file`, [num_nodes, ...] by original id.
    """

    def __init__(self) -> None:
        self.folder: PartitionFolder | None = None
        self.partition_idx = 0
        self.node_labels: Tensor | None = None
        self._also_serve: list[int] = []
        self._service: PartitionService | None = None

    def load(
        self,
        root_dir: str | os.PathLike[str] | None = None,
        partition_idx: int = 0,
        graph_mode: str = "ZERO_COPY",
        input_layout: str = "COO",
        feature_with_gpu: bool = False,
        graph_caching: bool = False,
        device_group_list: Any = None,
        whole_node_label_file: str | os.PathLike[str] | None = None,
        device: Any = None,
        *,
        graph_dir: str | os.PathLike[str] | None = None,
        also_serve: Sequence[int] = (),
    ) -> DistDataset:
        """Opens a partition.

        Args:
            root_dir: the partition folder.
            partition_idx: the home partition of this trainer.
            graph_mode: 'CPU' or 'ZERO_COPY' (host memory read in place: the same on a CPU).
            input_layout: accepted for GraphLearn-for-PyTorch's sake, as are the next four: a
                folder knows its layout, and data is mapped.
            feature_with_gpu: accepted.
            graph_caching: accepted.
            device_group_list: accepted.
            device: accepted.
            whole_node_label_file: labels by original id, `.pt` (a tensor, read without unpickling
                code) or `.npy`; for folders that hold none. Batches then carry them as `y`.
            graph_dir: another name for `root_dir`.
            also_serve: further partitions, whose files are on this machine, that no trainer has as
                its home and that this trainer shall serve.

        Returns:
            The dataset itself.

        Raises:
            FolderError: no such folder, damaged, of another version, or a part not on this machine.
            IndexError, TypeError: no such partition.
            NotImplementedError: graph_mode 'CUDA'.
        """
        del input_layout, feature_with_gpu, graph_caching, device_group_list, device
        if (root_dir is None) == (graph_dir is None):
            raise TypeError("give root_dir (or its other name, graph_dir)")
        if graph_mode == "CUDA":
            raise NotImplementedError("graph_mode='CUDA' comes with the CUDA kernels")
        if graph_mode not in ("CPU", "ZERO_COPY"):
            raise ValueError(
                f"graph_mode must be 'CPU', 'ZERO_COPY' or 'CUDA' (got '{graph_mode}')"
            )
        folder = PartitionFolder(root_dir if root_dir is not None else str(graph_dir))
        self.partition_idx = folder.check_part(partition_idx)
        self._also_serve = [folder.check_part(part) for part in also_serve]
        self.folder = folder
        self._service = None
        if whole_node_label_file is not None:
            self.node_labels = self._read_labels(Path(whole_node_label_file))
        _loaded.append(weakref.ref(self))
        return self

    @property
    def meta(self) -> FolderMeta:
        """What the folder holds."""
        return self.opened.meta

    @property
    def opened(self) -> PartitionFolder:
        """The folder; RuntimeError before `load`."""
        if self.folder is None:
            raise RuntimeError("the dataset holds nothing yet: call load() first")
        return self.folder

    @property
    def num_partitions(self) -> int:
        """Number of partitions."""
        return self.meta.num_parts

    @property
    def edge_dir(self) -> EdgeDir:
        """Whose neighbours the folder serves: 'in' or 'out'."""
        return self.meta.edge_dir

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph (homogeneous)."""
        return self.meta.node_type(NODE).count

    @property
    def num_edges(self) -> int:
        """Number of edges of the whole graph (all types)."""
        return sum(t.count for t in self.meta.edge_types)

    def node_attr(self, name: str, node_type: NodeType = NODE) -> tuple[str, tuple[int, ...]]:
        """Name of the dtype and shape of one row of a node attribute; KeyError if none."""
        attr = self.meta.node_type(node_type).attrs[name]
        return attr.dtype, attr.shape

    def local_nodes(self, node_type: NodeType = NODE) -> Tensor:
        """[n] int64 original ids of the home partition's nodes."""
        ids = self.opened.node_ids(self.partition_idx, node_type)
        return torch.from_numpy(ids.astype(np.int64))

    def to_new_ids(self, ids: ArrayLike, what: str, node_type: NodeType = NODE) -> Int64Array:
        """Ids of the folder's numbering.

        Args:
            ids: [n] original ids.
            what: what they are called in error messages.
            node_type: their node type.

        Raises:
            IndexError: an id that does not exist.
            TypeError, ValueError: ids that are no vector of integers.
        """
        original = to_ids(ids, what)
        check_range(original, self.meta.node_type(node_type).count, what)
        return self.opened.id_map(node_type)[original].astype(np.int64)

    def service(self) -> PartitionService:
        """How this trainer reaches the partitions; made by all trainers together, once."""
        if self._service is None:
            self._service = PartitionService(
                require_context(), self.opened, self.partition_idx, self._also_serve
            )
        return self._service

    def _read_labels(self, file: Path) -> Tensor:
        if file.suffix == ".npy":
            labels = torch.from_numpy(np.load(file, allow_pickle=False))
        else:
            labels = torch.load(file, map_location="cpu", weights_only=True)
        if not isinstance(labels, Tensor) or labels.size(0) != self.num_nodes:
            raise ValueError(f"'{file}' does not hold a tensor with a label for each node")
        return labels


_loaded: list[weakref.ref[DistDataset]] = []


def last_loaded() -> DistDataset:
    """The dataset that was loaded last and is still there; RuntimeError if there is none."""
    for reference in reversed(_loaded):
        dataset = reference()
        if dataset is not None:
            return dataset
    raise RuntimeError("no DistDataset has been loaded in this process: pass dataset=")


def seeds_of(dataset: DistDataset, seeds: ArrayLike, what: str) -> tuple[Int64Array, Int64Array]:
    """Seeds as users give them.

    Args:
        dataset: the dataset.
        seeds: [n] original ids, a boolean mask over all nodes, or None for all nodes.
        what: what they are called in error messages.

    Returns:
        Original ids, and PyG's `input_id` of each: positions in the input; for a mask, the ids.
    """
    if seeds is None:
        every = np.arange(dataset.num_nodes, dtype=np.int64)
        return every, every
    array, name = to_array(seeds, what)
    if name == "bool":
        if array.shape != (dataset.num_nodes,):
            raise ValueError(
                f"{what} is a mask of shape {array.shape} for {dataset.num_nodes} nodes"
            )
        ids = np.flatnonzero(array)
        return ids, ids
    ids = to_ids(seeds, what).astype(np.int64)
    check_range(ids, dataset.num_nodes, what)
    return ids, np.arange(len(ids), dtype=np.int64)
