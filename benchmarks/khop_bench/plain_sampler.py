"""PyG's neighbour sampler with its compiled kernels replaced by NumPy.

It runs if neither pyg-lib nor torch-sparse can be imported. Seeds, negative links and batches stay
PyG's own. It is slow, and serves to compare losses, not times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, NeighborSampler, SamplerOutput
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.sampler.utils import remap_keys

_ONE = "node"
_ID_BITS = 40


def pyg_sampler(data: Any, num_neighbors: Any, **options: Any) -> NeighborSampler:
    """Return PyG's sampler if its kernels import and can do it, else `PlainSampler`.

    Args:
        data: a `Data` or `HeteroData`.
        num_neighbors: fan-outs, as PyG takes them.
        **options: of PyG's `NeighborSampler`.
    """
    temporal = options.get("time_attr") is not None
    installed = torch_geometric.typing
    if installed.WITH_PYG_LIB or (installed.WITH_TORCH_SPARSE and not temporal):
        return NeighborSampler(data, num_neighbors, **options)
    return PlainSampler(data, num_neighbors, **options)


class PlainSampler(NeighborSampler):  # type: ignore[misc]
    """PyG's sampler with draws in NumPy: uniform, without replacement, by times of nodes."""

    def _sample(self, seed: Any, seed_time: Any = None, **kwargs: Any) -> Any:
        del kwargs
        assert self.subgraph_type == SubgraphType.directional
        assert not self.replace
        assert self.edge_weight is None
        if isinstance(seed, dict):
            fan_outs = self.num_neighbors.get_mapped_values(self.edge_types)
            ends = {key: self.to_edge_type[key] for key in self.colptr_dict}
            edges = {
                key: (
                    ends_of[0],
                    ends_of[2],
                    self.colptr_dict[key],
                    self.row_dict[key],
                    fan_outs[key],
                )
                for key, ends_of in ends.items()
            }
            drawn = _Draw(edges, self.node_time, self.disjoint)
            drawn.run(seed, seed_time or {}, self.num_neighbors.num_hops)
            by_type = [
                remap_keys(drawn.tensors(array_name), self.to_edge_type)
                for array_name in ("row", "col", "id")
            ]
            return HeteroSamplerOutput(drawn.nodes(), *by_type, drawn.batches())
        edges = {_ONE: (_ONE, _ONE, self.colptr, self.row, self.num_neighbors.get_mapped_values())}
        drawn = _Draw(edges, {_ONE: self.node_time}, self.disjoint)
        drawn.run({_ONE: seed}, {_ONE: seed_time}, self.num_neighbors.num_hops)
        row, col, edge = (drawn.tensors(array_name)[_ONE] for array_name in ("row", "col", "id"))
        batch = drawn.batches()
        return SamplerOutput(drawn.nodes()[_ONE], row, col, edge, batch and batch[_ONE])


class _Draw:
    """One draw: nodes by type, in order of their first appearance, and edges between them.

    A node has a key: its id and, if seeds share no nodes, the number of its seed.
    """

    def __init__(self, edges: dict[str, Any], node_time: Any, disjoint: bool) -> None:
        self.edges, self.disjoint = edges, disjoint
        self.node_time = {t: v.numpy() for t, v in (node_time or {}).items() if v is not None}
        types = {t for source, target, *_ in edges.values() for t in (source, target)}
        self.known = {t: np.empty(0, np.int64) for t in types}
        self.until = {t: np.empty(0) for t in types}
        self.drawn: dict[str, dict[str, list[Any]]] = {
            array_name: {key: [np.empty(0, np.int64)] for key in edges}
            for array_name in ("row", "col", "id")
        }

    def run(self, seeds: dict[str, Any], seed_time: dict[str, Any], num_hops: int) -> None:
        """Draw all hops of the seeds, by node type."""
        trees = 0
        for node_type, of_type in seeds.items():
            ids, times = of_type.numpy(), seed_time.get(node_type)
            if times is None:
                known = self.node_time.get(node_type)
                times = np.full(len(ids), np.inf) if known is None else known[ids]
            tree = trees + np.arange(len(ids)) if self.disjoint else np.zeros(len(ids), np.int64)
            self._add_nodes(node_type, tree << _ID_BITS | ids, np.asarray(times, np.float64))
            trees += len(ids)
        first = dict.fromkeys(self.known, 0)
        for hop in range(num_hops):
            last = {t: len(keys) for t, keys in self.known.items()}
            for key, (_, target, *_) in self.edges.items():
                self._hop(key, slice(first[target], last[target]), hop)
            first = last

    def _hop(self, key: str, frontier: slice, hop: int) -> None:
        source, target, colptr, row, fan_outs = self.edges[key]
        keys, until = self.known[target][frontier], self.until[target][frontier]
        nodes = keys & ((1 << _ID_BITS) - 1)
        begins, counts = colptr.numpy()[nodes], np.diff(colptr.numpy())[nodes]
        owner = np.repeat(np.arange(len(nodes)), counts)
        edge = np.arange(len(owner)) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        if source in self.node_time:
            early = self.node_time[source][row.numpy()[edge]] <= until[owner]
            owner, edge = owner[early], edge[early]
        by_chance = np.lexsort((torch.rand(len(owner)).numpy(), owner))
        owner, edge = owner[by_chance], edge[by_chance]
        if fan_outs[hop] >= 0:
            rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
            owner, edge = owner[rank < fan_outs[hop]], edge[rank < fan_outs[hop]]
        drawn = keys[owner] >> _ID_BITS << _ID_BITS | row.numpy()[edge]
        self.drawn["row"][key].append(self._add_nodes(source, drawn, until[owner]))
        self.drawn["col"][key].append(frontier.start + owner)
        self.drawn["id"][key].append(edge)

    def _add_nodes(self, node_type: str, keys: Any, until: Any) -> Any:
        """Return the numbers of keys, which are added if they are new."""
        before = len(self.known[node_type])
        all_keys = np.concatenate([self.known[node_type], keys])
        _, first, position = np.unique(all_keys, return_index=True, return_inverse=True)
        in_order = np.argsort(first)
        numbers = np.empty(len(first), np.int64)
        numbers[in_order] = np.arange(len(first))
        kept = first[in_order]
        self.known[node_type] = all_keys[kept]
        self.until[node_type] = np.concatenate([self.until[node_type], until])[kept]
        return numbers[position[before:]]

    def nodes(self) -> dict[str, Tensor]:
        """Return the ids of each type's nodes."""
        mask = (1 << _ID_BITS) - 1
        return {t: torch.from_numpy(keys & mask) for t, keys in self.known.items()}

    def batches(self) -> dict[str, Tensor] | None:
        """Return the number of the seed that each node belongs to. If seeds share nodes, None."""
        if not self.disjoint:
            return None
        return {t: torch.from_numpy(keys >> _ID_BITS) for t, keys in self.known.items()}

    def tensors(self, array_name: str) -> dict[str, Tensor]:
        """Return 'row', 'col' or 'id' of the edges of each type."""
        return {
            key: torch.from_numpy(np.concatenate(of)) for key, of in self.drawn[array_name].items()
        }
