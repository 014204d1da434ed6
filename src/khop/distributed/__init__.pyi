from khop.distributed.dataset import DistDataset as DistDataset
from khop.distributed.graph import PartitionedGraph as PartitionedGraph
from khop.distributed.inference.layerwise import layerwise_inference as layerwise_inference
from khop.distributed.inference.result import (
    LayerwiseOutputs as LayerwiseOutputs,
    NodeOutputs as NodeOutputs,
)
from khop.distributed.inference.served import store_inference as store_inference
from khop.distributed.job.cluster_environment import (
    ClusterEnvironment as ClusterEnvironment,
    Place as Place,
)
from khop.distributed.job.context import (
    DistContext as DistContext,
    DistRole as DistRole,
    TrainerContext as TrainerContext,
    WorkerContext as WorkerContext,
    get_context as get_context,
)
from khop.distributed.job.worker_group import (
    init_worker_group as init_worker_group,
    shutdown_worker_group as shutdown_worker_group,
)
from khop.distributed.loaders.cluster_loader import DistClusterLoader as DistClusterLoader
from khop.distributed.loaders.cooperative_loader import CooperativeLoader as CooperativeLoader
from khop.distributed.loaders.link_neighbor_loader import (
    DistLinkNeighborLoader as DistLinkNeighborLoader,
)
from khop.distributed.loaders.loader_options import (
    InducedOptions as InducedOptions,
    LoaderOptions as LoaderOptions,
)
from khop.distributed.loaders.neighbor_loader import (
    DistNeighborLoader as DistNeighborLoader,
    DistSubGraphLoader as DistSubGraphLoader,
)
from khop.distributed.loaders.packing import PackSummary as PackSummary, pack_epochs as pack_epochs
from khop.distributed.loaders.partition_sampler import PartitionSampler as PartitionSampler
from khop.distributed.loaders.split import link_split as link_split, node_split as node_split
from khop.distributed.options import (
    CollocatedDistSamplingWorkerOptions as CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions as MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions as RemoteDistSamplingWorkerOptions,
    WorkerOptions as WorkerOptions,
)
from khop.distributed.remote.client.client_context import (
    ClientContext as ClientContext,
    init_client as init_client,
    shutdown_client as shutdown_client,
)
from khop.distributed.remote.client.requests import (
    async_request_server as async_request_server,
    request_server as request_server,
)
from khop.distributed.remote.launch import (
    ServerContext as ServerContext,
    init_server as init_server,
    wait_and_shutdown_server as wait_and_shutdown_server,
)
from khop.distributed.rpc.transport import (
    Acceptor as Acceptor,
    Channel as Channel,
    Transport as Transport,
)
from khop.distributed.sampling.process_handle import Worker as Worker
from khop.distributed.tensors.graph_store import GraphStore as GraphStore
from khop.distributed.tensors.graph_tensor import (
    GraphTensor as GraphTensor,
    Pull as Pull,
    Push as Push,
)
from khop.distributed.tensors.store_features import StoreFeatures as StoreFeatures
from khop.distributed.tensors.store_reader import (
    GraphStoreReader as GraphStoreReader,
    ReadOnlyTensor as ReadOnlyTensor,
)
