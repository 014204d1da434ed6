"""GLT's loaders of graphs in memory."""

from khop.glt.loader.loaders import (
    LinkLoader,
    LinkNeighborLoader,
    NeighborLoader,
    NodeLoader,
    SubGraphLoader,
    get_edge_label_index,
)
from khop.glt.loader.transform import to_data, to_hetero_data

__all__ = [
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NodeLoader",
    "SubGraphLoader",
    "get_edge_label_index",
    "to_data",
    "to_hetero_data",
]
