"""`DistLinkNeighborLoader`: batches of links of a partitioned graph. Runs in trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch_geometric.sampler import NegativeSampling

from khop.distributed.dataset import DistDataset
from khop.distributed.loaders.base import DistLoader
from khop.distributed.loaders.collate import Tensors
from khop.distributed.loaders.loader_options import LoaderOptions
from khop.distributed.loaders.sampling_options import check_sampling
from khop.distributed.loaders.split import shares_of_links
from khop.distributed.loaders.trainer_inputs import (
    checked_weights,
    joined,
    link_input,
)
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.loader.arguments import checked_negatives
from khop.loader.batches.collate import annotate_links
from khop.loader.inputs import checked_labels, checked_times
from khop.options import resolved, takes_options
from khop.sampler.arguments import check_times, given_times
from khop.sampler.drawing.link import link_of_tree
from khop.sampler.link_spec import ExcludeSeedEdges
from khop.sampler.methods import SamplingMethod
from khop.sampler.pyg.links import LinkOptions, binary_labels, link_spec, repeat_rows
from khop.typing import Int64Array, NumNeighbors, TrainerLinks, TrainerValues

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options(LoaderOptions)
class DistLinkNeighborLoader(DistLoader):
    """Loader of links and negative links, with neighbourhoods of their ends from all partitions.

    `khop.loader.LinkNeighborLoader` makes the same batches of the whole graph with the same links,
    `seed` and `stream`, bit for bit, negatives included. The numbers of partitions and samplers do
    not matter. As with `DistNeighborLoader`, each epoch delivers every link once, in order, in the
    same number of batches on every trainer.

    Args:
        data: the trainer's partition. If None, the graph of this client's servers, with
            `RemoteDistSamplingWorkerOptions`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}, -1 for all neighbours. Or a
            method with fan-outs, `khop.sampler.Labor([15, 10])`.
        edge_label_index: this trainer's links: [2, num_links] original ids of sources and
            destinations. If None, the edges of its home partition, evenly divided among the
            trainers with this home (for a client, its share of the servers' edges). For a
            heterogeneous graph (edge type, links), or an edge type. `link_split` divides a list of
            links among trainers. With a list of graph servers, it may be one list of links per
            server: each server makes the batches of its list, and batches alternate between lists.
            `edge_label` and `edge_label_time` are then lists, too, or one array for all lists.
        edge_label: [num_links, ...] labels of links. With binary negatives, labels that begin at 0
            are increased by 1, and negatives have label 0.
        neg_sampling: PyG's `NegativeSampling`, or a dictionary or mode for one: 'binary' draws
            negative pairs, 'triplet' negative destinations for each source, uniformly or by
            `src_weight` and `dst_weight`, [num_nodes] by original id. If None, no negatives.
        neg_sampling_ratio: binary negatives per link, PyG's older argument.
        edge_label_time: [num_links] time of each link. Later neighbours of its ends are not drawn.
            Required with `time_attr`.
        strict_negatives: draw only negatives that are not edges of the graph, in any partition.
        exclude_seed_edges: leave a batch's links out of the neighbourhoods, as in
            `khop.loader.LinkNeighborLoader`.
        **options: `LoaderOptions`.

    Raises:
        ValueError, TypeError, IndexError: bad arguments. The message has the remedy. While batches
            are drawn, ValueError: there is no strict negative.
        RendezvousError: trainers do not agree or do not arrive.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> loader = DistLinkNeighborLoader(dataset, [2], batch_size=6, neg_sampling="binary")
        >>> next(iter(loader)).edge_label_index.shape
        torch.Size([2, 12])
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: NumNeighbors | SamplingMethod,
        edge_label_index: TrainerLinks = None,
        *,
        edge_label: TrainerValues | None = None,
        edge_label_time: TrainerValues | None = None,
        neg_sampling: NegativeSampling | str | Mapping[str, Any] | None = None,
        neg_sampling_ratio: float | None = None,
        strict_negatives: bool = False,
        exclude_seed_edges: ExcludeSeedEdges = False,
        **options: Unpack[LoaderOptions],
    ) -> None:
        chosen: LoaderOptions = resolved(LoaderOptions, self, options)
        graph, info, sampling, collect = check_sampling(data, num_neighbors, chosen)
        has_times = edge_label_time is not None
        check_times("edge_label_time", has_times, info.is_temporal, required=True)
        negatives = checked_negatives(neg_sampling, neg_sampling_ratio)
        is_whole = chosen["num_virtual_ranks"] is not None
        self._link_type, ends, lists = link_input(
            graph, edge_label_index, chosen["worker_options"], is_whole
        )
        link_options = LinkOptions(negatives, strict_negatives, exclude_seed_edges)
        self._link = link_spec(info, self._link_type, link_options, sampling.disjoint)
        count, columns = ends.shape[1], [*ends]
        times = joined(edge_label_time, lists, "edge_label_time")
        self._time = checked_times(times, count, "edge_label_time", "links")
        if self._time is not None:
            columns.append(given_times(info, self._time, count, "edge_label_time", "links"))
        labels = checked_labels(joined(edge_label, lists, "edge_label"), count, negatives)
        if labels is not None and negatives is not None and count and labels.min() == 0:
            labels = labels + 1  # as PyG does: negatives have label 0
        self._label = labels
        super().__init__(
            graph,
            PipelineSpec(sampling, collect, link=self._link),
            np.stack(columns),
            chosen,
            checked_weights(info, self._link, negatives),
            lists,
        )

    def _seed_columns(self) -> list[Any]:
        seed_type = self._link_type if self.data.meta.heterogeneous else None
        return [seed_type, *self._columns[:2], self._time]

    def _shares(self, homes: Sequence[int]) -> list[Int64Array]:
        return shares_of_links(self.data, self._link_type, self._columns[:2], homes)

    def _annotate(self, batch: Any, tensors: Tensors, positions: Int64Array) -> None:
        count = len(positions)
        input_id = torch.from_numpy(positions)
        time = None if self._time is None else self._time[input_id]
        for name, trees in tensors.items():
            if name.startswith("t"):
                trees.copy_(link_of_tree(trees, count))
        if self._link.mode == "triplet":
            names = ("src_index", "dst_pos_index", "dst_neg_index")
            metadata = (input_id, *(tensors[f"s.{name}"] for name in names), time)
        else:
            label = None if self._label is None else self._label[input_id]
            if self._link.mode == "binary":
                num_negatives = self._link.num_negatives(count)
                label = binary_labels(label, count, num_negatives)
                time = None if time is None else repeat_rows(time, count + num_negatives)
            metadata = (input_id, tensors["s.edge_label_index"], label, time)
        link_type = self._link_type if self.data.meta.heterogeneous else None
        annotate_links(batch, link_type, metadata, self._link.mode == "triplet")
