"""Choice of the processes that make a loader's batches: this one, samplers or graph servers.

Runs in trainers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from khop.cores import available_memory
from khop.data.device import check_device
from khop.data.hot_rows import parse_bytes
from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.loaders.device_transfer import DeviceArenaFactory, DeviceTransfer, pinning
from khop.distributed.loaders.exchange_choice import Exchanging
from khop.distributed.loaders.in_process import InProcessBackend
from khop.distributed.loaders.placing import LoaderPlacement
from khop.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    WorkerOptions,
)
from khop.distributed.remote.client.backend import create_remote_backend
from khop.distributed.remote.client.local_sampler import start_receiver
from khop.distributed.remote.client.served_graph import ServedGraph
from khop.distributed.sampling.buffer_plan import batches_drawn_ahead, plan_memory
from khop.distributed.sampling.gpu_sharing import warn_of_shared_gpus
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.distributed.sampling.pool import SamplerPool
from khop.distributed.sampling.process_handle import Standby, start_sampler
from khop.sampler.methods.modules import modules_of
from khop.sampler.plan import EpochPlan
from khop.storage.folder import FolderMeta
from khop.storage.pack import Pack
from khop.typing import Array

# Default share of the available memory, of all trainers of a machine together. Where the memory is
# not known, and of graph servers, which bound it, a number of bytes.
_DEFAULT_SHARE, _DEFAULT_CACHE_BYTES = 1 / 16, 256 << 20
_MIN_LOOKAHEAD, _MAX_LOOKAHEAD = 8, 64


class RowCaching(NamedTuple):
    """Cache of rows of other partitions of one loader.

    Attributes:
        nbytes: bytes of all samplers together. None if the user has not set them.
        lookahead: batches that a sampler draws ahead. None if the user has not set it.
    """

    nbytes: int | None
    lookahead: int | None

    @classmethod
    def of(cls, cache_memory: int | str | None, lookahead: int | None) -> RowCaching:
        """Check the options of a loader.

        Raises:
            ValueError: a size that cannot be read, or a number of batches out of range.
        """
        if lookahead is not None and not 0 <= lookahead <= _MAX_LOOKAHEAD:
            raise ValueError(f"lookahead must be 0 to {_MAX_LOOKAHEAD} batches (got {lookahead})")
        return cls(None if cache_memory is None else parse_bytes(cache_memory), lookahead)

    def share(self, num_samplers: int, served: bool = False) -> int:
        """Return the bytes of each sampler. If `served`, graph servers run them.

        By default all have a sixteenth of the memory that is available now, divided by the trainers
        of this machine ($LOCAL_WORLD_SIZE). Samplers take less if there are fewer rows.
        """
        nbytes = self.nbytes
        if nbytes is None:
            memory = None if served else available_memory()
            trainers = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
            nbytes = _DEFAULT_CACHE_BYTES
            nbytes = nbytes if memory is None else int(_DEFAULT_SHARE * memory) // trainers
        return nbytes // num_samplers

    def limits(self, meta: FolderMeta, spec: PipelineSpec, batch_size: int) -> tuple[int, int]:
        """Return the least and the greatest number of batches that a sampler draws ahead."""
        if self.lookahead is not None:
            return self.lookahead, self.lookahead
        small = batches_drawn_ahead(meta, spec, batch_size)
        return _MIN_LOOKAHEAD, min(max(small, _MIN_LOOKAHEAD), _MAX_LOOKAHEAD)


def create_backend(
    data: PartitionedGraph,
    spec: PipelineSpec,
    options: WorkerOptions | None,
    plan: EpochPlan,
    weights: Mapping[str, Array],
    transfer: DeviceTransfer,
    caching: RowCaching,
    exchange: Exchanging,
    placing: LoaderPlacement,
    pack: Pack | None = None,
) -> SamplerPool | InProcessBackend:
    """Create what makes a loader's batches: this process, samplers here, or graph servers.

    Args:
        data: the graph.
        spec: specification of the batches.
        options: worker options. If None: this process for a dataset, servers for a served graph.
        plan: division of the seeds into batches.
        weights: sampling weights of negative endpoints, by name: see `arrays` of `Pipeline`.
        transfer: transfer of the batches to their device.
        caching: cache of rows of other partitions.
        exchange: how this process gets rows of other partitions.
        placing: placement of processes and arenas.
        pack: rows of the next epochs. If None, there is no pack.

    Raises:
        RuntimeError: a device of `worker_devices` cannot be used. The message has the reason.
        ValueError: `worker_devices` names a device, but graph_mode='CPU' for this dataset. Or there
            is a pack, and a device or a server gathers rows.
    """
    if isinstance(data, ServedGraph):
        options = options or RemoteDistSamplingWorkerOptions()
        assert isinstance(options, RemoteDistSamplingWorkerOptions)
        if pack is not None:
            raise ValueError(f"packed is for loaders of partitions here (got '{pack.root}')")
        prepare = placing.preparing(pinning(transfer.target))
        limits = caching.share(1, True), caching.limits(data.meta, spec, plan.batch_size)
        receiver = placing.starting(start_receiver)
        return create_remote_backend(data, spec, options, plan, limits, weights, prepare, receiver)
    assert isinstance(data, DistDataset)
    options = options or CollocatedDistSamplingWorkerOptions()
    if isinstance(options, MpDistSamplingWorkerOptions) and options.num_workers > 0:
        return _make_samplers(data, spec, options, plan, weights, transfer, caching, placing, pack)
    limits = caching.share(1), caching.limits(data.meta, spec, plan.batch_size)
    return exchange.backend(data, spec, weights, options.timeout, limits, pack, plan.batch_size)


def _make_samplers(
    data: DistDataset,
    spec: PipelineSpec,
    options: MpDistSamplingWorkerOptions,
    plan: EpochPlan,
    weights: Mapping[str, Array],
    transfer: DeviceTransfer,
    caching: RowCaching,
    placing: LoaderPlacement,
    pack: Pack | None,
) -> SamplerPool:
    shared_device = transfer.target.device
    devices = _devices(data, options, shared_device)
    if pack is not None and any(devices):
        raise ValueError("samplers on devices map all rows: leave packed or worker_devices out")
    service = data.service()
    endpoints = service.endpoints()
    config = {
        "root": str(data.opened.root),
        "part": data.partition_idx,
        "others": service.others,
        "stores": [store.to_json() for store in data.opened.stores.values()],
        "disk": None if data.opened.disk is None else data.opened.disk.among(options.num_workers),
        "pipeline": spec.to_json(),
        "methods": modules_of(spec.sampling.method),
        "endpoints": {part: asdict(endpoint) for part, endpoint in endpoints.items()},
        "credentials": None if service.credentials is None else asdict(service.credentials),
        "timeout": options.timeout,
        "concurrency": options.worker_concurrency,
        "graph_mode": data.graph_mode,
        "feature_mode": data.feature_mode,
        "packed": None if pack is None else str(pack.root),
        "pin_memory": options.pin_memory,
    }
    concurrency, num_workers = options.worker_concurrency, options.num_workers
    is_cached = bool(endpoints) and caching.nbytes != 0 and not any(devices)
    # Batches are drawn ahead for rows of other partitions, and for rows on disk.
    on_disk = bool(data.opened.disk and data.opened.disk.names)
    draws_ahead = is_cached or on_disk or pack is not None
    lookahead = caching.limits(data.meta, spec, plan.batch_size) if draws_ahead else (0, 0)
    config["cache_bytes"] = caching.share(num_workers) if is_cached else 0
    config["lookahead"] = lookahead
    arena = plan_memory(
        data.meta, spec, plan.batch_size, concurrency, num_workers, options.buffer_size
    )
    program = placing.starting(start_sampler)
    if options.standby:
        imports = ["khop.distributed.rpc.partition_client"] if endpoints else []
        program = Standby(num_workers, imports, placing.placement)
    num_sharing = sum(d is not None and d == shared_device for d in devices)
    return SamplerPool(
        config,
        devices,
        arena.depth,
        arena.in_bulk,
        arena.nbytes,
        options.max_restarts,
        service.endpoint_registry.subscribe(),
        placing.preparing(pinning(transfer.target)),
        weights,
        DeviceArenaFactory(transfer, arena.nbytes, num_sharing),
        program=program,
        # As many batches beyond the window are being drawn at the same time.
        lookahead=lookahead[1] + concurrency if lookahead[1] else 0,
    )


def _devices(
    data: DistDataset, options: MpDistSamplingWorkerOptions, shared_device: str | None
) -> list[str | None]:
    """Return the device on which each sampler draws. None is the CPU.

    `shared_device` is the loader's own GPU. Errors are raised here, in the trainer, before a
    process starts.
    """
    devices = options.devices()
    named = list(dict.fromkeys(device for device in devices if device is not None))
    if not named:
        return devices
    for device in named:
        check_device(device, "worker_devices: device")
    if data.graph_mode == "CPU":
        raise ValueError(
            f"worker_devices has '{named[0]}', but the dataset was loaded with graph_mode='CPU': "
            "load it with 'CUDA' (the graph is copied to the device) or 'ZERO_COPY' (read in place)"
        )
    if data.num_partitions > 1:
        warnings.warn(
            f"of a folder of {data.num_partitions} partitions hops need rows of all of them: "
            "samplers draw on the CPU, whatever worker_devices says, and gather on a device only "
            "if device is the same; batches are the same in any case",
            stacklevel=6,
        )
        devices = [device if device == shared_device else None for device in devices]
    warn_of_shared_gpus(devices, is_here=True, stacklevel=6)
    return devices
