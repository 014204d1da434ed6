"""`DistNeighborLoader` and `DistSubGraphLoader`: batches of nodes of a partitioned graph.

Runs in trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from khop.distributed.dataset import DistDataset
from khop.distributed.loaders.base import DeliveryOptions, DistLoader
from khop.distributed.loaders.collate import Tensors, add_to
from khop.distributed.loaders.sampling_options import (
    check_data,
    collect_spec,
    info_for,
    weight_of,
)
from khop.distributed.loaders.split import shares_of_nodes
from khop.distributed.loaders.trainer_inputs import node_input
from khop.distributed.options import WorkerOptions
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.loader.inputs import checked_times
from khop.sampler.options import SamplingOptions
from khop.sampler.seed_times import check_times, seed_times
from khop.typing import Int64Array


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
        batch_size: seeds per batch.
        shuffle: draw a new order each epoch.
        drop_last: leave out a last batch that would be smaller (on every trainer).
        with_edge: deliver `e_id`, and edge attributes if the folder has any.
        with_weight: draw neighbours by the weights that the folder was partitioned with.
        edge_dir: 'in' or 'out'; must be the folder's. If None, the folder's. Edges of batches
            point towards the seeds: with 'out' they are reverses of the graph's, and edges of
            `(a, 'r', b)` are of type `(b, 'rev_r', a)`, those of `(a, 'rev_r', b)` of
            `(b, 'r', a)`.
        collect_features: deliver node attributes, and edge attributes if `with_edge`. If False,
            labels (`y`) only.
        to_device: target device of the batches. If None, they stay where they are made. Copies to
            a GPU run on a separate stream, one batch ahead; they are fast with
            `MpDistSamplingWorkerOptions.pin_memory`. Batches of samplers on that GPU
            (`worker_devices`) need no copy. Use a batch on the stream that was current when it was
            returned, or make yours wait for it.
        random_seed: makes epochs reproducible. If None, each epoch draws a seed from torch's
            default generator.
        worker_options: `MpDistSamplingWorkerOptions` (sampler processes),
            `CollocatedDistSamplingWorkerOptions` (this process) or
            `RemoteDistSamplingWorkerOptions` (sampler processes of graph servers; the only choice
            for clients). If None, this process; for clients, graph servers.
        seed: another name for `random_seed`, that of `khop.loader.NeighborLoader`.
        stream: separates the random numbers of trainers. If None, the trainer's rank.
        replace: draw with replacement.
        input_time: [number of seeds] time of each seed; only neighbours up to it are drawn. If
            None, with `time_attr`, the times of the seed nodes.
        subgraph_type: 'directional' (the drawn edges), 'bidirectional' (and their reverses) or
            'induced' (all edges among the drawn nodes).
        disjoint: sample a separate subgraph for each seed, identified by `batch`; always on with
            temporal sampling.
        temporal_strategy: 'uniform', or 'last': the latest neighbours.
        time_attr: attribute that the folder was partitioned with; only neighbours (or edges) whose
            time is not later than the seed's are drawn. Rows of a folder with times are sorted by
            time: without `time_attr`, its batches are those of the in-memory loader of the edges in
            that order.
        weight_attr: attribute to draw neighbours by, with which the folder was partitioned.
        transform: applied to each batch, in this process.
        even_batches: make the same number of batches on every trainer. All trainers must then make
            the loader. False is for loaders that only some trainers make, or whose numbers of
            batches may differ (use `torch.distributed.algorithms.Join` with DDP then).
        num_virtual_ranks: number of shares that an epoch's seeds are divided into, whatever the
            number of trainers: a job of another size can finish the epoch with the same batches.
            `input_nodes` are then the seeds of all trainers, the same on each, and `input_id` are
            positions among these. Each share has its own stream of random numbers, and trainers
            take its batches in turn. Needs `seed`; choose a multiple of the numbers of trainers
            that the job may have. Where batches cannot be divided evenly, trainers without one
            repeat one of the epoch's first, or make one less with `even_batches=False`; with
            `drop_last` these batches are left out. If None, each trainer has its own seeds.

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
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = True,
        with_weight: bool = False,
        edge_dir: str | None = None,
        collect_features: bool = True,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
        *,
        seed: int | None = None,
        stream: int | None = None,
        replace: bool = False,
        input_time: Any = None,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        even_batches: bool = True,
        num_virtual_ranks: int | None = None,
    ) -> None:
        graph = check_data(data, edge_dir, worker_options)
        check_times("input_time", input_time is not None, time_attr is not None, required=False)
        options = SamplingOptions(
            replace,
            with_edge,
            subgraph_type,
            disjoint,
            temporal_strategy,
            time_attr,
            weight_of(graph, with_weight, weight_attr),
        )
        info = info_for(graph, num_neighbors, options)
        sampling = options.spec(num_neighbors, info)
        is_whole = num_virtual_ranks is not None
        seeds = node_input(graph, input_nodes, worker_options, is_whole)
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
        super().__init__(
            graph,
            PipelineSpec(
                sampling, collect_spec(graph.meta, sampling, collect_features), seed_place
            ),
            np.stack(columns),
            DeliveryOptions(
                batch_size,
                shuffle,
                drop_last,
                to_device,
                random_seed,
                worker_options,
                seed,
                stream,
                transform,
                even_batches,
                num_virtual_ranks,
            ),
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
        batch_size, shuffle, drop_last, with_edge, with_weight, edge_dir, collect_features,
            to_device, random_seed, worker_options: as for `DistNeighborLoader`.
        **kwargs: its other arguments, without `subgraph_type`.

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
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = True,
        with_weight: bool = False,
        edge_dir: str | None = None,
        collect_features: bool = True,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: WorkerOptions | None = None,
        **kwargs: Any,
    ) -> None:
        if "subgraph_type" in kwargs:
            raise TypeError("a DistSubGraphLoader's batches are induced: leave subgraph_type out")
        super().__init__(
            data,
            [] if num_neighbors is None else num_neighbors,
            input_nodes,
            batch_size,
            shuffle,
            drop_last,
            with_edge,
            with_weight,
            edge_dir,
            collect_features,
            to_device,
            random_seed,
            worker_options,
            subgraph_type="induced",
            **kwargs,
        )

    def _annotate(self, batch: Any, tensors: Tensors, positions: Int64Array) -> None:
        super()._annotate(batch, tensors, positions)
        store = batch[self._seed_type] if self.data.meta.heterogeneous else batch
        store.mapping = torch.arange(len(positions))
