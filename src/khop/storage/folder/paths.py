"""Paths of the arrays of a partition folder, relative to it. Used by any process."""

from __future__ import annotations

import re
from urllib.parse import quote

from khop.typing import EdgeType, NodeType

RESERVED_NAMES = ("id", "edge_id", "edge_index")
"""Names of arrays of batches, which attributes must not have."""


def safe_name(name: str) -> str:
    """Encode the name of a type or attribute as a file name, which stays in its folder."""
    return quote(name, safe="").replace(".", "%2E") or "%"


def edge_folder(edge_type: EdgeType) -> str:
    """Return the name of an edge type's folder, which differs from all other edge types' names."""
    # "__" separates: within a name, underscores at its ends and in a row are escaped.
    names = (safe_name(part) for part in edge_type)
    return "__".join(re.sub("^_|_$|_(?=_)|(?<=_)_", "%5F", name) for name in names)


def node_path(part: int, node_type: NodeType, array: str) -> str:
    """Return the path of file `array` about a part's nodes. 'id' is the only array."""
    return f"part-{part}/node/{safe_name(node_type)}/{array}.npy"


def node_attr_path(part: int, node_type: NodeType, name: str) -> str:
    return node_path(part, node_type, _attr_name(name, "id"))


def cache_path(part: int, node_type: NodeType, array: str) -> str:
    """Return the path of file 'id' or 'new_id' about other parts' nodes that a part copies."""
    return f"part-{part}/cache/{safe_name(node_type)}/{array}.npy"


def cache_attr_path(part: int, node_type: NodeType, name: str) -> str:
    return cache_path(part, node_type, _attr_name(name, "id", "new_id"))


def edge_path(part: int, edge_type: EdgeType, array: str) -> str:
    """Return the path of file `array` about a part's edges: 'indptr', 'indices', 'edge_id', ..."""
    return f"part-{part}/edge/{edge_folder(edge_type)}/{array}.npy"


def edge_attr_path(part: int, edge_type: EdgeType, name: str) -> str:
    arrays = ("indptr", "indices", "neighbor_id", "edge_id", "time", "weight_sum", "weight_guide")
    return edge_path(part, edge_type, _attr_name(name, *arrays))


def map_path(node_type: NodeType) -> str:
    """Return the path of the array that has the new id of each original id of a node type."""
    return f"map/{safe_name(node_type)}.npy"


def split_path(node_type: NodeType, mask: str) -> str:
    """Return the path of the array of new ids for which the boolean attribute `mask` is True."""
    return f"split/{safe_name(node_type)}/{safe_name(mask)}.npy"


def time_path(node_type: NodeType) -> str:
    """Return the path of the array of the nodes' times, as int64 keys, by new id."""
    return f"time/{safe_name(node_type)}.npy"


def _attr_name(name: str, *arrays: str) -> str:
    """Return the file name of an attribute, different from the folder's own `arrays`."""
    safe = safe_name(name)
    # No other name is encoded to this one: `safe_name` does not encode letters.
    return f"%{ord(safe[0]):02X}{safe[1:]}" if safe in arrays else safe
