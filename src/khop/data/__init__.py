"""Graphs and features as arrays, in memory or memory-mapped alike. Imports no torch."""

from khop.data.feature import Feature
from khop.data.graph import Graph
from khop.data.topology import Topology

__all__ = ["Feature", "Graph", "Topology"]
