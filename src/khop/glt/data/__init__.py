"""GLT's graphs, features and data sets in memory."""

from khop.glt.data.dataset import (
    Dataset as Dataset,
    random_split as random_split,
    rebuild_dataset as rebuild_dataset,
    reduce_dataset as reduce_dataset,
)
from khop.glt.data.feature import (
    DeviceGroup as DeviceGroup,
    Feature as Feature,
    rebuild_feature as rebuild_feature,
    reduce_feature as reduce_feature,
    sort_by_in_degree as sort_by_in_degree,
)
from khop.glt.data.graph import (
    Graph as Graph,
    Topology as Topology,
    rebuild_graph as rebuild_graph,
    reduce_graph as reduce_graph,
)
from khop.glt.data.unified_tensor import UnifiedTensor as UnifiedTensor
from khop.glt.partition.books import PartitionBook as PartitionBook
