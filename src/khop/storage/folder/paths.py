"""Paths of the arrays of a partition folder, relative to it. Used by any process."""

from __future__ import annotations

import re
from urllib.parse import quote

from khop.typing import EdgeType, NodeType

RESERVED_NAMES = ("id", "edge_id", "edge_index")
"""Names of arrays of batches, which attributes must not have."""


def safe_name(name: str) -> str:
    """Encode a name of a type or attribute for a path, so that the path stays in its folder."""
    return quote(name, safe="").replace(".", "%2E") or "%"


def edge_folder(edge_type: EdgeType) -> str:
    """Return the folder name of an edge type. No other edge type has the same name."""
    # "__" separates: within a name, underscores at its ends and in a row are escaped.
    names = (safe_name(part) for part in edge_type)
    return "__".join(re.sub("^_|_$|_(?=_)|(?<=_)_", "%5F", name) for name in names)


def node_path(part: int, node_type: NodeType, array: str) -> str:
    """Return the path of an array of a part's nodes. The only `array` is 'id'."""
    return f"part-{part}/node/{safe_name(node_type)}/{array}.npy"


def node_attr_path(part: int, node_type: NodeType, name: str) -> str:
    return node_path(part, node_type, _attr_name(name, "id"))


def cache_path(part: int, node_type: NodeType, array: str) -> str:
    """Return the path of an array of the nodes that a part caches: 'id' or 'new_id'."""
    return f"part-{part}/cache/{safe_name(node_type)}/{array}.npy"


def cache_attr_path(part: int, node_type: NodeType, name: str) -> str:
    return cache_path(part, node_type, _attr_name(name, "id", "new_id"))


def edge_path(part: int, edge_type: EdgeType, array: str) -> str:
    """Return the path of an edge array of a part: 'indptr', 'indices', 'edge_id', 'time', ..."""
    return f"part-{part}/edge/{edge_folder(edge_type)}/{array}.npy"


def edge_attr_path(part: int, edge_type: EdgeType, name: str) -> str:
    arrays = ("indptr", "indices", "neighbor_id", "edge_id", "time", "weight_sum", "weight_guide")
    return edge_path(part, edge_type, _attr_name(name, *arrays))


def map_path(node_type: NodeType) -> str:
    """Return the path of the map from original to new ids."""
    return f"map/{safe_name(node_type)}.npy"


def split_path(node_type: NodeType, mask: str) -> str:
    """Return the path of the array of new ids for which a boolean attribute is True."""
    return f"split/{safe_name(node_type)}/{safe_name(mask)}.npy"


def time_path(node_type: NodeType) -> str:
    """Return the path of the nodes' time keys, by new id."""
    return f"time/{safe_name(node_type)}.npy"


def _attr_name(name: str, *arrays: str) -> str:
    """Return the file name of an attribute, which differs from the folder's own `arrays`."""
    safe = safe_name(name)
    # No other name is encoded to this one: `safe_name` does not encode letters.
    return f"%{ord(safe[0]):02X}{safe[1:]}" if safe in arrays else safe
