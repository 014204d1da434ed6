"""GLT's `NeighborSampler` over a graph in memory: khop's sampler, with GLT's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
import torch_geometric.sampler as pyg
from torch import Tensor

from khop import sampler as core
from khop.data.arrays import to_int64
from khop.glt.data.graph import Graph, to_core
from khop.glt.sampler.base import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NeighborOutput,
    NodeSamplerInput,
    Output,
    SamplerOutput,
    to_pyg_negatives,
)
from khop.glt.typing import Device, EdgeType, NodeType, NumNeighbors, reverse_edge_type

_WEIGHTS = "edge_weights"


class NeighborSampler(BaseSampler):
    """Sampler of neighbourhoods in memory, with GLT's interface.

    Draws are khop's: without replacement, the same on all devices, uniform or by weight. Edges of
    outputs lead from neighbours to the nodes that drew them. With `edge_dir='out'` their edge types
    are reversed (`reverse_edge_type`).

    Args:
        graph: the graph, or one for each edge type.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}. -1 takes all. If None, only
            `subgraph` works, and returns only the seeds and the edges between them.
        device: a GPU that draws. If None, or if there is no GPU, the CPU.
        with_edge: return edge ids.
        with_neg: accepted, not needed: inputs have the negatives.
        with_weight: draw by the topologies' weights.
        strategy: 'random'.
        edge_dir: direction of draws, which must be the graph's. If None, the graph's.
        seed: makes draws reproducible.
        num_nodes: least number of nodes of each type.

    Raises:
        ValueError: another direction or strategy, or the graph lacks weights.

    Example:
        >>> graph = Graph(Topology(torch.tensor([[0, 0], [1, 2]])), "CPU")
        >>> out = NeighborSampler(graph, [2]).sample_from_nodes(torch.tensor([0]))
        >>> out.node.tolist(), out.row.tolist(), out.col.tolist()
        ([0, 1, 2], [1, 2], [0, 0])
    """

    def __init__(
        self,
        graph: Graph | Mapping[EdgeType, Graph],
        num_neighbors: NumNeighbors | None = None,
        device: Device = None,
        with_edge: bool = False,
        with_neg: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        edge_dir: Literal["in", "out"] | None = None,
        seed: int | None = None,
        *,
        num_nodes: Mapping[NodeType, int] | None = None,
    ) -> None:
        del with_neg
        if strategy != "random":
            raise ValueError(f"strategy must be 'random' (got {strategy!r})")
        self.graph = graph
        self.num_neighbors = num_neighbors
        self.with_edge = with_edge
        self.seed = seed
        self._core_graph = to_core(graph, num_nodes, with_weight)
        self.edge_dir = self._core_graph.edge_dir
        if edge_dir not in (None, self.edge_dir):
            raise ValueError(
                f"edge_dir={edge_dir!r}, but the topology is for '{self.edge_dir}': make it with "
                f"layout='{'CSC' if edge_dir == 'in' else 'CSR'}'"
            )
        chosen = torch.device("cpu" if device is None else str(device).lower())
        is_usable = chosen.type == "cuda" and torch.cuda.is_available()
        self.device = chosen if is_usable else torch.device("cpu")
        self._options: dict[str, Any] = {
            "weight_attr": _WEIGHTS if with_weight else None,
            "with_edge": with_edge,
            "seed": seed,
            "device": None if self.device.type == "cpu" else self.device,
        }
        self._hops = core.NeighborSampler(
            self._core_graph, [] if num_neighbors is None else num_neighbors, **self._options
        )
        self._induced: core.NeighborSampler | None = None

    @property
    def is_heterogeneous(self) -> bool:
        """True if the graph has several types."""
        return self._core_graph.is_heterogeneous

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types that outputs have."""
        names = self._core_graph.edge_types
        return names if self.edge_dir == "in" else [reverse_edge_type(name) for name in names]

    def sample_from_nodes(self, inputs: NodeSamplerInput | Tensor, **kwargs: object) -> Output:
        """Sample the neighbourhood of seeds.

        Args:
            inputs: `NodeSamplerInput`, or ids of nodes.
            **kwargs: ignored (`device`).
        """
        seeds = NodeSamplerInput.cast(inputs)
        unique = _pyg_nodes(seeds)
        out = self._to_glt(self._hops.sample_from_nodes(unique), seeds.input_type)
        out.batch = unique.node if seeds.input_type is None else {seeds.input_type: unique.node}
        return out

    def sample_from_edges(self, inputs: EdgeSamplerInput, **kwargs: object) -> Output:
        """Sample the neighbourhood of links, and of negatives.

        As in GLT, binary negatives are no edges of the graph. Triplet negatives can be edges.

        Args:
            inputs: the links.
            **kwargs: ignored.
        """
        links = EdgeSamplerInput.cast(inputs)
        negatives: NegativeSampling | None = NegativeSampling.cast(links.neg_sampling)
        index = pyg.EdgeSamplerInput(
            None, links.row, links.col, links.label, None, links.input_type
        )
        out = self._hops.sample_from_edges(
            index,
            to_pyg_negatives(negatives),
            strict_negatives=negatives is not None and negatives.is_binary(),
        )
        converted = self._to_glt(out, links.input_type)
        _, *links = out.metadata
        if negatives is not None and negatives.is_triplet():
            names = ["src_index", "dst_pos_index", "dst_neg_index"]
        else:
            names = ["edge_label_index", "edge_label"]
        converted.metadata = dict(zip(names, links, strict=False))
        return converted

    def subgraph(self, inputs: NodeSamplerInput | Tensor) -> SamplerOutput:
        """Return the subgraph of the seeds and of the neighbours that `num_neighbors` draws.

        It has all edges among them. Without `num_neighbors`, it has the seeds alone. Ids are
        ascending.

        Args:
            inputs: `NodeSamplerInput`, or ids of nodes.

        Returns:
            A subgraph whose `metadata` is the position of each seed.

        Raises:
            ValueError: the graph is heterogeneous.
        """
        if self.is_heterogeneous:
            raise ValueError("subgraph() is for homogeneous graphs")
        if self._induced is None:
            hops = [] if self.num_neighbors is None else self.num_neighbors
            self._induced = core.NeighborSampler(
                self._core_graph, hops, subgraph_type="induced", **self._options
            )
        seeds = NodeSamplerInput.cast(inputs)
        out = self._induced.sample_from_nodes(_pyg_nodes(seeds))
        edge = out.edge if self.with_edge else None
        return sorted_subgraph(out.node, (out.row, out.col), edge, seeds.node)

    def sample_one_hop(
        self, input_seeds: Tensor, req_num: int, etype: EdgeType | None = None
    ) -> NeighborOutput:
        """Draw `req_num` neighbours (-1: all) of each seed over an edge type, seed after seed."""
        graph = self.graph[etype] if etype is not None else self.graph  # type: ignore[index]
        one = NeighborSampler(graph, [req_num], self.device, True, seed=self.seed)
        unique, inverse = torch.unique(input_seeds, return_inverse=True)
        out = one.sample_from_nodes(unique)
        assert isinstance(out, SamplerOutput)
        order = torch.argsort(out.col, stable=True)
        counts = torch.bincount(out.col, minlength=len(unique))[: len(unique)]
        starts = counts.cumsum(0) - counts
        taken = counts[inverse]
        shifts = starts[inverse] - (taken.cumsum(0) - taken)
        edges = order[torch.arange(int(taken.sum())) + shifts.repeat_interleave(taken)]
        edge = out.edge[edges] if self.with_edge and out.edge is not None else None
        return NeighborOutput(out.node[out.row[edges]], taken, edge)

    def sample_prob(
        self,
        inputs: NodeSamplerInput | Tensor,
        node_cnt: int | Mapping[NodeType, int] | None = None,
        batch_size: int | None = None,
    ) -> Tensor | dict[NodeType, Tensor]:
        """Estimate the probability that a batch of these seeds touches each node.

        Arguments: see `khop.sampler.NeighborSampler`.

        Returns:
            [num_nodes] floats, or {node type: [num_nodes] floats}.
        """
        seeds = _pyg_nodes(NodeSamplerInput.cast(inputs))
        return self._hops.sample_prob(seeds, node_cnt, batch_size)

    def _to_glt(self, out: Any, input_type: Any) -> Output:
        edge = out.edge if self.with_edge else None
        if not self.is_heterogeneous:
            counts = out.num_sampled_nodes, out.num_sampled_edges
            return SamplerOutput(out.node, out.row, out.col, edge, None, *counts, self.device)
        types = dict(zip(self._core_graph.edge_types, self.edge_types, strict=True))
        nodes = {t: ids for t, ids in out.node.items() if len(ids) or t == input_type}
        drawn = [t for t in types if len(out.row[t])]
        return HeteroSamplerOutput(
            nodes,
            {types[t]: out.row[t] for t in drawn},
            {types[t]: out.col[t] for t in drawn},
            {types[t]: edge[t] for t in drawn} if edge is not None and drawn else None,
            {},
            {t: _counts(n) for t, n in out.num_sampled_nodes.items() if t in nodes},
            {types[t]: _counts(out.num_sampled_edges[t]) for t in drawn},
            self.edge_types,
            input_type,
            self.device,
        )


def _pyg_nodes(seeds: NodeSamplerInput) -> pyg.NodeSamplerInput:
    """Convert seeds to PyG's class. Each seed is kept once, in the order of first appearance."""
    ids = to_int64(seeds.node, "seeds")
    _, first = np.unique(ids, return_index=True)
    unique = torch.from_numpy(ids[np.sort(first)])
    return pyg.NodeSamplerInput(None, unique, input_type=seeds.input_type)


def _counts(per_hop: list[int]) -> Tensor:
    """Return counts per hop as a tensor, without the zeros at the end, as GLT does."""
    kept = len(per_hop)
    while kept > 1 and per_hop[kept - 1] == 0:
        kept -= 1
    return torch.tensor(per_hop[:kept])


def sorted_subgraph(
    nodes: Tensor, ends: tuple[Tensor, Tensor], edge: Tensor | None, seeds: Tensor
) -> SamplerOutput:
    """Make a subgraph with nodes ascending, and edges in the order of the nodes that drew them.

    Args:
        nodes: [num_nodes] ids.
        ends: [num_edges] positions of neighbours, and of the nodes that drew them.
        edge: [num_edges] edge ids, or None.
        seeds: [n] ids whose positions `metadata` gives.
    """
    ids, position = torch.unique(nodes, return_inverse=True)
    row, col = position[ends[0]], position[ends[1]]
    order = torch.argsort(row, stable=True)
    order = order[torch.argsort(col[order], stable=True)]
    return SamplerOutput(
        ids,
        row[order],
        col[order],
        None if edge is None else edge[order],
        device=nodes.device,
        metadata=torch.searchsorted(ids, seeds.to(ids.device)),
    )


class RandomNegativeSampler:
    """Sampler of pairs of nodes that no edge joins.

    Args:
        graph: the graph.
        mode: accepted, not needed.
        edge_dir: accepted, not needed: the topology has it.
    """

    def __init__(self, graph: Graph, mode: str = "CPU", edge_dir: str = "out") -> None:
        del mode, edge_dir
        self._sampler = NeighborSampler(graph, [])

    def sample(self, req_num: int, trials_num: int = 5, padding: bool = False) -> Tensor:
        """Draw random pairs of nodes that no edge joins: [2, req_num] sources and destinations.

        Args:
            req_num: number of pairs.
            trials_num: accepted, not needed: all pairs are free of edges.
            padding: accepted, not needed.

        Raises:
            ValueError: every pair is an edge.
        """
        del trials_num, padding
        anchor = torch.zeros(1, dtype=torch.int64)
        negatives = NegativeSampling("binary", req_num)
        out = self._sampler.sample_from_edges(
            EdgeSamplerInput(anchor, anchor, None, None, negatives)
        )
        pairs: Tensor = out.node[out.metadata["edge_label_index"][:, 1:]]
        return pairs
