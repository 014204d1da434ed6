"""PyG's neighbour sampler with its compiled kernels replaced by NumPy: runs where neither imports.

Everything else, from seeds over negative links to batches, stays PyG's own. Slow: it is there to
compare losses with, not times.
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


def pyg_sampler(data: Any, num_neighbors: Any, **options: Any) -> NeighborSampler:
    """Return PyG's sampler if its kernels import and can do it, else `PlainSampler`.

    Args:
        data: a `Data` or `HeteroData`.
        num_neighbors: fan-outs, as PyG takes them.
        **options: of PyG's `NeighborSampler`.
    """
    temporal = options.get("time_attr") is not None
    ours = torch_geometric.typing
    if ours.WITH_PYG_LIB or (ours.WITH_TORCH_SPARSE and not temporal):
        return NeighborSampler(data, num_neighbors, **options)
    return PlainSampler(data, num_neighbors, **options)


class PlainSampler(NeighborSampler):  # type: ignore[misc]
    """Uniform draws without replacement, in NumPy, with times of nodes if there are some."""

    def _sample(self, seed: Any, seed_time: Any = None, **kwargs: Any) -> Any:
        del kwargs
        assert self.subgraph_type == SubgraphType.directional
        assert not self.replace
        assert self.edge_weight is None
        if isinstance(seed, dict):
            fan_outs = self.num_neighbors.get_mapped_values(self.edge_types)
            ends = {key: self.to_edge_type[key] for key in self.colptr_dict}
            edges = {
                key: (kind[0], kind[2], self.colptr_dict[key], self.row_dict[key], fan_outs[key])
                for key, kind in ends.items()
            }
            drawn = _Draw(edges, self.node_time, self.disjoint)
            drawn.run(seed, seed_time or {}, self.num_neighbors.num_hops)
            by_type = [
                remap_keys(drawn.tensors(what), self.to_edge_type) for what in ("row", "col", "id")
            ]
            return HeteroSamplerOutput(drawn.nodes(), *by_type, drawn.batches())
        edges = {_ONE: (_ONE, _ONE, self.colptr, self.row, self.num_neighbors.get_mapped_values())}
        drawn = _Draw(edges, {_ONE: self.node_time}, self.disjoint)
        drawn.run({_ONE: seed}, {_ONE: seed_time}, self.num_neighbors.num_hops)
        row, col, edge = (drawn.tensors(what)[_ONE] for what in ("row", "col", "id"))
        batch = drawn.batches()
        return SamplerOutput(drawn.nodes()[_ONE], row, col, edge, batch and batch[_ONE])


class _Draw:
    """One draw: nodes by type, in order of their first appearance, and edges between them."""

    def __init__(self, edges: dict[str, Any], node_time: Any, disjoint: bool) -> None:
        self.edges, self.disjoint = edges, disjoint
        self.node_time = {t: v for t, v in (node_time or {}).items() if v is not None}
        types = {t for source, target, *_ in edges.values() for t in (source, target)}
        self.known: dict[str, dict[tuple[int, int], int]] = {t: {} for t in types}
        self.times: dict[str, list[float]] = {t: [] for t in types}
        self.found: dict[str, dict[str, list[Any]]] = {
            what: {key: [] for key in edges} for what in ("row", "col", "id")
        }

    def run(self, seeds: dict[str, Any], seed_time: dict[str, Any], num_hops: int) -> None:
        """Draw all hops."""
        trees = 0
        for node_type, ids in seeds.items():
            times = seed_time.get(node_type)
            if times is None and node_type in self.node_time:
                times = self.node_time[node_type][ids]
            for i, node in enumerate(ids.tolist()):
                until = float("inf") if times is None else float(times[i])
                self._local(node_type, node, trees + i if self.disjoint else 0, until)
            trees += len(ids)
        first = dict.fromkeys(self.known, 0)
        for hop in range(num_hops):
            last = {t: len(nodes) for t, nodes in self.known.items()}
            for key in self.edges:
                target = self.edges[key][1]
                frontier = list(self.known[target])[first[target] : last[target]]
                self._hop(key, frontier, first[target], hop)
            first = last

    def _hop(self, key: str, frontier: list[tuple[int, int]], first: int, hop: int) -> None:
        source, target, colptr, row, fan_outs = self.edges[key]
        until = np.array(self.times[target][first : first + len(frontier)])
        nodes = np.array([node for _, node in frontier], np.int64)
        begins, ends = colptr.numpy()[nodes], colptr.numpy()[nodes + 1]
        owner = np.repeat(np.arange(len(nodes)), ends - begins)
        edge = np.arange(len(owner)) + np.repeat(
            begins - np.cumsum(ends - begins) + (ends - begins), ends - begins
        )
        if source in self.node_time:
            early = self.node_time[source].numpy()[row.numpy()[edge]] <= until[owner]
            owner, edge = owner[early], edge[early]
        by_chance = np.lexsort((torch.rand(len(owner)).numpy(), owner))
        owner, edge = owner[by_chance], edge[by_chance]
        if fan_outs[hop] >= 0:
            rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
            owner, edge = owner[rank < fan_outs[hop]], edge[rank < fan_outs[hop]]
        neighbors = row.numpy()[edge]
        for at, neighbor in zip(owner.tolist(), neighbors.tolist(), strict=True):
            tree = frontier[at][0]
            self.found["row"][key].append(self._local(source, neighbor, tree, until[at]))
        self.found["col"][key] += (first + owner).tolist()
        self.found["id"][key] += edge.tolist()

    def _local(self, node_type: str, node: int, tree: int, until: float) -> int:
        known = self.known[node_type]
        number = known.setdefault((tree, node), len(known))
        if number == len(self.times[node_type]):
            self.times[node_type].append(until)
        return number

    def nodes(self) -> dict[str, Tensor]:
        """Return the ids of each type's nodes."""
        return {t: torch.tensor([n for _, n in of], dtype=torch.long) for t, of in self._known()}

    def batches(self) -> dict[str, Tensor] | None:
        """Return the number of the seed that each node belongs to; None if they share nodes."""
        if not self.disjoint:
            return None
        return {t: torch.tensor([i for i, _ in of], dtype=torch.long) for t, of in self._known()}

    def _known(self) -> Any:
        return self.known.items()

    def tensors(self, what: str) -> dict[str, Tensor]:
        """Return 'row', 'col' or 'id' of the edges of each type."""
        return {key: torch.tensor(of, dtype=torch.long) for key, of in self.found[what].items()}
