"""GLT's loaders of graphs in memory."""

from khop.glt.loader.loaders import (
    LinkLoader as LinkLoader,
    LinkNeighborLoader as LinkNeighborLoader,
    NeighborLoader as NeighborLoader,
    NodeLoader as NodeLoader,
    SubGraphLoader as SubGraphLoader,
    get_edge_label_index as get_edge_label_index,
)
from khop.glt.loader.transform import to_data as to_data, to_hetero_data as to_hetero_data
