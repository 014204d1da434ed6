"""Processes that bring a client's batches: a receiver, or samplers of servers. Runs in trainers.

A receiver is a process on the trainer's machine that receives batches from servers. If all servers
are on this machine, there is none: their samplers write into the trainer's arenas.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from khop import codec
from khop.channel.arena import ArenaReader
from khop.distributed.options import RemoteDistSamplingWorkerOptions
from khop.distributed.processes.child import ChildProcess
from khop.distributed.remote.client.batch_checks import BatchSchema
from khop.distributed.remote.client.client_context import require_client
from khop.distributed.remote.client.local_sampler import LocalSamplerFactory
from khop.distributed.remote.client.served_graph import ServedGraph
from khop.distributed.remote.message_fields import new_secret
from khop.distributed.sampling.buffer_plan import ArenaPlan, plan_memory
from khop.distributed.sampling.gpu_sharing import warn_of_shared_gpus
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.distributed.sampling.pool import SamplerPool
from khop.sampler.methods.modules import modules_of
from khop.sampler.plan import EpochPlan
from khop.typing import Array

# Default limit of a batch's bytes, where memory is short: far more than batches have.
_LEAST_BATCH_LIMIT = 1 << 30


def create_remote_backend(
    graph: ServedGraph,
    spec: PipelineSpec,
    options: RemoteDistSamplingWorkerOptions,
    plan: EpochPlan,
    weights: Mapping[str, Array],
    pin: Callable[[ArenaReader], None] | None,
) -> SamplerPool:
    """Start the processes that bring a client's batches.

    Args:
        graph: the graph that the servers serve.
        spec: specification of the batches.
        options: options of the loader.
        plan: division of the seeds into batches.
        weights: sampling weights of negative endpoints; see
            `khop.distributed.sampling.pipeline.Pipeline`.
        pin: registers an arena with CUDA. If None, arenas are not registered.

    Raises:
        TypeError, ValueError: invalid options.
    """
    context = require_client()
    ranks = options.servers(context.rank, context.num_servers())
    warn_of_shared_gpus(options.devices(), is_here=False, stacklevel=5)
    starter = LocalSamplerFactory(context.remote, ranks)
    is_near = options.shared_memory and not any(options.devices()) and starter.all_are_near()
    if is_near:
        num_processes = options.num_workers * len(ranks)
        concurrency = options.worker_concurrency
    else:
        num_processes = 1
        in_flight = options.num_workers * options.worker_concurrency * len(ranks)
        concurrency = max(options.prefetch_size, in_flight)
    size = options.buffer_size if is_near else None
    arena = plan_memory(graph.meta, spec, plan.batch_size, concurrency, num_processes, size)
    near: dict[str, Any] = {"program": starter, "is_fallback": starter.is_fallback}
    group = SamplerPool(
        _config(graph, spec, options, ranks, arena, 1 if is_near else options.num_workers),
        [None] * num_processes,
        arena.depth,
        arena.in_bulk,
        arena.nbytes,
        options.max_restarts,
        None,
        pin,
        weights,
        **(near if is_near else {"program": _start_receiver}),
    )
    context.keep(group)
    return group


def _config(
    graph: ServedGraph,
    spec: PipelineSpec,
    options: RemoteDistSamplingWorkerOptions,
    ranks: Sequence[int],
    arena: ArenaPlan,
    num_workers: int,
) -> dict[str, Any]:
    """Return the configuration of a receiver; see `khop.distributed.remote`."""
    context = require_client()
    servers, devices = context.servers, options.devices()
    return {
        "master": asdict(servers.directory),
        "credentials": None if servers.credentials is None else asdict(servers.credentials),
        "servers": list(ranks),
        "session": {
            "loader": uuid.uuid4().hex,
            "secret": new_secret(),
            "client": context.worker_name,
            "pipeline": spec.to_json(),
            "num_workers": num_workers,
            "buffer_bytes": options.buffer_size or arena.nbytes,
            "concurrency": options.worker_concurrency,
            "worker_devices": devices if any(devices) else None,
            "max_restarts": options.max_restarts,
        },
        "methods": modules_of(spec.sampling.method),
        "schema": codec.to_json(BatchSchema.create(graph.meta, spec)),
        "depth": arena.depth,
        "timeout": options.timeout,
        "batch_limit": options.batch_limit or _default_batch_limit(arena.depth),
    }


def _default_batch_limit(depth: int) -> int:
    """Return a limit of bytes so that all batches in flight take a quarter of the memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(_LEAST_BATCH_LIMIT, memory // 4 // depth)


def _start_receiver(config: Mapping[str, Any], memory: Sequence[int]) -> ChildProcess:
    return ChildProcess("khop.distributed.remote.client.receiver", config, memory)
