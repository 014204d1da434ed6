"""Backends that make a loader's batches: this process, sampler processes or graph servers.

Runs in trainers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from khop.channel.layout import Received, Record
from khop.channel.pool import BufferPool
from khop.data.device import check_device
from khop.data.steps import run
from khop.data.waiter import TIMEOUT
from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.loaders.device_transfer import (
    DeviceArenaFactory,
    DeviceTransfer,
    TargetDevice,
)
from khop.distributed.loaders.pinned_memory import pinning
from khop.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    WorkerOptions,
)
from khop.distributed.remote.client.backend import create_remote_backend
from khop.distributed.remote.client.served_graph import ServedGraph
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.sampling.buffer_plan import ArenaPlan, plan_memory
from khop.distributed.sampling.gpu_sharing import warn_of_shared_gpus
from khop.distributed.sampling.pipeline import Pipeline, PipelineSpec
from khop.distributed.sampling.pool import SamplerPool
from khop.distributed.sampling.process_handle import Program, Worker, start_sampler
from khop.distributed.sampling.standby import Standby
from khop.sampler.methods.modules import modules_of
from khop.sampler.plan import EpochPlan
from khop.storage.folder import FolderMeta
from khop.storage.part import Part
from khop.trace.clock import Phase
from khop.trace.recording import OwnRecords
from khop.typing import Array, Int64Array

_UINT8 = np.dtype(np.uint8)


class InProcessBackend:
    """Backend that makes batches in the trainer's process.

    Args:
        part: the home part.
        spec: specification of the batches.
        client: the other partitions. If None, there are none.
        weights: sampling weights of negative endpoints; see `Pipeline`.
        timeout: seconds that a read of a row store may take.
    """

    num_samplers = 0
    num_restarts = 0
    workers: Sequence[Worker] = ()

    def __init__(
        self,
        part: Part,
        spec: PipelineSpec,
        client: PartitionClient | None,
        weights: Mapping[str, Array],
        timeout: float = TIMEOUT,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._records = OwnRecords()
        self._pipeline = Pipeline(part, spec, client, weights, self._records.clock)
        self._pool = BufferPool()
        self._epochs: dict[int, tuple[int, EpochPlan, Int64Array]] = {}
        self._num_epochs = 0
        self._is_making = False

    def new_epoch(self) -> int:
        """Return the number of the next epoch."""
        number = self._num_epochs
        self._num_epochs += 1
        return number

    def open_epoch(
        self, number: int, run_key: int, plan: EpochPlan, columns: Int64Array, first: int = 0
    ) -> None:
        """Begin an epoch; arguments as those of `SamplerPool.open_epoch`."""
        del first  # each batch is made on request
        self._epochs[number] = (run_key, plan, columns)

    def close_epoch(self, number: int) -> None:
        """End an epoch."""
        self._epochs.pop(number, None)

    def has_arrived(self, number: int, batch: int) -> bool:
        """Return False: batches are made on request only."""
        del number, batch
        return False

    def take(self, number: int, batch: int) -> Received:
        """Make a batch."""
        run_key, plan, columns = self._epochs[number]
        first, last = plan.bounds(batch)
        if self._is_making and self._client is not None:  # an exception ended the last call
            self._client.start_again()
        self._is_making = True
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
            key = plan.key_of(batch, run_key)
            steps = self._pipeline.make(own, *key, allocate)
            record: Record = run(steps, client, self._timeout, records.clock, Phase.REMOTE)
        finally:
            records.end()
        remote = 0 if client is None else client.bytes_received - bytes_before
        self._is_making = False
        record.note("made", records.clock.made(len(memory[0]), remote))
        return record.layout.read(memory[0])._replace(extras=record.extras or None)

    def close(self) -> None:
        """Close the connections to other partitions."""
        self._epochs.clear()
        if self._client is not None:
            self._client.close()
            self._client = None


def create_backend(
    data: PartitionedGraph,
    spec: PipelineSpec,
    options: WorkerOptions | None,
    plan: EpochPlan,
    weights: Mapping[str, Array],
    destination: TargetDevice,
    transfer: DeviceTransfer,
) -> SamplerPool | InProcessBackend:
    """Create a loader's backend: sampler processes here or on graph servers, or this process.

    Args:
        data: the graph.
        spec: specification of the batches.
        options: worker options. If None: this process for a dataset, servers for a served graph.
        plan: division of the seeds into batches.
        weights: sampling weights of negative endpoints; see `Pipeline`.
        destination: target device of the batches.
        transfer: copies them there.

    Raises:
        RuntimeError: a device of `worker_devices` cannot be used; the message has the reason.
        ValueError: the dataset's graph is to stay on the CPU, which `worker_devices` contradicts.
    """
    if isinstance(data, ServedGraph):
        options = options or RemoteDistSamplingWorkerOptions()
        assert isinstance(options, RemoteDistSamplingWorkerOptions)
        return create_remote_backend(data, spec, options, plan, weights, pinning(destination))
    assert isinstance(data, DistDataset)
    options = options or CollocatedDistSamplingWorkerOptions()
    if isinstance(options, MpDistSamplingWorkerOptions) and options.num_workers > 0:
        return _make_samplers(data, spec, options, plan, weights, destination, transfer)
    client = data.service().client(options.timeout)
    part = Part(data.opened, data.partition_idx)
    return InProcessBackend(part, spec, client, weights, options.timeout)


def _make_samplers(
    data: DistDataset,
    spec: PipelineSpec,
    options: MpDistSamplingWorkerOptions,
    plan: EpochPlan,
    weights: Mapping[str, Array],
    destination: TargetDevice,
    transfer: DeviceTransfer,
) -> SamplerPool:
    """Start this trainer's sampler processes; arguments as those of `create_backend`."""
    devices = _devices(data, options, destination)
    service = data.service()
    endpoints = service.endpoints()
    config = {
        "root": str(data.opened.root),
        "part": data.partition_idx,
        "stores": [store.to_json() for store in data.opened.stores.values()],
        "pipeline": spec.to_json(),
        "methods": modules_of(spec.sampling.method),
        "endpoints": {part: asdict(endpoint) for part, endpoint in endpoints.items()},
        "credentials": None if service.credentials is None else asdict(service.credentials),
        "timeout": options.timeout,
        "concurrency": options.worker_concurrency,
        "graph_mode": data.graph_mode,
        "feature_mode": data.feature_mode,
        "pin_memory": options.pin_memory,
    }
    arena = plan_arena(data.meta, spec, options, plan.batch_size)
    num_sharing = sum(d is not None and d == destination.device for d in devices)
    return SamplerPool(
        config,
        devices,
        arena.depth,
        arena.in_bulk,
        arena.nbytes,
        options.max_restarts,
        service.endpoint_registry.subscribe(),
        pinning(destination),
        weights,
        DeviceArenaFactory(destination, arena.nbytes, num_sharing, transfer),
        program=_program(options, bool(endpoints)),
    )


def _program(options: MpDistSamplingWorkerOptions, has_others: bool) -> Program:
    """Return the function that starts a sampler process."""
    if not options.standby:
        return start_sampler
    imports = ["khop.distributed.rpc.partition_client"] if has_others else []
    return Standby("khop.distributed.sampling.worker", options.num_workers, imports)


def _devices(
    data: DistDataset, options: MpDistSamplingWorkerOptions, destination: TargetDevice
) -> list[str | None]:
    """Return each sampler's device; None for the CPU.

    Errors are raised here, in the trainer, before a process starts.
    """
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
            "if device is the same; batches are the same in any case",
            stacklevel=6,
        )
        devices = [device if device == destination.device else None for device in devices]
    warn_of_shared_gpus(devices, is_here=True, stacklevel=6)
    return devices


def plan_arena(
    meta: FolderMeta, spec: PipelineSpec, options: MpDistSamplingWorkerOptions, batch_size: int
) -> ArenaPlan:
    """Return the plan of each sampler's arena."""
    size = options.buffer_size
    nbytes = None if size is None else max(int(size) // options.num_workers, 1 << 16)
    return plan_memory(
        meta, spec, batch_size, options.worker_concurrency, options.num_workers, nbytes
    )
