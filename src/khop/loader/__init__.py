"""Loaders for graphs in memory, drop-in replacements for PyG's. They run in the trainer.

`base` has the code that they share. `iteration` has epochs and resuming, for distributed loaders,
too. `batches` joins drawn subgraphs with attributes. `induced` has the loaders that choose nodes
and take all edges among these nodes.
"""

from khop.loader.arguments import (
    EpochOptions,
    HopOptions,
    KeyOptions,
    NodeOptions,
    TorchOptions,
)
from khop.loader.batches.captured import CapturedSteps
from khop.loader.batches.layers import ToLayers
from khop.loader.induced.cluster_loader import ClusterData, ClusterLoader
from khop.loader.induced.random_node_loader import RandomNodeLoader
from khop.loader.induced.saint_loader import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
)
from khop.loader.induced.shadow_loader import ShaDowKHopSampler
from khop.loader.iteration.iterator import EpochIterator
from khop.loader.iteration.plans import DynamicBatchSampler, ImbalancedSampler, neighborhood_sizes
from khop.loader.iteration.resume import merge_states
from khop.loader.link_neighbor_loader import LinkNeighborLoader
from khop.loader.neighbor_loader import HGTLoader, NeighborLoader, SubGraphLoader
from khop.loader.walk_windows import MetaPath2VecLoader, Node2VecLoader, WalkOptions
from khop.sampler.pyg.device import DeviceOptions

__all__ = [
    "CapturedSteps",
    "ClusterData",
    "ClusterLoader",
    "DeviceOptions",
    "DynamicBatchSampler",
    "EpochIterator",
    "EpochOptions",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "HGTLoader",
    "HopOptions",
    "ImbalancedSampler",
    "KeyOptions",
    "LinkNeighborLoader",
    "MetaPath2VecLoader",
    "NeighborLoader",
    "Node2VecLoader",
    "NodeOptions",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
    "SubGraphLoader",
    "ToLayers",
    "TorchOptions",
    "WalkOptions",
    "merge_states",
    "neighborhood_sizes",
]
