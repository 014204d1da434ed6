"""Fast copies of a graph with filled dictionaries as stores: PyG's `copy.copy`, store by store.

PyG copies a store in 5 us: it copies the dictionary, which is then replaced, and its setters look
for properties. A batch of 20 node and edge types has 21 stores. Runs in the trainer and its worker
processes.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

from torch_geometric.data import Data, HeteroData

from khop.typing import EdgeType, NodeType


def copy_with(data: Data, mapping: dict[str, Any]) -> Data:
    """Return a copy of a graph whose store holds `mapping`."""
    batch = _bare_copy(data, Data)
    batch.__dict__["_store"] = _store_around(data._store, mapping, weakref.ref(batch))
    return batch


def hetero_data_around(
    data: HeteroData,
    nodes: Mapping[NodeType, dict[str, Any]],
    edges: Mapping[EdgeType, dict[str, Any]],
) -> HeteroData:
    """Return a copy of a graph whose stores hold the dictionaries of their types."""
    batch = _bare_copy(data, HeteroData)
    fields, parent = batch.__dict__, weakref.ref(batch)
    shared = data._global_store
    fields["_global_store"] = _store_around(shared, shared._mapping.copy(), parent)
    fields["_node_store_dict"] = {
        t: _store_around(data._node_store_dict[t], mapping, parent) for t, mapping in nodes.items()
    }
    fields["_edge_store_dict"] = {
        t: _store_around(data._edge_store_dict[t], mapping, parent) for t, mapping in edges.items()
    }
    return batch


def _bare_copy(data: Any, base: type) -> Any:
    """Copy a graph without its stores: the copy shares them until they are replaced."""
    if type(data).__copy__ is not base.__copy__:  # type: ignore[attr-defined]
        return copy.copy(data)  # a user's class may copy more
    batch = object.__new__(type(data))
    batch.__dict__.update(data.__dict__)
    return batch


def _store_around(store: Any, mapping: dict[str, Any], parent: weakref.ref[Any]) -> Any:
    made = object.__new__(type(store))
    fields = made.__dict__
    fields.update(store.__dict__)
    fields.pop("_cached_attr", None)  # classifies the attributes of the graph, not of the batch
    fields["_mapping"] = mapping
    fields["_parent"] = parent
    return made
