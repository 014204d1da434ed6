"""Processes that bring a client's batches: a receiver, or samplers of servers. Runs in trainers.

A receiver is a process on the trainer's machine that receives batches from servers. If all servers
are on this machine, no receiver is needed: their samplers write into the trainer's arenas.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict

from khop import codec
from khop.channel.arena import ArenaReader
from khop.distributed.options import RemoteDistSamplingWorkerOptions
from khop.distributed.remote.client.batch_checks import BatchSchema
from khop.distributed.remote.client.client_context import require_client
from khop.distributed.remote.client.local_sampler import LocalSamplerFactory
from khop.distributed.remote.client.served_graph import ServedGraph
from khop.distributed.remote.messages import new_secret
from khop.distributed.sampling.buffer_plan import plan_memory
from khop.distributed.sampling.gpu_sharing import warn_of_shared_gpus
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.distributed.sampling.pool import SamplerPool
from khop.distributed.sampling.process_handle import Program
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
    caching: tuple[int, tuple[int, int]],
    weights: Mapping[str, Array],
    pin: Callable[[ArenaReader], None] | None,
    receiver: Program,
) -> SamplerPool:
    """Start the processes that bring a loader's batches from graph servers to this trainer.

    Args:
        graph: the graph that the servers serve.
        spec: specification of the batches.
        options: options of the loader.
        plan: division of the seeds into batches.
        caching: bytes of the caches of rows of other partitions, of all samplers together, and
            limits of the number of batches that each announces ahead.
        weights: sampling weights of negative endpoints, see
            `khop.distributed.sampling.pipeline.Pipeline`.
        pin: function that registers an arena with CUDA. If None, arenas are not registered.
        receiver: factory of receivers.

    Raises:
        TypeError, ValueError: invalid options.
    """
    context, devices = require_client(), options.devices()
    cache_bytes, lookahead = caching
    ranks = options.servers(context.rank, context.num_servers())
    warn_of_shared_gpus(devices, is_here=False, stacklevel=5)
    factory = LocalSamplerFactory(context.remote, ranks, receiver)
    is_local = options.shared_memory and not any(devices) and factory.all_are_local()
    if is_local:
        num_processes, num_workers = options.num_workers * len(ranks), 1
        concurrency = options.worker_concurrency
    else:
        num_processes, num_workers = 1, options.num_workers
        in_flight = options.num_workers * options.worker_concurrency * len(ranks)
        concurrency = max(options.prefetch_size, in_flight)
    size = options.buffer_size if is_local else None
    arena = plan_memory(graph.meta, spec, plan.batch_size, concurrency, num_processes, size)
    # By default, all batches in flight take a quarter of the memory.
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    batch_limit = options.batch_limit or max(_LEAST_BATCH_LIMIT, memory // 4 // arena.depth)
    servers = context.servers
    config = {
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
            "cache_bytes": cache_bytes // (num_processes if is_local else len(ranks)),
            "lookahead": lookahead,
        },
        "methods": modules_of(spec.sampling.method),
        "schema": codec.to_json(BatchSchema.create(graph.meta, spec)),
        "depth": arena.depth,
        "timeout": options.timeout,
        "batch_limit": batch_limit,
    }
    most_ahead = lookahead[1] + options.worker_concurrency if cache_bytes and lookahead[1] else 0
    pool = SamplerPool(
        config,
        [None] * num_processes,
        arena.depth,
        arena.in_bulk,
        arena.nbytes,
        options.max_restarts,
        None,
        pin,
        weights,
        program=factory if is_local else receiver,
        # A receiver of other machines' servers is no fallback: there is nothing to replace it.
        is_fallback=factory.is_fallback if is_local else lambda process, index: False,
        lookahead=most_ahead if is_local else most_ahead * num_workers * len(ranks),
    )
    context.close_before_leaving(pool)
    return pool
