"""Choice of how a loader that samples in the trainer's process gets rows of other partitions.

Runs in trainers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch.distributed as dist

from khop.distributed.dataset import DistDataset
from khop.distributed.graph import PartitionedGraph
from khop.distributed.loaders.device_backend import (
    DeviceExchangeBackend,
    check_drawn_on_device,
)
from khop.distributed.loaders.exchanged_parts import ExchangedParts
from khop.distributed.loaders.in_process import ExchangeBackend, InProcessBackend
from khop.distributed.loaders.loader_options import LoaderOptions
from khop.distributed.loaders.trainer_group import TrainerGroup, check_initialized
from khop.distributed.remote.client.served_graph import ServedGraph
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.storage.pack import Pack
from khop.storage.part import Part
from khop.typing import Array


class Exchanging(NamedTuple):
    """Choice of how a loader gets neighbours and rows of other partitions.

    Attributes:
        is_collective: by collective calls of all trainers, not from partition servers.
        group: the user's process group for these calls.
        device: the device on which this trainer draws and gathers its partition. If None, the CPU.
    """

    is_collective: bool
    group: dist.ProcessGroup | None
    device: str | None = None

    @classmethod
    def of(
        cls,
        options: LoaderOptions,
        data: PartitionedGraph,
        spec: PipelineSpec,
        device: str | None,
    ) -> Exchanging:
        """Check the options of a loader, whose batches go to `device`.

        Raises:
            RuntimeError: torch.distributed is not initialised, which collective calls need.
            ValueError: other options do not allow collective calls, or there is no such exchange.
        """
        exchange, group = options["exchange"], options["exchange_group"]
        if exchange not in ("messages", "all_to_all"):
            raise ValueError(f"exchange must be 'messages' or 'all_to_all' (got {exchange!r})")
        if exchange == "messages" and group is not None:
            raise ValueError(
                "exchange_group is for exchange='all_to_all' (got exchange='messages')"
            )
        if exchange == "all_to_all":
            workers = options["worker_options"]
            if isinstance(data, ServedGraph) or getattr(workers, "num_workers", 0) > 0:
                raise ValueError(
                    "exchange='all_to_all' is between trainers that sample in their own processes: "
                    "pass CollocatedDistSamplingWorkerOptions() or num_workers=0 (got "
                    f"{type(workers).__name__}). Sampler processes and graph servers exchange by "
                    "messages, and make the same batches"
                )
            if not options["even_batches"]:
                raise ValueError(
                    "exchange='all_to_all' needs the same number of batches on every trainer: "
                    "leave even_batches=True"
                )
            if data.context.world_size > 1:
                check_initialized()
            assert isinstance(data, DistDataset)
            if device is not None and data.graph_mode != "CPU":
                check_drawn_on_device(data, spec, device, options["packed"] is not None)
                return cls(True, group, device)
        return cls(exchange == "all_to_all", group)

    def described(self, loader: str, batch_size: int, spec: PipelineSpec) -> dict[str, Any]:
        """Return the options that must be equal on all trainers, by name, for JSON."""
        if not self.is_collective:
            return {"exchange": "messages"}
        return {
            "exchange": "all_to_all",
            "exchange_group": None if self.group is None else dist.get_backend(self.group),
            "draws on a device": self.device is not None,
            "loader": loader,
            "batch_size": batch_size,
            "num_neighbors": spec.sampling.summary,
            "sampling options": json.dumps(spec.to_json(), sort_keys=True),
        }

    def backend(
        self,
        data: DistDataset,
        spec: PipelineSpec,
        weights: Mapping[str, Array],
        timeout: float,
        limits: tuple[int, tuple[int, int]],
        pack: Pack | None,
        batch_size: int,
    ) -> InProcessBackend:
        """Return the maker of batches in this process. All trainers call it together.

        `limits` are the bytes of the cache of rows, and the limits of `lookahead`. `pack`
        has rows of the next epochs. `batch_size` is the maximum number of seeds in a batch.
        """
        if self.device is not None:
            made = data, spec, self.device
            if data.num_partitions == 1:
                return DeviceExchangeBackend(*made, None, batch_size)
            group = TrainerGroup(data.context, self.group, timeout)
            with group.publishing():  # others would wait for a trainer that lacks memory
                return DeviceExchangeBackend(*made, group, batch_size)
        part = data.connected_part()
        if not self.is_collective:
            client = data.service().client(timeout)
            return InProcessBackend(part, spec, client, weights, timeout, *limits, pack)
        service, rank = data.service(), data.context.rank
        answering = [service.answering(user) for user in range(data.context.world_size)]
        if not any(answering):  # all partitions are read from files
            return InProcessBackend(part, spec, None, weights, timeout, *limits, pack)
        requested = {p for ranks in answering for p, answers in ranks.items() if answers == rank}
        opened = {part.part: part, **part.others}
        handlers = {
            p: RequestHandler(opened[p] if p in opened else Part(data.opened, p)) for p in requested
        }
        group = TrainerGroup(data.context, self.group, timeout)
        parts = ExchangedParts(group, handlers, answering[rank])
        return ExchangeBackend(part, spec, parts, weights, timeout, *limits, pack)
