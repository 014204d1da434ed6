"""How a client's loader gets its batches: a receiver beside the trainer, samplers on servers.

Where all its servers are on the trainer's own machine, they lend it their samplers instead
(`khop.distributed.remote.nearby`): these write into the trainer's rings themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from khop.distributed.child import ChildProcess
from khop.distributed.group import SamplerGroup
from khop.distributed.options import RemoteDistSamplingWorkerOptions
from khop.distributed.pipeline import PipelineSpec
from khop.distributed.remote.borrowed import BorrowedProcess, nearby_socket
from khop.distributed.remote.client import ClientContext
from khop.distributed.remote.graph import ServedGraph
from khop.distributed.remote.nearby import wanted_of
from khop.distributed.ring_plan import RingPlan, plan_memory
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
    if plan.lists is None and _are_near(context, ranks):
        return _borrow_samplers(graph, spec, options, plan, weights, ranks)
    in_flight = options.num_workers * options.worker_concurrency * len(ranks)
    concurrency = max(options.prefetch_size, in_flight)
    ring = plan_memory(graph.meta, spec, plan.batch_size, concurrency, 1, None)
    config = _config(context, spec, options, ranks, ring)
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


def _config(
    context: ClientContext,
    spec: PipelineSpec,
    options: RemoteDistSamplingWorkerOptions,
    ranks: list[int],
    ring: RingPlan,
) -> dict[str, Any]:
    """Of a receiver; see `khop.distributed.remote`."""
    devices = options.devices()
    servers = context.servers
    return {
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


def _borrow_samplers(
    graph: ServedGraph,
    spec: PipelineSpec,
    options: RemoteDistSamplingWorkerOptions,
    plan: EpochPlan,
    weights: Mapping[str, Array],
    ranks: list[int],
) -> SamplerGroup:
    """Samplers of servers of this machine, each with a ring here."""
    context = graph.context
    devices = [device for device in options.devices() for _ in ranks]
    each = max(options.worker_concurrency, -(-options.prefetch_size // len(devices)))
    ring = plan_memory(graph.meta, spec, plan.batch_size, each, len(devices), None)

    def borrow(config: Mapping[str, Any], memory: Sequence[int]) -> ChildProcess:
        rank = ranks[config["number"] % len(ranks)]
        wanted = {**wanted_of(config), "number": config["number"] // len(ranks)}
        wait = partial(context.remote.wait_for_table, what=f"graph server {rank}")
        return BorrowedProcess(rank, wait, wanted, memory, options.rpc_timeout)

    group = SamplerGroup(
        _config(context, spec, options, ranks, ring),
        devices,
        ring.depth,
        ring.in_bulk,
        ring.nbytes,
        options.max_restarts,
        None,
        arrays=weights,
        program=borrow,
    )
    context.keep(group)
    return group


def _are_near(context: ClientContext, ranks: Sequence[int]) -> bool:
    """Whether all these servers lend samplers to this machine."""
    servers = context.remote.table.get("servers", {})
    return all(nearby_socket(servers.get(str(rank))) is not None for rank in ranks)


def _start_receiver(config: Mapping[str, Any], memory: Sequence[int]) -> ChildProcess:
    return ChildProcess("khop.distributed.remote.receiver", config, memory)
