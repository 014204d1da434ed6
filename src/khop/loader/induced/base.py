"""Base of the loaders that choose nodes: a batch has all edges among them. Runs in the trainer.

An epoch is divided into batches of *items*. An item is a cluster, a node, or the number of a step.
`_chosen` returns the nodes of a batch for its items and its key. The kernels find the edges, as for
`SubGraphLoader` without hops.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import torch
import torch_geometric.loader
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

from khop.data.arrays import to_int64
from khop.loader.arguments import TORCH_OPTIONS, TorchOptions, check_hooks, check_loader_options
from khop.loader.base import EpochLoader
from khop.loader.iteration.epochs import KeyedBatch
from khop.loader.iteration.fingerprint import digest
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph, to_pyg
from khop.sampler.requests import SeedSet
from khop.typing import Int64Array, Pad, Transform, WorkerType

if TYPE_CHECKING:
    from typing_extensions import Unpack


class InducedLoader(EpochLoader, torch_geometric.loader.NodeLoader, abc.ABC):  # type: ignore[misc]
    """Loader of the subgraphs of chosen nodes, in an epoch of `num_items` items.

    `data`, `transform` (of batches), `seed`, `stream` (of random numbers), `worker_type` and
    `kwargs` (of torch) are as for `khop.loader.NeighborLoader`. `batch_size` counts items.
    Subclasses say what an item is (a cluster, a node, a step), and choose a batch's nodes from its
    items. Edges of a batch are sorted by their destinations. If `by_source`, they are sorted by
    their sources, and random walks lead from source to destination.
    """

    node_sampler: NeighborSampler

    def __init__(
        self,
        data: Data | HeteroData,
        num_items: int,
        *,
        batch_size: int | None,
        by_source: bool = False,
        transform: Transform | None = None,
        seed: int | None = None,
        stream: int | None = None,
        worker_type: WorkerType | None = None,
        pad: Pad | None = None,
        **kwargs: Unpack[TorchOptions],
    ) -> None:
        if unknown := [name for name in kwargs if name not in TORCH_OPTIONS]:
            raise TypeError(f"{type(self).__name__} has no arguments {unknown}")
        check_loader_options(worker_type, kwargs, batch_size)
        check_hooks(transform=transform)
        sampler = NeighborSampler(
            data, [], "induced", sample_direction="backward" if by_source else "forward"
        )
        items: Any = torch.arange(num_items)
        if sampler.graph.is_heterogeneous:  # PyG wants a type of them
            items = (sampler.graph.node_types[0], items)
        super().__init__(data, sampler, items, transform=transform, batch_size=batch_size, **kwargs)
        self._set_up(num_items, seed, stream, worker_type, kwargs, pad)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} batches)"

    @abc.abstractmethod
    def _chosen(self, items: Int64Array, key: BatchKey) -> list[SeedSet]:
        """Return the distinct nodes of a batch, in one set per node type. Called in threads.

        `items` [n] are the indices of the batch's items, such as clusters.
        """

    def _settings(self) -> list[Any]:
        """Return the options that decide which nodes are chosen, to compare with a saved state."""
        return []

    @property
    def _sampler(self) -> NeighborSampler:
        return self.node_sampler

    @property
    def _digests(self) -> tuple[str, str | None]:
        items, sampling = super()._digests
        return digest([type(self).__name__, items, *self._settings()]), sampling

    def _induced(self, items: Int64Array, key: BatchKey) -> SampledSubgraph:
        return self.node_sampler.draw_nodes(self._chosen(items, key), key)

    def _draw_planned(self, positions: KeyedBatch) -> tuple[SampledSubgraph, Any]:
        return self._induced(*positions), None

    def _draw(self, inputs: NodeSamplerInput, key: BatchKey | None) -> Any:
        sampler = self.node_sampler
        drawn = self._induced(to_int64(inputs.node, "items"), sampler._key(key))
        return to_pyg(drawn, sampler.info, (None, None), sampler.output_forms)

    def _annotate(self, batch: Data | HeteroData, metadata: Any) -> None:
        """Add nothing: no node of a batch is a seed."""


def check_homogeneous(data: object, name: str) -> None:
    """Raise TypeError unless `data` is a `Data`: a graph of one node type and one edge type.

    `name` is the loader's name in the message.
    """
    if not isinstance(data, Data):
        raise TypeError(
            f"{name} takes a homogeneous graph, a PyG Data (got '{type(data).__name__}'): "
            "data.to_homogeneous() makes one of a HeteroData"
        )
