"""`LinkNeighborLoader`: PyG's loader, with khop's kernels. Runs in the trainer."""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from khop.loader.arguments import (
    TorchOptions,
    _LinkSampler,
    _NegSampling,
    check_hooks,
    check_loader_options,
    check_sampler,
    checked_negatives,
)
from khop.loader.base import EpochLoader
from khop.loader.batches.collate import annotate_links, stack_endpoints
from khop.loader.inputs import (
    check_all_edges,
    checked_labels,
    checked_links,
    checked_times,
    checked_values,
    split_links,
)
from khop.loader.iteration.epochs import KeyedBatch
from khop.loader.selection import LinkInputs
from khop.sampler.arguments import check_times, given_times
from khop.sampler.link_spec import ExcludeSeedEdges, LinkSpec
from khop.sampler.methods import SamplingMethod
from khop.sampler.pyg.device import DeviceOptions
from khop.sampler.pyg.device_drawer import Begun
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.links import LinkOptions, link_metadata
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.source import as_input, open_input
from khop.typing import EdgeType, Numbers, NumNeighbors, Pad, SeedLinks, Transform, WorkerType

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LinkNeighborLoader(
    EpochLoader,
    torch_geometric.loader.LinkNeighborLoader,  # type: ignore[misc]
):
    """PyG's `LinkNeighborLoader` without pyg-lib and torch-sparse.

    It takes PyG's arguments and returns PyG's batches: the neighbourhood of the ends of links and
    of negatives, with their positions in it (`edge_label_index` and `edge_label`, or `src_index`,
    `dst_pos_index` and `dst_neg_index`). The drawn neighbours and negatives are a function of seed,
    epoch, batch index and graph, for any number of workers.

    Args:
        data: as for `NeighborLoader`.
        num_neighbors: as for `NeighborLoader`. No hops, `[]`, take only the ends of links.
        edge_label_index: links: [2, num_links] sources and destinations, or None for all edges. For
            a `HeteroData`: an edge type, or (edge type, such links).
        edge_label: [num_links, ...] labels of links. With binary negatives, labels that begin
            at 0 are increased by 1, and negatives have label 0.
        edge_label_time: [num_links] time of each link. Only neighbours up to this time are drawn
            for its ends. Required with `time_attr`.
        neg_sampling: PyG's `NegativeSampling`, or a dictionary for one: 'binary' draws negative
            pairs, 'triplet' negative destinations for each source, uniformly or by `src_weight` and
            `dst_weight`. If None, no negatives.
        neg_sampling_ratio: binary negatives per link, as in older versions of PyG.
        replace, subgraph_type, temporal_strategy, time_attr, weight_attr, transform,
            transform_sampler_output, is_sorted, filter_per_worker, neighbor_sampler, directed:
            as for `NeighborLoader`.
        disjoint: sample a separate subgraph for each link, identified by `batch`. Always on with
            temporal sampling.
        strict_negatives: draw only negatives that are not edges of the graph. PyG's may be edges.
        exclude_seed_edges: leave a batch's links out of the neighbourhoods. If False (default), a
            model may see the links that it is to predict. True or 'self' leaves out the links. With
            'reverse', their reverses are left out, too. In a heterogeneous graph, these have type
            `rev_<relation>`, or the only type in the other direction. Or pass their edge type.
        batch_size: links per batch.
        seed, stream, worker_type, device, device_options, custom_cls, pad: as for `NeighborLoader`.
        input_id: [num_links] `input_id` of links in batches. If None, their positions.
        **kwargs: `TorchOptions`: `shuffle`, `drop_last`, `num_workers`, ...

    Raises:
        IndexError, TypeError, ValueError: links do not exist or are not integers, or arguments
            contradict one another. While batches are drawn, ValueError: there is no strict
            negative.

    Example:
        >>> links = data.edge_index[:, :4]
        >>> loader = LinkNeighborLoader(data, [2, 2], links, batch_size=4, neg_sampling="binary")
        >>> next(iter(loader)).edge_label.tolist()
        [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """

    def __init__(
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore],
        num_neighbors: NumNeighbors | SamplingMethod,
        edge_label_index: SeedLinks = None,
        edge_label: Numbers | None = None,
        edge_label_time: Numbers | None = None,
        replace: bool = False,
        subgraph_type: Literal["directional", "bidirectional", "induced"] | Enum = "directional",
        disjoint: bool = False,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        neg_sampling: _NegSampling = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: _LinkSampler | None = None,
        directed: bool = True,
        *,
        batch_size: int | None = 1,
        strict_negatives: bool = False,
        exclude_seed_edges: ExcludeSeedEdges = False,
        seed: int | None = None,
        stream: int | None = None,
        worker_type: WorkerType | None = None,
        device: str | int | torch.device | None = None,
        device_options: DeviceOptions | None = None,
        input_id: Numbers | None = None,
        custom_cls: type[Data | HeteroData] | None = None,
        pad: Pad | None = None,
        **kwargs: Unpack[TorchOptions],
    ) -> None:
        check_loader_options(worker_type, kwargs, batch_size)
        check_hooks(transform=transform, transform_sampler_output=transform_sampler_output)
        data = as_input(data)
        is_temporal = time_attr is not None
        check_times("edge_label_time", edge_label_time is not None, is_temporal, required=True)
        negatives = checked_negatives(neg_sampling, neg_sampling_ratio)
        sampler: Any = neighbor_sampler
        if sampler is not None:
            check_sampler(sampler, "sample_from_edges", data, device)
        else:
            sampler = NeighborSampler(
                data,
                num_neighbors,
                subgraph_type,
                replace,
                disjoint,
                temporal_strategy,
                time_attr,
                weight_attr,
                is_sorted,
                directed=directed,
                device=device,
                device_options=device_options,
            )
        link_type, links = _checked_links(data, edge_label_index)
        num_links = links.size(1)
        edge_label = checked_labels(edge_label, num_links, negatives)
        if num_links == 0:
            edge_label = None  # PyG takes the minimum of the labels, which fails
        super().__init__(
            data,
            num_neighbors,
            links if isinstance(data, Data) else (link_type, links),
            edge_label,
            checked_times(edge_label_time, num_links, "edge_label_time", "links"),
            input_id=checked_values(input_id, num_links, "input_id", "links"),
            neg_sampling=negatives,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            custom_cls=custom_cls,
            neighbor_sampler=sampler,
            batch_size=batch_size,
            **kwargs,
        )
        self._options = LinkOptions(self.neg_sampling, strict_negatives, exclude_seed_edges)
        if getattr(sampler, "is_keyed", False):
            sampler.link_sampler(self.input_data.input_type, self._options)  # checks them
            # Raise errors of times now, not in the first batch.
            time, info = self.input_data.time, sampler.info
            check_times("edge_label_time", time is not None, info.is_temporal, required=True)
            if time is not None:
                given_times(info, time, num_links, "edge_label_time", "links")
        elif strict_negatives or exclude_seed_edges:
            raise ValueError(
                "strict_negatives and exclude_seed_edges need a sampler of khop's (got a "
                f"'{type(sampler).__name__}')"
            )
        self._set_up(num_links, seed, stream, worker_type, kwargs, pad)

    @property
    def _sampler(self) -> Any:
        return self.link_sampler

    def _draw(self, inputs: EdgeSamplerInput, key: BatchKey | None) -> Any:
        neg_sampling, strict, exclude = self._options
        if not getattr(self.link_sampler, "is_keyed", False):
            return self.link_sampler.sample_from_edges(inputs, neg_sampling=neg_sampling)
        return self.link_sampler.sample_from_edges(
            inputs, neg_sampling, key, strict_negatives=strict, exclude_seed_edges=exclude
        )

    @cached_property
    def _inputs(self) -> LinkInputs:
        return LinkInputs(self.link_sampler, self.input_data, self._options)

    def _draw_planned(self, positions: KeyedBatch) -> tuple[SampledSubgraph, Any]:
        links, tags = self._inputs.take(positions.positions)
        sampler = self._inputs.sampler
        drawn, seeds = self.link_sampler.draw_links(sampler, links, positions.key)
        return drawn, link_metadata(tags, sampler.spec, seeds)

    def _begin_planned(self, positions: KeyedBatch) -> tuple[Begun, Any]:
        links, tags = self._inputs.take(positions.positions)
        sampler = self._inputs.sampler
        sizes = self._sizes_on_device()
        begun = self.link_sampler.begin_links(sampler, links, positions.key, sizes)
        return begun, link_metadata(tags, sampler.spec, begun.seeds)

    def _link_spec(self) -> tuple[LinkSpec | None, list[Any]]:
        neg, weights = self.neg_sampling, [None, None]
        if neg is not None:
            weights = [neg.src_weight if neg.is_binary() else None, neg.dst_weight]
        in_double = [None if w is None else torch.as_tensor(w).double() for w in weights]
        return self._inputs.sampler.spec, in_double

    def _seed_nodes(self) -> NodeSamplerInput:
        inputs = self.input_data
        types = inputs.input_type
        if types is not None and types[0] != types[2]:
            raise ValueError(
                f"links of type {types} begin at nodes of two types: say in "
                "device_options.hotness how likely a batch is to need each node"
            )
        ends = torch.unique(torch.cat([inputs.row, inputs.col]))
        return NodeSamplerInput(None, ends, input_type=None if types is None else types[0])

    def _annotate(self, batch: Data | HeteroData, metadata: Any) -> None:
        triplets = self.neg_sampling is not None and self.neg_sampling.is_triplet()
        annotate_links(batch, self.input_data.input_type, metadata, triplets)


def _checked_links(data: Any, edge_label_index: SeedLinks) -> tuple[EdgeType | None, Tensor]:
    """Return the checked links [2, n] with their edge type, which is None in a homogeneous graph.

    `edge_label_index` is the user's argument. Without links, all edges of the type are taken.
    """
    source = open_input(data)
    info = source.info
    link_type, links = split_links(info, edge_label_index)
    if links is None:
        check_all_edges(info, link_type)
        edges = source.edges[link_type]
        if edges.num_edges == 0:
            raise ValueError("edge_label_index takes all edges, but there are none: pass links")
        checked = stack_endpoints(*map(torch.as_tensor, edges.ends()))  # no copy of an edge_index
    else:
        checked = checked_links(info, link_type, links)
    return link_type if info.heterogeneous else None, checked
