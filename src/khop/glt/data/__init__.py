"""GLT's graphs, features and data sets in memory."""

from khop.glt.data.dataset import Dataset, random_split, rebuild_dataset, reduce_dataset
from khop.glt.data.feature import (
    DeviceGroup,
    Feature,
    rebuild_feature,
    reduce_feature,
    sort_by_in_degree,
)
from khop.glt.data.graph import Graph, Topology, rebuild_graph, reduce_graph
from khop.glt.data.unified_tensor import UnifiedTensor
from khop.glt.partition.books import PartitionBook

__all__ = [
    "Dataset",
    "DeviceGroup",
    "Feature",
    "Graph",
    "PartitionBook",
    "Topology",
    "UnifiedTensor",
    "random_split",
    "rebuild_dataset",
    "rebuild_feature",
    "rebuild_graph",
    "reduce_dataset",
    "reduce_feature",
    "reduce_graph",
    "sort_by_in_degree",
]
