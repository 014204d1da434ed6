"""Loaders for graphs in memory, drop-in replacements for PyG's. They run in the trainer."""

from khop.loader.link_neighbor_loader import LinkNeighborLoader
from khop.loader.neighbor_loader import NeighborLoader
from khop.loader.subgraph_loader import SubGraphLoader
from khop.loader.walk_windows import MetaPath2VecLoader, Node2VecLoader
from khop.sampler.device import DeviceOptions

__all__ = [
    "DeviceOptions",
    "LinkNeighborLoader",
    "MetaPath2VecLoader",
    "NeighborLoader",
    "Node2VecLoader",
    "SubGraphLoader",
]
