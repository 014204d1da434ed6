"""Graphs and features as arrays, in memory or memory-mapped. Any process; imports no torch."""

from khop.data.consecutive import ConsecutiveIds
from khop.data.device_feature import DeviceFeature, Served
from khop.data.device_group import DeviceGroup
from khop.data.feature import Feature
from khop.data.graph import Graph
from khop.data.hot_rows import expected_share
from khop.data.info import GraphInfo
from khop.data.row_format import RowFormat
from khop.data.topology import Topology

__all__ = [
    "ConsecutiveIds",
    "DeviceFeature",
    "DeviceGroup",
    "Feature",
    "Graph",
    "GraphInfo",
    "RowFormat",
    "Served",
    "Topology",
    "expected_share",
]
