"""PyG's data modules for Lightning and graphs in memory, with khop's loaders. Runs in trainers."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, TypeAlias

import torch_geometric.data.lightning
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import NeighborSampler
from khop.typing import SeedLinks, SeedNodes

_Graph: TypeAlias = Data | HeteroData | tuple[FeatureStore, GraphStore]
_OF_SAMPLER = inspect.signature(NeighborSampler).parameters.keys() - {"data", "seed", "stream"}
# Options of both. PyG would pass them to the sampler alone, but the loader makes the draws' keys.
_OF_EPOCHS = ("seed", "stream")


class _InMemory:
    """Mixin for PyG's Lightning data modules, which makes them use khop's sampler."""

    eval_graph_sampler: Any
    eval_loader_kwargs: dict[str, Any]
    loader_kwargs: dict[str, Any]

    def _set_up(self, data: _Graph, sampler_name: str, args: Any, options: dict[str, Any]) -> None:
        """Call PyG's `__init__`, with khop's sampler as `sampler_name` unless users pass a sampler.

        `args` and `options` are the user's arguments.
        """
        loader = options.get("loader", "neighbor")
        if loader not in ("neighbor", "link_neighbor") or options.get(sampler_name) is not None:
            super().__init__(data, *args, **options)  # type: ignore[call-arg]
            return
        drawn, options = _split(options, _OF_SAMPLER)
        if "num_neighbors" not in drawn:
            raise TypeError("num_neighbors is missing: fan-outs of hops, or a sampling method")
        epochs, options = _split(options, _OF_EPOCHS)
        drawn_eval, own_eval = _split(options.pop("eval_loader_kwargs", None) or {}, _OF_SAMPLER)
        sampler = options[sampler_name] = NeighborSampler(data, **drawn)
        super().__init__(data, *args, **options)  # type: ignore[call-arg]
        self.loader_kwargs.update(epochs)
        self.eval_loader_kwargs |= epochs | own_eval
        if drawn_eval:
            source = sampler.graph if drawn_eval.keys() == {"num_neighbors"} else data
            self.eval_graph_sampler = NeighborSampler(source, **drawn | drawn_eval)


def _split(
    options: dict[str, Any], names: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into two dictionaries: the ones in `names`, and the rest."""
    named = {name: value for name, value in options.items() if name in names}
    return named, {name: value for name, value in options.items() if name not in names}


class LightningNodeData(
    _InMemory,
    torch_geometric.data.lightning.LightningNodeData,  # type: ignore[misc]
):
    """PyG's `LightningNodeData` without pyg-lib and torch-sparse: its loaders are `NeighborLoader`.

    Args:
        data: a PyG `Data` or `HeteroData`, or a pair of stores, as for `NeighborLoader`.
        *args: seeds and their times of each stage, by position or name, as in PyG. Without seeds,
            the masks of `data` are used.
        **kwargs: `num_neighbors`, a list or a sampling method, and the other options of
            `khop.loader.NeighborLoader`. `eval_loader_kwargs` has the options that differ in
            evaluation. With `loader='full'`, or a `node_sampler` that is not khop's, PyG makes the
            loaders, and takes only PyG's options.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
        TypeError, ValueError: as `khop.loader.NeighborLoader`.

    Example:
        >>> nodes = LightningNodeData(data, torch.arange(4), num_neighbors=[2, 2], batch_size=2)
        >>> len(nodes.train_dataloader()), nodes.val_dataloader
        (2, None)
    """

    def __init__(self, data: _Graph, *args: Any, **kwargs: Any) -> None:
        self._set_up(data, "node_sampler", args, kwargs)

    def dataloader(
        self,
        input_nodes: SeedNodes,
        input_time: Tensor | None = None,
        input_id: Tensor | None = None,
        node_sampler: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loader of a stage, for these seeds and times. PyG calls this method."""
        if not isinstance(node_sampler, NeighborSampler):
            return super().dataloader(input_nodes, input_time, input_id, node_sampler, **kwargs)
        return NeighborLoader(
            self.data,
            node_sampler.num_neighbors,
            input_nodes,
            input_time,
            time_attr=node_sampler.time_attr,
            input_id=input_id,
            neighbor_sampler=node_sampler,
            **kwargs,
        )


class LightningLinkData(
    _InMemory,
    torch_geometric.data.lightning.LightningLinkData,  # type: ignore[misc]
):
    """PyG's `LightningLinkData` without pyg-lib and torch-sparse, by `LinkNeighborLoader`.

    Args:
        data: a PyG `Data` or `HeteroData`, or a pair of stores, as for `LinkNeighborLoader`.
        *args: links of each stage, their labels and times, by position or name, as in PyG.
        **kwargs: `num_neighbors` and the other options of `khop.loader.LinkNeighborLoader`.
            `eval_loader_kwargs` has the options that differ in evaluation. With `loader='full'`, or
            a `link_sampler` that is not khop's, PyG makes loaders, with only PyG's options.

    Raises:
        ModuleNotFoundError: Lightning is not installed.
        TypeError, ValueError: as `khop.loader.LinkNeighborLoader`.

    Example:
        >>> options = {"num_neighbors": [2], "batch_size": 4, "neg_sampling": "binary"}
        >>> links = LightningLinkData(data, data.edge_index[:, :8], **options)
        >>> next(iter(links.train_dataloader())).edge_label.shape
        torch.Size([8])
    """

    def __init__(self, data: _Graph, *args: Any, **kwargs: Any) -> None:
        self._set_up(data, "link_sampler", args, kwargs)

    def dataloader(
        self,
        input_edges: SeedLinks,
        input_labels: Tensor | None = None,
        input_time: Tensor | None = None,
        input_id: Tensor | None = None,
        link_sampler: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return the loader of a stage, for these links, labels and times. For PyG."""
        if not isinstance(link_sampler, NeighborSampler):
            return super().dataloader(
                input_edges, input_labels, input_time, input_id, link_sampler, **kwargs
            )
        return LinkNeighborLoader(
            self.data,
            link_sampler.num_neighbors,
            input_edges,
            input_labels,
            input_time,
            time_attr=link_sampler.time_attr,
            input_id=input_id,
            neighbor_sampler=link_sampler,
            **kwargs,
        )
