"""Requests about a graph server and its graph, and their replies. Imports no torch.

Graph servers and clients use it; see `directory_messages` for how they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from khop.codec import INT64, Between, Id
from khop.distributed.remote.directory_messages import Done
from khop.distributed.remote.message_fields import Label, Part, ServerRank


@dataclass(frozen=True)
class Pong:
    """Reply to `Ping`: the server's rank."""

    rank: ServerRank


@dataclass(frozen=True)
class Ping:
    """Request that shows whether a server answers."""

    op: ClassVar[str] = "ping"
    reply: ClassVar[type] = Pong
    carries: ClassVar[int] = 0


@dataclass(frozen=True)
class Statistics:
    """Request for a server's counters; the reply carries JSON, see `ServerCounters.snapshot`."""

    op: ClassVar[str] = "statistics"
    reply: ClassVar[type] = Done
    carries: ClassVar[int] = 0


@dataclass(frozen=True)
class DescribeGraph:
    """Request for a description of the graph; the reply carries JSON text, uint8."""

    op: ClassVar[str] = "graph"
    reply: ClassVar[type] = Done


@dataclass(frozen=True)
class _OfNodes:
    """Request that carries ids of nodes of a type, by its index. The reply has a value for each."""

    reply: ClassVar[type] = Done

    node_type: Id


@dataclass(frozen=True)
class ToNewIds(_OfNodes):
    """Request for the folder's ids of original ids."""

    op: ClassVar[str] = "to_new_ids"


@dataclass(frozen=True)
class ToOriginalIds(_OfNodes):
    """Request for the original ids of the folder's ids."""

    op: ClassVar[str] = "to_original_ids"


@dataclass(frozen=True)
class NodeTimes(_OfNodes):
    """Request for the times of nodes, by the folder's ids."""

    op: ClassVar[str] = "node_times"


@dataclass(frozen=True)
class Split:
    """Request for a split, from its entry `begin` on.

    The reply carries [its length], ids of the folder (ascending), and their original ids.
    """

    op: ClassVar[str] = "split"
    reply: ClassVar[type] = Done

    node_type: Id
    name: Label
    begin: Id


@dataclass(frozen=True)
class HomeEdges:
    """Request for edges begin, begin + step, ... < end of a partition.

    The reply carries [2, n] original ids of their sources and destinations.
    """

    op: ClassVar[str] = "home_edges"
    reply: ClassVar[type] = Done

    edge_type: Id
    partition: Part
    begin: Id
    end: Id
    step: Annotated[int, Between(1, INT64)]


@dataclass(frozen=True)
class DeviceCount:
    """Request for the number of CUDA devices of the server's machine; the reply carries [it]."""

    op: ClassVar[str] = "device_count"
    reply: ClassVar[type] = Done
