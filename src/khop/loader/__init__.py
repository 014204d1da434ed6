"""Loaders for graphs in memory: drop-ins for PyG's."""

from khop.loader.neighbor_loader import NeighborLoader

__all__ = ["NeighborLoader"]
