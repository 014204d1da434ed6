"""`DistNeighborLoader` and `DistSubGraphLoader`: batches of nodes of a partitioned graph.

Runs in trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from khop.distributed.dataset import DistDataset
from khop.distributed.loaders.base import DistLoader
from khop.distributed.loaders.collate import Tensors, add_to
from khop.distributed.loaders.loader_options import LoaderOptions
from khop.distributed.loaders.sampling_options import (
    check_data,
    collect_spec,
    info_for,
    sampling_options_of,
)
from khop.distributed.loaders.split import shares_of_nodes
from khop.distributed.loaders.trainer_inputs import node_input
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.loader.inputs import checked_times
from khop.options import resolved, takes_options
from khop.sampler.arguments import check_times, seed_times
from khop.typing import Int64Array

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options(LoaderOptions)
class DistNeighborLoader(DistLoader):
    """Neighbourhoods of seed nodes, drawn from all partitions, as PyG `Data` or `HeteroData`.

    Batches equal those that `khop.loader.NeighborLoader` makes of the whole graph with the same
    seeds, `seed` and `stream`, bit for bit, for any number of partitions and samplers. By default
    they have all attributes of nodes and edges that the folder has, as in memory. Each epoch
    delivers every seed once, in the loader's order. By default all trainers make the same number of
    batches, so that DDP cannot hang: trainers with fewer seeds make smaller ones.

    Args:
        data: the trainer's partition. If None, the graph of this client's servers, with
            `RemoteDistSamplingWorkerOptions`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours. Or a
            method with such, `khop.sampler.Labor([15, 10])`.
        input_nodes: this trainer's seeds: original ids, a boolean mask over all nodes, or None for
            all nodes; of a heterogeneous graph (node type, such seeds), or a node type for all of
            its nodes. `node_split` makes even shares. The name of a boolean attribute,
            'train_mask', selects this trainer's share of its nodes (`input_id` holds their ids
            then). With a list of graph servers, a list of seeds for each: each batch has seeds of
            one list, and its server makes it; batches alternate between lists.
        input_time: [number of seeds] time of each seed; only neighbours up to it are drawn. If
            None, with `time_attr`, the times of the seed nodes.
        **options: `LoaderOptions`.

    Raises:
        ValueError, TypeError, IndexError: bad arguments; the message has the remedy.
        RendezvousError: trainers do not agree or do not arrive.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> seeds = torch.tensor([0, 3])
        >>> loader = DistNeighborLoader(dataset, [2, 2], seeds, batch_size=1)
        >>> [batch.x.shape for batch in loader]
        [torch.Size([5, 4]), torch.Size([5, 4])]
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: Any,
        input_nodes: Any = None,
        *,
        input_time: Any = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        chosen: LoaderOptions = resolved(LoaderOptions, self, options)
        graph = check_data(data, chosen["edge_dir"], chosen["worker_options"])
        is_temporal = chosen["time_attr"] is not None
        check_times("input_time", input_time is not None, is_temporal, required=False)
        sampling_options = sampling_options_of(graph, chosen)
        info = info_for(graph, num_neighbors, sampling_options)
        sampling = sampling_options.spec(num_neighbors, info)
        is_whole = chosen["num_virtual_ranks"] is not None
        seeds = node_input(graph, input_nodes, chosen["worker_options"], is_whole)
        self._seed_type, self._input_id = seeds.node_type, seeds.input_id
        self._seeds = seeds.ids
        new_ids = graph.to_new_ids(seeds.ids, "input_nodes", self._seed_type)
        count = len(new_ids)
        self._input_time = checked_times(input_time, count, "input_time", "seeds")
        times = seed_times(
            info,
            self._seed_type,
            count,
            self._input_time,
            lambda: graph.times_of(self._seed_type, new_ids),
        )
        columns = [new_ids] if times is None else [new_ids, times]
        seed_place = info.node_types.index(self._seed_type)
        collected = collect_spec(graph.meta, sampling, chosen["collect_features"])
        super().__init__(
            graph,
            PipelineSpec(sampling, collected, seed_place),
            np.stack(columns),
            chosen,
            lists=seeds.lists,
        )

    def _described_seeds(self, share: Int64Array | None) -> list[Any]:
        seed_type = self._seed_type if self.data.meta.heterogeneous else None
        lists, described = self._plan.lists, [seed_type, self._seeds, self._input_time]
        if share is not None:
            described[1:] = [None if part is None else part[share] for part in described[1:]]
        return described if lists is None else [*described, np.asarray(lists)]

    def _shares(self, homes: Sequence[int]) -> list[Int64Array]:
        book = self.data.meta.node_type(self._seed_type).book
        return shares_of_nodes(self._columns[0], self._seeds, book, homes)

    def _annotate(self, batch: Any, tensors: Tensors, positions: Int64Array) -> None:
        del tensors
        values: dict[str, Any] = {"input_id": torch.from_numpy(self._input_id[positions])}
        if self._input_time is not None:
            values["seed_time"] = self._input_time[torch.from_numpy(positions)]
        values["batch_size"] = len(positions)
        add_to(batch, self._seed_type if self.data.meta.heterogeneous else None, values)


@takes_options(LoaderOptions)
class DistSubGraphLoader(DistNeighborLoader):
    """Loader of induced subgraphs; `khop.loader.SubGraphLoader`, distributed.

    A batch holds the seeds, the neighbours drawn hop by hop, and every edge of the graph between
    two of them, also between nodes of other partitions. `mapping` holds the positions of the seeds
    in the batch. With `disjoint=True` each seed has a separate subgraph, identified by `batch`.

    Args:
        data: the trainer's partition. If None, the graph of this client's servers, with
            `RemoteDistSamplingWorkerOptions`.
        input_nodes: this trainer's seeds, as for `DistNeighborLoader`.
        num_neighbors: fan-out of each hop; -1 takes all neighbours. If None, no hops: the subgraph
            of only the seeds.
        **options: `LoaderOptions`.

    Raises:
        TypeError: `subgraph_type` is given.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> loader = DistSubGraphLoader(dataset, torch.tensor([0, 1, 2]), batch_size=3)
        >>> next(iter(loader)).num_edges  # those between the three
        3
    """

    def __init__(
        self,
        data: DistDataset | None,
        input_nodes: Any = None,
        num_neighbors: Any = None,
        *,
        input_time: Any = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        if "subgraph_type" in options:
            raise TypeError("a DistSubGraphLoader's batches are induced: leave subgraph_type out")
        hops = [] if num_neighbors is None else num_neighbors
        options["subgraph_type"] = "induced"
        super().__init__(data, hops, input_nodes, input_time=input_time, **options)

    def _annotate(self, batch: Any, tensors: Tensors, positions: Int64Array) -> None:
        super()._annotate(batch, tensors, positions)
        store = batch[self._seed_type] if self.data.meta.heterogeneous else batch
        store.mapping = torch.arange(len(positions))
