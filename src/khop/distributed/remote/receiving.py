"""How a client's loader gets its batches: a receiver beside the trainer, samplers on servers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from khop.distributed.child import ChildProcess
from khop.distributed.group import SamplerGroup
from khop.distributed.options import RemoteDistSamplingWorkerOptions
from khop.distributed.pipeline import PipelineSpec
from khop.distributed.remote.graph import ServedGraph
from khop.distributed.ring_plan import plan_memory
from khop.sampler.plan import EpochPlan
from khop.typing import Array


def make_receivers(
    graph: ServedGraph,
    spec: PipelineSpec,
    options: RemoteDistSamplingWorkerOptions,
    plan: EpochPlan,
    weights: Mapping[str, Array],
) -> SamplerGroup:
    """What makes a client's batches, as far as its trainer sees it.

    Args:
        graph: what the servers serve.
        spec: what batches shall be.
        options: how sampling is carried out.
        plan: how seeds make batches.
        weights: of the ends of negatives; see `khop.distributed.pipeline.Pipeline`.

    Raises:
        TypeError, ValueError: bad options.
    """
    context = graph.context
    ranks = options.servers(context.rank, context.num_servers())
    in_flight = options.num_workers * options.worker_concurrency * len(ranks)
    concurrency = max(options.prefetch_size, in_flight)
    ring = plan_memory(graph.meta, spec, plan.batch_size, concurrency, 1, None)
    devices = options.devices()
    servers = context.servers
    config: dict[str, Any] = {
        "master": asdict(servers.directory),
        "credentials": None if servers.credentials is None else asdict(servers.credentials),
        "servers": ranks,
        "session": {
            "loader": uuid.uuid4().hex,
            "client": context.worker_name,
            "pipeline": spec.to_json(),
            "num_workers": options.num_workers,
            "buffer_bytes": options.buffer_size or ring.nbytes,
            "concurrency": options.worker_concurrency,
            "worker_devices": devices if any(devices) else None,
            "max_restarts": options.max_restarts,
        },
        "depth": ring.depth,
        "timeout": options.rpc_timeout,
    }
    group = SamplerGroup(
        config,
        [None],
        ring.depth,
        ring.in_bulk,
        ring.nbytes,
        options.max_restarts,
        None,
        arrays=weights,
        program=_start_receiver,
    )
    context.keep(group)
    return group


def _start_receiver(config: Mapping[str, Any], memory: Sequence[int]) -> ChildProcess:
    return ChildProcess("khop.distributed.remote.receiver", config, memory)
