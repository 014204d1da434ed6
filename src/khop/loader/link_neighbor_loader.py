"""`LinkNeighborLoader`: PyG's loader, with khop's kernels. Runs in the trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from khop.data.device import is_cpu
from khop.data.info import GraphInfo
from khop.loader.arguments import (
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
from khop.sampler.pyg.device import DeviceOptions
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.links import LinkOptions, link_metadata
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.output import SampledSubgraph
from khop.sampler.pyg.source import as_input, open_input
from khop.typing import EdgeType, WorkerType


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
        data: a PyG `Data` or `HeteroData` (with `edge_index` or `adj_t`), or any pair of a PyG
            `FeatureStore` and a `GraphStore`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours, and
            no hops, `[]`, only the ends of links. Or a method, as for `NeighborLoader`.
        edge_label_index: links: [2, num_links] sources and destinations, or None for all edges. For
            a `HeteroData`: an edge type, or (edge type, such links).
        edge_label: [num_links, ...] labels of links; with binary negatives, labels that begin
            at 0 are increased by 1, and negatives have label 0.
        edge_label_time: [num_links] time of each link; only neighbours up to it are drawn for
            its ends. Required with `time_attr`.
        replace: draw neighbours with replacement.
        subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr: as for
            `NeighborLoader`; `batch` of a disjoint batch counts links.
        neg_sampling: PyG's `NegativeSampling`, or a dictionary for one: 'binary' draws negative
            pairs, 'triplet' negative destinations for each source, uniformly or by `src_weight` and
            `dst_weight`. If None, no negatives.
        neg_sampling_ratio: binary negatives per link; PyG's older argument.
        transform: applied to each batch, in the process that iterates.
        transform_sampler_output: applied to the sampler's output.
        is_sorted: edges are sorted by destination and, with times, by time for each: checked, not
            sorted.
        filter_per_worker: join features in the workers (default). If False, workers only sample,
            and the thread that iterates joins: for stores that no other may read.
        neighbor_sampler: use this sampler instead.
        directed: deprecated in PyG; False is subgraph type 'induced'.
        strict_negatives: draw only negatives that are not edges of the graph; PyG's may be edges.
        exclude_seed_edges: leave a batch's links out of the neighbourhoods, so that a model cannot
            read off the links to predict. 'self' (or True) leaves out the links, 'reverse' also
            their reverses: of the same edge type in a homogeneous graph, else of `rev_<relation>`
            or the only edge type back. An edge type names that of the reverses. Default: False.
        seed: makes epochs reproducible: epoch i is the same for equal seed and stream. If None,
            each epoch draws one from `generator` or torch's default generator, so that
            `torch.manual_seed` decides, as with PyG.
        stream: separates the random numbers of loaders with the same seed. If None, the rank of the
            trainer if torch.distributed is initialised, else 0, so that trainers draw differently.
        worker_type: meaning of `num_workers`: 'thread' (no copy of the graph, no pickling) or
            'process' (torch's worker processes, for heavy Python transforms). If None, threads; but
            processes, as with PyG, if `worker_init_fn` or `multiprocessing_context` is given,
            because seeds, affinity and `torch.utils.data.get_worker_info()` belong to a process.
            PyG's `enable_cpu_affinity`, `enable_multithreading` and `enable_memory_log` set
            `worker_init_fn` for the epochs that begin within them. Without workers, a thread still
            draws the next batch, without attributes, if drawing takes more than 2 ms and torch may
            use more than one thread.
        device: GPU that draws and gathers: 'cuda:1', or 'cuda' for torch's current one. Batches are
            in its memory, and equal those made by the CPU. If None or 'cpu', the CPU.
        device_options: placement of graph and attributes with `device`; see
            `khop.loader.DeviceOptions`.
        **kwargs: arguments of `torch.utils.data.DataLoader`: `batch_size`, `shuffle`, `drop_last`,
            `num_workers`, `generator`, `sampler`, ...

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

    pyg_loader = torch_geometric.loader.LinkLoader
    read_by_pyg = ("data", "link_sampler", "input_data", "custom_cls", "neg_sampling")

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Tensor | None = None,
        edge_label_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        strict_negatives: bool = False,
        exclude_seed_edges: ExcludeSeedEdges = False,
        seed: int | None = None,
        stream: int | None = None,
        worker_type: WorkerType | None = None,
        device: Any = None,
        device_options: DeviceOptions | None = None,
        **kwargs: Any,
    ) -> None:
        check_loader_options(worker_type, kwargs)
        check_hooks(transform=transform, transform_sampler_output=transform_sampler_output)
        data = as_input(data)
        is_temporal = time_attr is not None
        check_times("edge_label_time", edge_label_time is not None, is_temporal, required=True)
        neg_sampling = checked_negatives(neg_sampling, neg_sampling_ratio)
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler(
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
        elif not is_cpu(device):
            raise ValueError("pass device to the sampler that is given, not to the loader")
        else:
            check_sampler(neighbor_sampler, "sample_from_edges", data)
        link_type, links = _checked_links(data, edge_label_index)
        num_links = links.size(1)
        edge_label = checked_labels(edge_label, num_links, neg_sampling)
        if num_links == 0:
            edge_label = None  # PyG takes the minimum of the labels, which fails
        input_id = checked_values(kwargs.pop("input_id", None), num_links, "input_id", "links")
        super().__init__(
            data,
            num_neighbors,
            links if isinstance(data, Data) else (link_type, links),
            edge_label,
            checked_times(edge_label_time, num_links, "edge_label_time", "links"),
            input_id=input_id,
            neg_sampling=neg_sampling,
            time_attr=time_attr,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            neighbor_sampler=neighbor_sampler,
            **kwargs,
        )
        self._options = LinkOptions(self.neg_sampling, strict_negatives, exclude_seed_edges)
        if getattr(neighbor_sampler, "is_keyed", False):
            neighbor_sampler.link_sampler(self.input_data.input_type, self._options)  # checks them
            self._check_times(neighbor_sampler.info)
        elif strict_negatives or exclude_seed_edges:
            raise ValueError(
                "strict_negatives and exclude_seed_edges need a sampler of khop's (got a "
                f"'{type(neighbor_sampler).__name__}')"
            )
        self._set_up(self.input_data.row.numel(), seed, stream, worker_type, kwargs)

    def _check_times(self, info: GraphInfo) -> None:
        """Raise errors of times now, not in the first batch."""
        time, count = self.input_data.time, self.input_data.row.numel()
        check_times("edge_label_time", time is not None, info.is_temporal, required=True)
        if time is not None:
            given_times(info, time, count, "edge_label_time", "links")

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

    def _link_spec(self) -> tuple[LinkSpec | None, list[Any]]:
        neg, weights = self.neg_sampling, [None, None]
        if neg is not None:
            weights = [neg.src_weight if neg.is_binary() else None, neg.dst_weight]
        found = [None if w is None else torch.as_tensor(w).double() for w in weights]
        return self._inputs.sampler.spec, found

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

    def _annotate(self, batch: Any, metadata: Any) -> None:
        triplets = self.neg_sampling is not None and self.neg_sampling.is_triplet()
        annotate_links(batch, self.input_data.input_type, metadata, triplets)


def _checked_links(data: Any, given: Any) -> tuple[EdgeType | None, Tensor]:
    """Return the edge type of links, None in a homogeneous graph, and the links: all if None."""
    source = open_input(data)
    info = source.info
    link_type, links = split_links(info, given)
    if links is None:
        check_all_edges(info, link_type)
        edges = source.edges[link_type]
        if edges.num_edges == 0:
            raise ValueError("edge_label_index takes all edges, but there are none: pass links")
        checked = stack_endpoints(*map(torch.as_tensor, edges.ends()))  # no copy of an edge_index
    else:
        checked = checked_links(info, link_type, links)
    return link_type if info.heterogeneous else None, checked
