"""Joining of a sampled subgraph with attributes from a pair of PyG's stores.

Like PyG's `filter_custom_store` and `filter_custom_hetero_store`, but batches have edge attributes,
too, which are requested by edge id. One `multi_get_tensor` requests all attributes of a batch, so
that a store can fetch them together. Runs in the trainer and its worker processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from khop.loader.batches.collate import stack_endpoints
from khop.sampler.pyg.source import as_input
from khop.sampler.pyg.stores import StoreInput, with_index
from khop.typing import EDGE, NODE, EdgeType, NodeType


class StoreJoiner:
    """Joiner of subgraphs with attributes from a pair of PyG's stores. Threads may share a joiner.

    `custom_cls` makes an empty batch. If None, batches are `Data` or `HeteroData`.
    """

    def __init__(
        self,
        stores: tuple[FeatureStore, GraphStore],
        custom_cls: Callable[[], Data | HeteroData] | None = None,
    ) -> None:
        self._input = StoreInput(*as_input(stores))
        self._custom_cls = custom_cls

    def join(self, out: SamplerOutput | HeteroSamplerOutput, permutation: Any) -> Data | HeteroData:
        """Make a batch without attributes about seeds. `permutation` maps drawn edges to ids."""
        batch: Any
        if isinstance(out, SamplerOutput):
            batch = Data() if self._custom_cls is None else self._custom_cls()
            stores = {NODE: batch, EDGE: batch}
            nodes, ends, drawn = {NODE: out.node}, {EDGE: (out.row, out.col)}, {EDGE: out.edge}
            permutation = {EDGE: permutation}
        elif isinstance(out, HeteroSamplerOutput):
            batch = stores = HeteroData() if self._custom_cls is None else self._custom_cls()
            nodes, drawn, permutation = out.node, out.edge or {}, permutation or {}
            ends = {t: (row, out.col[t]) for t, row in out.row.items()}
        else:
            raise TypeError(
                "a sampler must return a SamplerOutput or a HeteroSamplerOutput (got "
                f"'{type(out).__name__}')"
            )
        edges = {t: _edge_ids(drawn.get(t), permutation.get(t)) for t in ends}
        for edge_type, (row, col) in ends.items():
            stores[edge_type].edge_index = stack_endpoints(row, col)
        for node_type, node in nodes.items():
            stores[node_type].num_nodes = node.numel()
        for owner, name, value in self._fetch(nodes, edges):
            stores[owner][name] = value
        for node_type, node in nodes.items():
            _add_ids(stores[node_type], "n_id", node)
        for edge_type, edge in edges.items():
            _add_ids(stores[edge_type], "e_id", edge)
        for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
            value = getattr(out, name)
            if isinstance(out, HeteroSamplerOutput):
                batch.set_value_dict(name, value)
            else:
                setattr(batch, name, value)
        return batch

    def _fetch(
        self, nodes: dict[NodeType, Tensor], edges: dict[EdgeType, Tensor | None]
    ) -> list[tuple[Any, str, Any]]:
        """Return (type, name, value) of each attribute of the sampled nodes and edges."""
        asked: list[TensorAttr] = []
        owners: list[Any] = []
        for attr in self._input.features.get_all_tensor_attrs():
            owner = self._input.owner(attr)
            is_edge = isinstance(owner, tuple)
            index = edges.get(owner) if is_edge else nodes.get(owner)  # type: ignore[arg-type]
            if index is not None:  # no attributes of edges without ids
                asked.append(_by_edge_id(attr, index) if is_edge else with_index(attr, index))
                owners.append(owner)
        features: FeatureStore = self._input.features
        values = features.multi_get_tensor(asked) if asked else []
        return [
            (owner, attr.attr_name, _checked(value, attr))
            for owner, attr, value in zip(owners, asked, values, strict=True)
        ]


def _add_ids(target: Any, name: str, ids: Tensor | None) -> None:
    """Add `n_id` or `e_id` to a store, unless it has an attribute of this name."""
    if ids is not None and name not in target:
        target[name] = ids


def _by_edge_id(attr: TensorAttr, edge: Tensor) -> TensorAttr:
    # Attributes of `khop.distributed.stores.dataset_stores` have their own method for edge ids.
    own = getattr(attr, "by_edge_id", None)
    return with_index(attr, edge) if own is None else own(edge)


def _edge_ids(edge: Tensor | None, permutation: Tensor | None) -> Tensor | None:
    if edge is None:
        return None
    edge = edge.to(torch.int64)
    return edge if permutation is None else permutation[edge]


def _checked(value: Any, attr: TensorAttr) -> Any:
    """Return a fetched attribute as a tensor. KeyError or ValueError if rows are missing."""
    name = f"attribute '{attr.attr_name}' of group {attr.group_name!r}"
    if value is None:
        raise KeyError(f"the feature store lists {name}, but returns nothing for it")
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    if len(value) != len(attr.index):
        raise ValueError(
            f"the feature store returned {len(value)} rows of {name} for {len(attr.index)} ids"
        )
    return value
