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
from khop.distributed.loaders.sampling_options import check_sampling
from khop.distributed.loaders.split import shares_of_nodes
from khop.distributed.loaders.trainer_inputs import node_input
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.loader.inputs import checked_times
from khop.options import resolved, takes_options
from khop.sampler.arguments import check_times, seed_times
from khop.sampler.methods import SamplingMethod
from khop.typing import Int64Array, NodeType, Numbers, NumNeighbors, TrainerNodes

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options(LoaderOptions)
class DistNeighborLoader(DistLoader):
    """Loader of neighbourhoods of seed nodes from all partitions, as PyG `Data` or `HeteroData`.

    `khop.loader.NeighborLoader` makes the same batches of the whole graph with the same seeds,
    `seed` and `stream`, bit for bit. The numbers of partitions and samplers do not matter. By
    default batches have all node and edge attributes of the folder. Each epoch delivers every seed
    once, in the loader's order. By default all trainers make the same number of batches, so that
    DDP cannot hang: trainers with fewer seeds make smaller batches.

    Args:
        data: the trainer's partition. If None, the graph of this client's servers, with
            `RemoteDistSamplingWorkerOptions`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}, -1 for all neighbours. Or a
            method with fan-outs, `khop.sampler.Labor([15, 10])`.
        input_nodes: this trainer's seeds: original ids, a boolean mask over all nodes, or None for
            all nodes. For a heterogeneous graph (node type, seeds), or a node type for all of its
            nodes. `node_split` makes even shares. The name of a boolean attribute, 'train_mask',
            selects this trainer's share of its nodes (`input_id` holds their ids then). With a list
            of graph servers, it may be one list of seeds per server: each server makes the batches
            of its list, and batches alternate between lists.
        input_time: [num_seeds] time of each seed. Later neighbours are not drawn. If None, with
            `time_attr`, the times of the seed nodes.
        **options: `LoaderOptions`.

    Raises:
        ValueError, TypeError, IndexError: bad arguments. The message has the remedy.
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
        num_neighbors: NumNeighbors | SamplingMethod,
        input_nodes: TrainerNodes = None,
        *,
        input_time: Numbers | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        chosen: LoaderOptions = resolved(LoaderOptions, self, options)
        graph, info, sampling, collect = check_sampling(data, num_neighbors, chosen)
        check_times("input_time", input_time is not None, info.is_temporal, required=False)
        is_whole = chosen["num_virtual_ranks"] is not None
        seed_type, self._seeds, self._input_id, lists = node_input(
            graph, input_nodes, chosen["worker_options"], is_whole
        )
        self._seed_type, num_seeds = seed_type, len(self._seeds)
        new_ids = graph.to_new_ids(self._seeds, "input_nodes", seed_type)
        self._input_time = checked_times(input_time, num_seeds, "input_time", "seeds")
        times = seed_times(
            info, seed_type, num_seeds, self._input_time, lambda: graph.times_of(seed_type, new_ids)
        )
        columns = [new_ids] if times is None else [new_ids, times]
        spec = PipelineSpec(sampling, collect, info.node_types.index(seed_type))
        super().__init__(graph, spec, np.stack(columns), chosen, lists=lists)

    def _seed_columns(self) -> list[Any]:
        seed_type = self._seed_type if self.data.meta.heterogeneous else None
        return [seed_type, self._seeds, self._input_time]

    @property
    def _padded_seeds(self) -> NodeType | None:
        return self._seed_type

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
    """Loader of induced subgraphs: a distributed `khop.loader.SubGraphLoader`.

    A batch holds the seeds and the neighbours drawn hop by hop. It has every edge of the graph
    between two of these nodes, also between nodes of other partitions. `mapping` holds the
    positions of the seeds in the batch. With `disjoint=True` each seed has a separate subgraph,
    identified by `batch`.

    Args:
        data: the trainer's partition. If None, the graph of this client's servers, with
            `RemoteDistSamplingWorkerOptions`.
        input_nodes: this trainer's seeds, as for `DistNeighborLoader`.
        num_neighbors: fan-out of each hop, -1 for all neighbours. If None, no hops: the subgraph of
            only the seeds.
        input_time: [num_seeds] time of each seed. If None, with `time_attr`, the times of the seed
            nodes.
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
        input_nodes: TrainerNodes = None,
        num_neighbors: NumNeighbors | None = None,
        *,
        input_time: Numbers | None = None,
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
