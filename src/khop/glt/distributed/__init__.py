"""GLT's distributed data sets, loaders and processes."""

from khop.distributed import DistContext as DistContext, DistRole as DistRole
from khop.distributed.loaders.base import DistLoader as DistLoader
from khop.glt.distributed.dataset import DistDataset as DistDataset
from khop.glt.distributed.dist_client import (
    async_request_server as async_request_server,
    request_server as request_server,
)
from khop.glt.distributed.dist_feature import (
    DistFeature as DistFeature,
    PartialFeature as PartialFeature,
    RpcDataPartitionRouter as RpcDataPartitionRouter,
    rpc_sync_data_partitions as rpc_sync_data_partitions,
)
from khop.glt.distributed.dist_random_partitioner import (
    DistRandomPartitioner as DistRandomPartitioner,
)
from khop.glt.distributed.dist_server import DistServer as DistServer
from khop.glt.distributed.job import (
    all_gather as all_gather,
    barrier as barrier,
    get_context as get_context,
    get_rpc_master_addr as get_rpc_master_addr,
    get_rpc_master_port as get_rpc_master_port,
    global_all_gather as global_all_gather,
    global_barrier as global_barrier,
    init_client as init_client,
    init_rpc as init_rpc,
    init_worker_group as init_worker_group,
    rpc_is_initialized as rpc_is_initialized,
    shutdown_client as shutdown_client,
    shutdown_rpc as shutdown_rpc,
)
from khop.glt.distributed.loaders import (
    DistLinkNeighborLoader as DistLinkNeighborLoader,
    DistNeighborLoader as DistNeighborLoader,
    DistSubGraphLoader as DistSubGraphLoader,
)
from khop.glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions as CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions as MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions,
)
from khop.glt.distributed.servers import (
    init_server as init_server,
    wait_and_shutdown_server as wait_and_shutdown_server,
)
