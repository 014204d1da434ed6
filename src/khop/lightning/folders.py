"""Data modules for Lightning over partition folders and graph servers. Runs in trainers."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.job.context import get_context
from khop.distributed.job.worker_group import init_worker_group
from khop.distributed.loaders.link_neighbor_loader import DistLinkNeighborLoader
from khop.distributed.loaders.loader_options import LoaderOptions
from khop.distributed.loaders.neighbor_loader import DistNeighborLoader
from khop.distributed.loaders.split import link_split, node_split
from khop.distributed.options import RemoteDistSamplingWorkerOptions
from khop.distributed.remote.client.client_context import ClientContext
from khop.loader.arguments import _NegSampling
from khop.sampler.link_spec import ExcludeSeedEdges
from khop.sampler.methods import SamplingMethod
from khop.storage.folder import PartitionFolder
from khop.typing import NODE, ArrayLike, EdgeType, NodeType, NumNeighbors

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _data_module() -> Any:
    """Return class `LightningDataModule` of the Lightning package that is installed."""
    names = ["lightning.pytorch", "pytorch_lightning"]  # the same, published twice
    if names[1] in sys.modules and names[0] not in sys.modules:
        names.reverse()
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return importlib.import_module(name).LightningDataModule
    raise ModuleNotFoundError("khop.lightning needs package lightning: pip install lightning")


_Base: Any = _data_module()
_Loaders: TypeAlias = DistNeighborLoader | DistLinkNeighborLoader | list[DistNeighborLoader]


class _LinkOptions(LoaderOptions, total=False):
    neg_sampling: _NegSampling
    neg_sampling_ratio: float | None
    strict_negatives: bool
    exclude_seed_edges: ExcludeSeedEdges


class _PartitionedData(_Base):  # type: ignore[misc]
    """Base of data modules for partition folders and graph servers.

    It opens the graph in `setup`. Subclasses make the loaders.

    Attributes:
        graph: the trainer's partition, or the graph of this client's servers. None before `setup`.
    """

    def __init__(self, root: str | os.PathLike[str] | None, options: LoaderOptions) -> None:
        super().__init__()
        self._root = root
        self._options = options
        self.graph: PartitionedGraph | None = None

    def setup(self, stage: str) -> None:
        """Join the group of trainers and open the graph. Lightning calls it on every trainer."""
        if self.graph is not None:
            return
        if self._root is not None:
            context = init_worker_group()
            self.graph = open_share(self._root, context.rank, context.world_size)
            return
        client = get_context()
        if not isinstance(client, ClientContext):
            raise RuntimeError(
                "root=None is for clients of graph servers: call khop.distributed.init_client() "
                "before Trainer.fit, or pass the partition folder"
            )
        self._options.setdefault("worker_options", RemoteDistSamplingWorkerOptions())
        self.graph = client.graph

    def teardown(self, stage: str) -> None:
        """Drop the reference to the graph. Loaders end with Lightning's references to them."""
        self.graph = None

    def _loader(self, stage: str) -> _Loaders:
        """Return the loader of a stage ('train', 'val', ...), or [] if the stage has no seeds."""
        raise NotImplementedError

    def train_dataloader(self) -> _Loaders:
        """Return the loader of the training stage."""
        return self._loader("train")

    def val_dataloader(self) -> _Loaders:
        """Return the loader of the validation stage, or [] without seeds for it."""
        return self._loader("val")

    def test_dataloader(self) -> _Loaders:
        """Return the loader of the test stage, or [] without seeds for it."""
        return self._loader("test")

    def predict_dataloader(self) -> _Loaders:
        """Return the loader of the prediction stage, or [] without seeds for it."""
        return self._loader("predict")

    def _loader_options(self, training: bool) -> LoaderOptions:
        """Return the options of a loader. If the trainer has a GPU, batches are copied to it."""
        options = self._options.copy()
        trainer = getattr(self, "trainer", None)
        if trainer is not None and trainer.strategy.root_device.type == "cuda":
            options.setdefault("device", trainer.strategy.root_device)
        options["shuffle"] = training and options.get("shuffle", True)
        if not training:
            options.pop("drop_last", None)
            options.pop("num_virtual_ranks", None)
        return options

    def _data(self) -> DistDataset | None:
        """Return argument `data` of the loaders. None for clients of graph servers."""
        return self.graph if isinstance(self.graph, DistDataset) else None


class PartitionedNodeData(_PartitionedData):
    """Data module whose loaders make batches of nodes of a partition folder, or of graph servers.

    Args:
        root: the partition folder. If None, the graph of this client's servers
            (`khop.distributed.init_client`).
        num_neighbors: fan-out of each hop, or a sampling method, as for `DistNeighborLoader`.
        train, val, test, predict: seeds of each stage, which are divided among the trainers: the
            name of a boolean attribute, [n] original ids, or a mask. If None, the stage has no
            loader. 'val_mask' and 'test_mask' count as None if the folder lacks them.
        node_type: node type of the seeds. Required if the graph has several.
        collect_features: deliver attributes with the batches (default: True).
        **options: `LoaderOptions` of `DistNeighborLoader`. `shuffle` (default: True), `drop_last`
            and `num_virtual_ranks` concern training alone.

    Raises:
        ModuleNotFoundError: Lightning is not installed.

    Example:
        >>> nodes = PartitionedNodeData(folder, [15, 10], batch_size=2)
        >>> nodes.setup("fit")  # as Trainer(use_distributed_sampler=False).fit(model, nodes) does
        >>> len(nodes.train_dataloader()), nodes.val_dataloader()
        (2, [])
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        num_neighbors: NumNeighbors | SamplingMethod,
        *,
        train: ArrayLike | str | None = "train_mask",
        val: ArrayLike | str | None = "val_mask",
        test: ArrayLike | str | None = "test_mask",
        predict: ArrayLike | str | None = None,
        node_type: NodeType | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        super().__init__(root, options)
        self._num_neighbors = num_neighbors
        self._seeds = {"train": train, "val": val, "test": test, "predict": predict}
        self._node_type = node_type

    def _loader(self, stage: str) -> _Loaders:
        seeds = self._seeds[stage]
        assert self.graph is not None
        is_default = stage != "train" and isinstance(seeds, str) and seeds == f"{stage}_mask"
        splits = self.graph.meta.node_type(self._node_type or NODE).splits if is_default else []
        if seeds is None or (is_default and seeds not in splits):
            return []
        options = self._loader_options(stage == "train")
        share: Any = seeds
        if options.get("num_virtual_ranks") is None:
            share = node_split(seeds, self.graph, node_type=self._node_type)
        if self._node_type is not None:
            share = (self._node_type, share)
        return DistNeighborLoader(self._data(), self._num_neighbors, share, **options)


class PartitionedLinkData(_PartitionedData):
    """Data module whose loaders make batches of links of a partition folder, or of graph servers.

    Args:
        root: the partition folder. If None, the graph of this client's servers.
        num_neighbors: fan-out of each hop, or a sampling method, as for `DistLinkNeighborLoader`.
        links: links of each stage ('train', 'val', 'test', 'predict'), [2, n] original ids of
            sources and destinations. Each trainer gets its share (`link_split`).
        labels: [n] labels of the links of a stage, if they have any.
        link_type: edge type of the links. Required if the graph has several.
        **options: further arguments of `DistLinkNeighborLoader`. `shuffle` (default: True),
            `drop_last` and `num_virtual_ranks` concern training alone.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
        ValueError: a stage is unknown, or a stage without links has labels.

    Example:
        >>> links = {"train": data.edge_index[:, :8], "val": data.edge_index[:, 8:]}
        >>> ends = PartitionedLinkData(folder, [5], links, batch_size=4, neg_sampling="binary")
        >>> ends.setup("fit")
        >>> len(ends.train_dataloader()), len(ends.val_dataloader())
        (2, 1)
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None,
        num_neighbors: NumNeighbors | SamplingMethod,
        links: dict[str, ArrayLike],
        *,
        labels: dict[str, ArrayLike] | None = None,
        link_type: EdgeType | None = None,
        **options: Unpack[_LinkOptions],
    ) -> None:
        super().__init__(root, options)
        for stage in links:
            if stage not in ("train", "val", "test", "predict"):
                raise ValueError(
                    f"links are those of 'train', 'val', 'test' or 'predict' (got {stage!r})"
                )
        for stage in labels or {}:
            if stage not in links:
                raise ValueError(f"labels of {stage!r}, which has no links")
        self._num_neighbors = num_neighbors
        self._links = dict(links)
        self._labels = dict(labels or {})
        self._link_type = link_type

    def _loader(self, stage: str) -> _Loaders:
        if stage not in self._links:
            return []
        ends = torch.as_tensor(self._links[stage])
        options = self._loader_options(stage == "train")
        share = torch.arange(ends.shape[1])
        if options.get("num_virtual_ranks") is None:
            share = link_split(ends, self.graph, link_type=self._link_type)
        labels = None
        if stage in self._labels:
            labels = torch.as_tensor(self._labels[stage])[share]
        links: Any = ends[:, share]
        if self._link_type is not None:
            links = (self._link_type, links)
        return DistLinkNeighborLoader(
            self._data(), self._num_neighbors, links, edge_label=labels, **options
        )


def open_share(root: str | os.PathLike[str], rank: int, world_size: int) -> DistDataset:
    """Open the partitions of a folder that a trainer serves. `rank` is below `world_size`.

    If there are more trainers than partitions, trainers of consecutive ranks open the same
    partition. If there are fewer, a trainer serves several partitions.
    """
    num_parts = PartitionFolder(root).num_parts
    home = rank * num_parts // world_size
    end = max(home + 1, (rank + 1) * num_parts // world_size)
    return DistDataset().load(root, home, also_serve=range(home + 1, end))
