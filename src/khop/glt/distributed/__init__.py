"""GLT's distributed data sets, loaders and processes."""

from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistContext,
    DistRole,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    async_request_server,
    init_server,
    request_server,
    shutdown_client,
    wait_and_shutdown_server,
)
from khop.distributed.loaders.base import DistLoader
from khop.glt.distributed.dataset import DistDataset
from khop.glt.distributed.dist_random_partitioner import DistRandomPartitioner
from khop.glt.distributed.job import (
    all_gather,
    barrier,
    get_context,
    get_rpc_master_addr,
    get_rpc_master_port,
    global_all_gather,
    global_barrier,
    init_client,
    init_rpc,
    init_worker_group,
    rpc_is_initialized,
    shutdown_rpc,
)
from khop.glt.distributed.loaders import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
)

__all__ = [
    "CollocatedDistSamplingWorkerOptions",
    "DistContext",
    "DistDataset",
    "DistLinkNeighborLoader",
    "DistLoader",
    "DistNeighborLoader",
    "DistRandomPartitioner",
    "DistRole",
    "DistSubGraphLoader",
    "MpDistSamplingWorkerOptions",
    "RemoteDistSamplingWorkerOptions",
    "all_gather",
    "async_request_server",
    "barrier",
    "get_context",
    "get_rpc_master_addr",
    "get_rpc_master_port",
    "global_all_gather",
    "global_barrier",
    "init_client",
    "init_rpc",
    "init_server",
    "init_worker_group",
    "request_server",
    "rpc_is_initialized",
    "shutdown_client",
    "shutdown_rpc",
    "wait_and_shutdown_server",
]
