"""Graphs, and row stores, which hold the attributes of nodes and edges.

Used by any process. Imports no torch.
"""

from khop.data.device_feature import DeviceFeature, DeviceGroup, Served
from khop.data.direct_rows import rows_on_disk
from khop.data.feature import ConsecutiveIds, Feature
from khop.data.graph import Graph
from khop.data.hot_rows import expected_share
from khop.data.info import GraphInfo
from khop.data.joined import CachedRows
from khop.data.node_rows import NodeGroup
from khop.data.row_division import Shards
from khop.data.row_store import RowFormat, RowStore
from khop.data.tickets import ReadThreads, ReadTicket, Ticket, TicketGroup
from khop.data.topology import Topology

__all__ = [
    "CachedRows",
    "ConsecutiveIds",
    "DeviceFeature",
    "DeviceGroup",
    "Feature",
    "Graph",
    "GraphInfo",
    "NodeGroup",
    "ReadThreads",
    "ReadTicket",
    "RowFormat",
    "RowStore",
    "Served",
    "Shards",
    "Ticket",
    "TicketGroup",
    "Topology",
    "expected_share",
    "rows_on_disk",
]
