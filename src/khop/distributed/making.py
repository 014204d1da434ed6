"""What makes a loader's batches, in this process or others, and the memory that it needs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from khop.channel.layout import Received, Record
from khop.channel.pool import BufferPool
from khop.channel.ring import RingReader
from khop.data.arrays import storage_dtype
from khop.data.device import check_device
from khop.distributed.collate import pin_ring
from khop.distributed.dataset import DistDataset
from khop.distributed.delivery import Destination, Mover, SlabMaker
from khop.distributed.group import SamplerGroup
from khop.distributed.options import MpDistSamplingWorkerOptions
from khop.distributed.pipeline import Pipeline, PipelineSpec
from khop.distributed.transport import PartitionClient
from khop.partition.folder import AttrMeta, EdgeTypeMeta, FolderMeta, NodeTypeMeta
from khop.partition.part import Part
from khop.sampler.plan import EpochPlan
from khop.sampler.requests import Ticket
from khop.trace.clock import Phase
from khop.trace.recording import OwnRecords
from khop.typing import Array, Int64Array

_UINT8 = np.dtype(np.uint8)

# Batches are made ahead up to so many bytes and so many batches, where that is more than a sampler
# has in flight.
_AHEAD_BYTES = 32 << 20
_MAX_AHEAD = 64


class CollocatedMaker:
    """Makes batches in the trainer's own process.

    Args:
        part: the part at hand.
        spec: what batches shall be.
        client: the other partitions, if there are any.
        weights: see `Pipeline`.
    """

    num_samplers = 0
    num_restarts = 0

    def __init__(
        self,
        part: Part,
        spec: PipelineSpec,
        client: PartitionClient | None,
        weights: Mapping[str, Array],
    ) -> None:
        self._client = client
        self._records = OwnRecords()
        self._pipeline = Pipeline(part, spec, client, weights, self._records.clock)
        self._pool = BufferPool()
        self._epochs: dict[int, tuple[int, EpochPlan, Int64Array]] = {}
        self._num_epochs = 0

    def open_epoch(self, run_key: int, plan: EpochPlan, columns: Int64Array) -> int:
        """Begins an epoch; see `SamplerGroup.open_epoch`."""
        number = self._num_epochs
        self._num_epochs += 1
        self._epochs[number] = (run_key, plan, columns)
        return number

    def close_epoch(self, number: int) -> None:
        """Ends an epoch."""
        self._epochs.pop(number, None)

    def has_arrived(self, number: int, batch: int) -> bool:
        """Whether a batch is there before it is asked for: never."""
        del number, batch
        return False

    def take(self, number: int, batch: int) -> Received:
        """Makes a batch."""
        run_key, plan, columns = self._epochs[number]
        first, last = plan.bounds(batch)
        memory: list[Array] = []

        def allocate(record: Record) -> Mapping[str, Array]:
            memory.append(self._pool.empty((record.nbytes,), _UINT8))
            return record.write(memory[0].data)

        own = np.ascontiguousarray(columns[:, first:last])
        records, client = self._records, self._client
        records.begin((number, batch))
        bytes_before = 0
        if client is not None:
            client.log, bytes_before = records.log, client.bytes_received
        try:
            record = self._run(self._pipeline.make(own, run_key, batch, allocate))
        finally:
            records.end()
        remote = 0 if client is None else client.bytes_received - bytes_before
        record.note("made", records.clock.made(len(memory[0]), remote))
        return record.layout.read(memory[0])._replace(extras=record.extras or None)

    def _run(self, steps: Generator[list[Ticket], None, Record]) -> Record:
        """Makes a batch, waiting for other partitions where it has to."""
        clock = self._records.clock
        while True:
            try:
                tickets = next(steps)
            except StopIteration as stop:
                record: Record = stop.value
                return record
            assert self._client is not None
            phase = clock.phase
            clock.enter(Phase.REMOTE)
            self._client.wait(tickets)  # type: ignore[arg-type]
            clock.enter(phase)

    def close(self) -> None:
        """Closes the connections to other partitions."""
        self._epochs.clear()
        if self._client is not None:
            self._client.close()
            self._client = None


def make_maker(
    data: DistDataset,
    spec: PipelineSpec,
    options: Any,
    batch_size: int,
    weights: Mapping[str, Array],
    destination: Destination,
    mover: Mover,
) -> SamplerGroup | CollocatedMaker:
    """What makes a loader's batches: sampler processes, or this process.

    Args:
        data: the trainer's partition.
        spec: what batches shall be.
        options: how sampling is carried out.
        batch_size: seeds a batch.
        weights: of the ends of negatives; see `Pipeline`.
        destination: where batches shall be.
        mover: takes them there.

    Raises:
        RuntimeError: a device of `worker_devices` cannot be used; says why.
        ValueError: the dataset's graph is to stay on the CPU, which `worker_devices` contradicts.
    """
    is_in_processes = isinstance(options, MpDistSamplingWorkerOptions) and options.num_workers > 0
    devices = _devices(data, options, destination) if is_in_processes else []
    service = data.service()
    endpoints = service.endpoints()
    if not is_in_processes:
        client = service.client(options.rpc_timeout)
        part = Part(data.opened, data.partition_idx)
        return CollocatedMaker(part, spec, client, weights)
    config = {
        "root": str(data.opened.root),
        "part": data.partition_idx,
        "pipeline": spec.to_json(),
        "endpoints": {part: asdict(endpoint) for part, endpoint in endpoints.items()},
        "credentials": None if service.credentials is None else asdict(service.credentials),
        "timeout": options.rpc_timeout,
        "concurrency": options.worker_concurrency,
        "graph_mode": data.graph_mode,
        "feature_mode": data.feature_mode,
        "pin_memory": options.pin_memory,
    }
    ring = plan_ring(data.meta, spec, options, batch_size)
    num_sharing = sum(d is not None and d == destination.device for d in devices)
    return SamplerGroup(
        config,
        devices,
        ring.depth,
        ring.in_bulk,
        ring.nbytes,
        options.max_restarts,
        service,
        _pin(options),
        weights,
        SlabMaker(destination, ring.nbytes, num_sharing, mover),
    )


def _devices(
    data: DistDataset, options: MpDistSamplingWorkerOptions, destination: Destination
) -> list[str | None]:
    """What each sampler works on; an error now is one in the trainer, before a process starts."""
    devices = options.devices()
    wanted = [device for device in devices if device is not None]
    if not wanted:
        return devices
    for device in dict.fromkeys(wanted):
        check_device(device, "worker_devices: device")
    if data.graph_mode == "CPU":
        raise ValueError(
            f"worker_devices has '{wanted[0]}', but the dataset was loaded with graph_mode='CPU': "
            "load it with 'CUDA' (the graph is copied to the device) or 'ZERO_COPY' (read in place)"
        )
    if data.num_partitions > 1:
        warnings.warn(
            f"of a folder of {data.num_partitions} partitions hops need rows of all of them: "
            "samplers draw on the CPU, whatever worker_devices says, and gather on a device only "
            "if to_device is the same; batches are the same in any case",
            stacklevel=5,
        )
        return [device if device == destination.device else None for device in devices]
    return devices


def _pin(options: MpDistSamplingWorkerOptions) -> Callable[[RingReader], None] | None:
    if not options.pin_memory:
        return None
    if not torch.cuda.is_available():
        warnings.warn("pin_memory=True has no effect: no CUDA device can be used", stacklevel=4)
        return None
    return pin_ring


class RingPlan(NamedTuple):
    """A sampler's shared memory, and what it holds.

    Attributes:
        nbytes: its size.
        depth: batches that the sampler makes ahead of the trainer.
        in_bulk: batches are so small that messages are for many at a time.
    """

    nbytes: int
    depth: int
    in_bulk: bool


def plan_ring(
    meta: FolderMeta, spec: PipelineSpec, options: MpDistSamplingWorkerOptions, batch_size: int
) -> RingPlan:
    """What is asked for, or room for the batches in flight.

    A batch is estimated by its fan-outs (-1 counts as twice the mean degree) and bounded by the
    graph. Of small batches, samplers make more ahead than they have in flight, so that a message
    does for many. Untouched memory costs nothing; at most an eighth of the machine's is promised.
    """
    batch_bytes = _batch_bytes(meta, spec, batch_size)
    if options.channel_size is not None:
        nbytes = max(int(options.channel_size) // options.num_workers, 1 << 16)
        small = min(nbytes // 2, _AHEAD_BYTES) // batch_bytes
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = max(memory // 8 // options.num_workers, 1 << 20)
        nbytes = min(batch_bytes * (options.worker_concurrency + 2), limit)
        small = _AHEAD_BYTES // batch_bytes
    depth = min(small, _MAX_AHEAD)
    if depth <= options.worker_concurrency:
        return RingPlan(nbytes, options.worker_concurrency, False)
    return RingPlan(max(nbytes, 2 * depth * batch_bytes), depth, True)


def _batch_bytes(meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> int:
    num_nodes, num_edges = _largest_batch(meta, spec, batch_size)
    node_bytes = 8 + 8 * spec.collect.with_trees + _widest(meta.node_types, spec.collect.node_attrs)
    edge_bytes = 16
    if any(spec.collect.with_edge):
        edge_bytes += 8 + _widest(meta.edge_types, spec.collect.edge_attrs)
    return num_nodes * node_bytes + num_edges * edge_bytes + (64 << 10)


def _largest_batch(meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> tuple[int, int]:
    """Nodes and edges of a batch, estimated from above."""
    nodes, edges = sum(t.count for t in meta.node_types), sum(t.count for t in meta.edge_types)
    mean_degree = 2 * edges // max(nodes, 1) + 1
    num_seeds = batch_size
    if spec.link is not None:
        num_seeds = 2 * (batch_size + spec.link.num_negatives(batch_size))
    # Of a disjoint batch each tree is bounded by the graph, not all together.
    copies = num_seeds if spec.sampling.disjoint else 1
    frontier, num_nodes, num_edges = num_seeds, num_seeds, 0
    for hop in range(spec.sampling.num_hops):
        fanouts = [hops[hop] for hops in spec.sampling.fanouts]
        drawn = sum(mean_degree if fanout < 0 else fanout for fanout in fanouts)
        frontier = min(frontier * drawn, edges * copies)
        num_edges += frontier
        num_nodes = min(num_nodes + frontier, nodes * copies + num_seeds)
    if spec.sampling.subgraph_type == "bidirectional":
        num_edges *= 2
    elif spec.sampling.subgraph_type == "induced":
        num_edges = min(max(num_edges, num_nodes * mean_degree), edges * copies)
    return num_nodes, num_edges


def _widest(types: Sequence[NodeTypeMeta | EdgeTypeMeta], names: list[list[str]]) -> int:
    """Bytes of the attributes of one row, of the type with most."""
    widths = [
        sum(_row_bytes(t.attrs[n]) for n in wanted) for t, wanted in zip(types, names, strict=True)
    ]
    return max(widths, default=0)


def _row_bytes(attr: AttrMeta) -> int:
    return storage_dtype(attr.dtype).itemsize * int(np.prod(attr.shape, dtype=np.int64))
