"""GLT's distributed data sets, loaders and processes."""

from khop.distributed import DistContext, DistRole
from khop.distributed.loaders.base import DistLoader
from khop.glt.distributed.dataset import DistDataset
from khop.glt.distributed.dist_client import async_request_server, request_server
from khop.glt.distributed.dist_feature import (
    DistFeature,
    PartialFeature,
    RpcDataPartitionRouter,
    rpc_sync_data_partitions,
)
from khop.glt.distributed.dist_random_partitioner import DistRandomPartitioner
from khop.glt.distributed.dist_server import DistServer
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
    shutdown_client,
    shutdown_rpc,
)
from khop.glt.distributed.loaders import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
)
from khop.glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from khop.glt.distributed.servers import init_server, wait_and_shutdown_server

__all__ = [
    "CollocatedDistSamplingWorkerOptions",
    "DistContext",
    "DistDataset",
    "DistFeature",
    "DistLinkNeighborLoader",
    "DistLoader",
    "DistNeighborLoader",
    "DistRandomPartitioner",
    "DistRole",
    "DistServer",
    "DistSubGraphLoader",
    "MpDistSamplingWorkerOptions",
    "PartialFeature",
    "RemoteDistSamplingWorkerOptions",
    "RpcDataPartitionRouter",
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
    "rpc_sync_data_partitions",
    "shutdown_client",
    "shutdown_rpc",
    "wait_and_shutdown_server",
]
