"""Loaders for graphs in memory, drop-in replacements for PyG's. They run in the trainer.

`base` has what all of them share, `induced_loader` what those share that choose nodes and take all
edges among them.
"""

from khop.loader.cluster_loader import ClusterData, ClusterLoader
from khop.loader.hgt_loader import HGTLoader
from khop.loader.iterator import EpochIterator
from khop.loader.layers import ToLayers
from khop.loader.link_neighbor_loader import LinkNeighborLoader
from khop.loader.neighbor_loader import NeighborLoader
from khop.loader.plans import DynamicBatchSampler, ImbalancedSampler, neighborhood_sizes
from khop.loader.random_node_loader import RandomNodeLoader
from khop.loader.saint_loader import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
)
from khop.loader.shadow_loader import ShaDowKHopSampler
from khop.loader.subgraph_loader import SubGraphLoader
from khop.loader.walk_windows import MetaPath2VecLoader, Node2VecLoader
from khop.sampler.device import DeviceOptions

__all__ = [
    "ClusterData",
    "ClusterLoader",
    "DeviceOptions",
    "DynamicBatchSampler",
    "EpochIterator",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "HGTLoader",
    "ImbalancedSampler",
    "LinkNeighborLoader",
    "MetaPath2VecLoader",
    "NeighborLoader",
    "Node2VecLoader",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
    "SubGraphLoader",
    "ToLayers",
    "neighborhood_sizes",
]
