"""`CooperativeLoader`: one batch of all trainers, each with the nodes of its own partition.

Runs in trainers. In a hop, each trainer draws neighbours of the frontier's nodes that it owns, and
sends neighbours to their owners. The nodes that are new to an owner are its next frontier. So every
row of the graph and of attributes is read by its owner. Trainers exchange ids while a batch is
drawn, and activations while the model runs (`trainer_group`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.data import Data

from khop import _native
from khop.data.device import is_cpu
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.job.worker_group import require_context
from khop.distributed.loaders.cooperative_part import OwnPart, OwnPartOnDevice
from khop.distributed.loaders.cooperative_share import Share
from khop.distributed.loaders.device_exchange import DeviceExchange
from khop.distributed.loaders.trainer_group import (
    Exchange,
    Step,
    TrainerGroup,
    check_initialized,
)
from khop.loader.arguments import check_positive
from khop.loader.inputs import checked_nodes
from khop.sampler.arguments import check_key_part
from khop.sampler.plan import EpochPlan, epoch_order, seeds_of
from khop.sampler.pyg.device import tensors_in
from khop.sampler.requests import HopRequest
from khop.sampler.spec import SamplingSpec
from khop.storage.part import Part
from khop.typing import NODE, Int64Array, Numbers


@dataclass
class CooperativeLayer:
    """A layer of a model, on the part of a batch that this trainer computes.

    Attributes:
        edge_index: [2, num_edges] positions of sources in the rows of `sources`, and of
            destinations among the batch's nodes of this trainer.
        e_id: [num_edges] original ids of the edges.
        edge_attrs: {name: [num_edges, ...]} all edge attributes of the folder.
        num_src: number of this trainer's nodes among the sources.
        num_dst: number of destinations.
        exchange: fetches the sources that other trainers own.
    """

    edge_index: Tensor
    e_id: Tensor
    edge_attrs: dict[str, Tensor]
    num_src: int
    num_dst: int
    exchange: Exchange

    def sources(self, x: Tensor) -> Tensor:
        """Return the activations of all sources: this trainer's, then the other trainers'.

        All trainers call it together.

        Args:
            x: [at least num_src, ...] activations of this trainer's nodes.
        """
        return torch.cat([x[: self.num_src], self.exchange(x)])

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the layer."""
        return [self.edge_index, self.e_id, *self.edge_attrs.values(), self.exchange.rows]


class CooperativeLoader:
    """Loader of cooperative batches: `batch_size` seeds per trainer, drawn by all together.

    If P trainers draw separate batches of B seeds, their neighbourhoods overlap, and the overlap is
    read and computed several times. This loader draws one batch of P x B seeds for all trainers.
    Each trainer gets the batch's nodes of its own partition. It reads their attributes on its own
    machine, computes their activations, and sends these to trainers whose layers need them. The
    whole batch has the same nodes and edges as a batch of `khop.loader.NeighborLoader` with
    `batch_size=P * B` over the whole graph.

    Batches have `x`, `n_id` and all other attributes of this trainer's nodes. Its seeds come first:
    `batch_size` is their number, which may be 0, and `num_seeds` the number for all trainers.
    `layers` are `CooperativeLayer` objects, outermost first::

        x = batch.x
        for conv, layer in zip(convs, batch.layers):
            x = conv((layer.sources(x), x[: layer.num_dst]), layer.edge_index)
        loss = F.cross_entropy(x, batch.y[: batch.batch_size], reduction="sum") / batch.num_seeds

    The batch's gradient is the sum of all trainers' gradients. DDP takes the mean, so multiply the
    loss by the number of trainers. Every trainer must run every layer, also without seeds.

    Method: cooperative minibatching (https://arxiv.org/abs/2310.12403).

    Args:
        data: the trainer's partition. Each partition is loaded by one trainer.
        num_neighbors: fan-out of each hop, -1 for all neighbours.
        input_nodes: seeds of all trainers, the same for each: ids, a mask, the name of a boolean
            attribute of the folder, or None for all nodes.
        batch_size: average number of seeds per batch and trainer.
        shuffle: shuffle the seeds in each epoch.
        drop_last: leave an incomplete last batch out.
        replace: draw with replacement.
        seed: seed of the random numbers of all epochs, the same for all trainers.
        group: process group of all trainers, gloo or NCCL. If None, a new one, with gloo, that ends
            with the loader. End your own group before the program ends, with
            `torch.distributed.destroy_process_group`.
        timeout: seconds that trainers may wait for each other in a batch or layer.
        device: GPU that draws and gathers the trainer's partition, and has the batches. If None,
            the CPU.

    Raises:
        RuntimeError: torch.distributed is not initialised, or the device cannot be used.
        ValueError: a heterogeneous graph, methods other than uniform draws, or trainers that do not
            have one partition each.
        RendezvousError: a trainer has ended (the message names it), has left the epoch early, or
            does not come in time. Batches and layers raise it.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> store = torch.distributed.HashStore()
        >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> batch = next(iter(CooperativeLoader(dataset, [2, 2], batch_size=3)))
        >>> batch.layers[0].sources(batch.x).shape, batch.layers[1].num_dst
        (torch.Size([6, 4]), 3)
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Sequence[int],
        input_nodes: Numbers | str | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        replace: bool = False,
        *,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        timeout: float = 180.0,
        device: torch.device | str | int | None = None,
    ) -> None:
        self.data = check_dataset(data)
        check_positive(batch_size, "batch_size")
        check_key_part("seed", seed)
        if not timeout > 0:
            raise ValueError(f"timeout must be positive (got {timeout!r})")
        if data.meta.heterogeneous:
            raise ValueError("cooperative batches are of graphs of one node and edge type")
        check_initialized()
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        if (
            sorted(data.homes) != list(range(data.num_partitions))
            or data.homes[self._rank] != data.partition_idx
        ):
            raise ValueError(
                f"each trainer needs a partition of its own (there are {data.num_partitions}, and "
                f"trainers have loaded {data.homes})"
            )
        edge_types = [t.name for t in data.meta.edge_types]
        self._spec = SamplingSpec.create(num_neighbors, edge_types, replace)
        if self._spec.method.name != "neighbor" or not self._spec.num_hops:
            raise ValueError(
                "cooperative batches are drawn uniformly, one hop or more (got num_neighbors="
                f"{num_neighbors!r})"
            )
        if isinstance(input_nodes, str):
            input_nodes = np.sort(data.to_original_ids(data.split(NODE, input_nodes)))
        ids = checked_nodes(data.info, NODE, input_nodes, "input_nodes").ids
        self._seeds = data.to_new_ids(ids.numpy(), "input_nodes", NODE)
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self._plan = EpochPlan(len(self._seeds), batch_size * self._size, drop_last)
        self.epoch = 0
        self._num_begun = 0
        self._group = TrainerGroup(require_context(), group, timeout)
        with self._group.publishing():  # others would wait for a trainer that lacks memory
            self._open_part(device)

    def _open_part(self, device: torch.device | str | int | None) -> None:
        data, part = self.data, Part(self.data.opened, self.data.partition_idx)
        self._own = OwnPart(part) if is_cpu(device) else OwnPartOnDevice(part, data, device)
        bounds, on = data.meta.node_types[0].bounds, self._own.torch_device
        self._range = low, high = bounds[part.part], bounds[part.part + 1]
        rank_of = [data.homes.index(p) for p in range(data.num_partitions)]
        with self._own.scope():
            self._exchange = DeviceExchange(on, self._group, rank_of, data.homes)
            self._bounds = torch.tensor(bounds, device=on)
            self._table = torch.full([high - low], -1, device=on)  # positions of nodes in a batch

    def shutdown(self) -> None:
        """Release the process group. Also done when the trainer leaves its job or ends."""
        self._group.close()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that begins next (0: the first), equal for all trainers."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._plan.num_batches

    def __iter__(self) -> Iterator[Data]:
        """Yield the batches of the next epoch. All trainers take each batch together.

        If a trainer leaves an epoch early, the others get a RendezvousError in the next batch.
        """
        run_key = _native.run_key(self.seed, self.epoch, 0)
        begun, taken = self._num_begun, 0
        self.epoch += 1
        self._num_begun += 1
        order = epoch_order(self._plan.num_seeds, run_key, self.shuffle)
        try:
            while taken < len(self):
                positions = seeds_of(order, *self._plan.bounds(taken))
                batch = self._batch(self._seeds[positions], run_key, Step(begun, taken, 0))
                taken += 1
                yield batch
        finally:
            if taken < len(self):
                self._group.leave_epoch(begun, taken)

    def _batch(self, seeds: Int64Array, run_key: int, first: Step) -> Data:
        part, exchange = self._own, self._exchange
        with part.scope(), exchange.step(first.epoch, first.batch):
            ids = torch.from_numpy(seeds).to(part.torch_device)
            share = Share(part, exchange, self._bounds, self._range, self._table, ids)
            try:
                for hop, fanout in enumerate(self._spec.fanouts[0]):
                    key = _native.step_key(run_key, first.batch, hop, 0)
                    share.hop(HopRequest(fanout, self._spec.replace, True, key))
                batch = Data()
                rows = share.nodes - self._range[0]
                for name in self.data.meta.node_types[0].attrs:
                    batch[name] = part.gather("node", name, rows)
                batch.n_id = part.gather("node", "id", rows)
                batch.batch_size, batch.num_seeds = share.num_seeds, len(seeds)
                batch.layers = [self._layer(share, hop) for hop in reversed(range(len(share.hops)))]
            finally:
                share.end()
        part.deliver([*tensors_in(batch), *(t for layer in batch.layers for t in layer.tensors())])
        return batch

    def _layer(self, share: Share, hop: int) -> CooperativeLayer:
        nodes, edge_index, edges = share.layer(hop)
        edge_type, part = self.data.meta.edge_types[0], self._own
        rows = edges - edge_type.bounds[self.data.partition_idx]
        return CooperativeLayer(
            edge_index,
            part.gather("edge", "edge_id", rows),
            {name: part.gather("edge", name, rows) for name in edge_type.attrs},
            nodes.num_src,
            nodes.num_dst,
            Exchange(nodes.rows, nodes.sent, nodes.received, self._group),
        )
