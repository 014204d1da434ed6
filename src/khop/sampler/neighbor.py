"""The neighbour sampler as PyG sees it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from khop import _native
from khop.channel.pool import BufferPool
from khop.data import Graph
from khop.data.arrays import check_range, to_int64
from khop.sampler.engine import Engine, GraphView
from khop.sampler.hotness import sample_prob
from khop.sampler.source import graph_of
from khop.sampler.spec import SamplingSpec
from khop.typing import NODE, Array, ArrayLike, NodeType

_INT64 = np.dtype(np.int64)


class BatchKey(NamedTuple):
    """What decides the draws of a batch: the key of its epoch, and its index in it."""

    run: int
    batch: int


def next_key(seed: int | None, stream: int, calls: Iterator[int]) -> BatchKey:
    """What decides the draws of a sampler's next call.

    Args:
        seed: of the sampler; None: take one from torch's default generator.
        stream: of the sampler.
        calls: counts the sampler's calls.
    """
    if seed is None:
        drawn = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)
        return BatchKey(int(drawn) & (2**64 - 1), 0)
    worker = torch.utils.data.get_worker_info()
    epoch = 0 if worker is None else 1 + worker.id  # each worker process counts for itself
    return BatchKey(_native.run_key(seed, epoch, stream), next(calls))


class NeighborSampler(BaseSampler):  # type: ignore[misc]
    """Draws k-hop neighbourhoods from a graph in memory; a drop-in for PyG's `NeighborSampler`.

    Pass it as `neighbor_sampler=` to PyG's loaders, or let `khop.loader.NeighborLoader` make one.
    The graph is converted once, in linear time, to 32-bit compressed rows; further memory is about
    12 bytes an edge.

    Args:
        data: a PyG `Data` or `HeteroData` (with `edge_index` or `adj_t`), a pair of PyG's
            (FeatureStore, GraphStore), or a `khop.data.Graph`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.
        subgraph_type: 'directional', the only one so far.
        replace: draw with replacement.
        disjoint, temporal_strategy, time_attr, weight_attr: PyG's options that are still to come.
        is_sorted: accepted; sorting takes linear time and is skipped where the edges are in order.
        share_memory: accepted; the graph is shared by threads, and by forked processes as it is.
        directed: deprecated in PyG; only True.
        sample_direction: 'forward' draws in-neighbours (PyG's direction).
        with_edge: return which edges were drawn.
        seed: makes draws reproducible: call i of this sampler draws what call i of any equal
            sampler draws. Default: each call takes a key from torch's default generator.
        stream: separates samplers of the same seed.

    Raises:
        NotImplementedError: an option that is still to come, by name.
        ValueError, TypeError: malformed `num_neighbors`.
    """

    is_keyed = True  # `sample_from_nodes` takes the key of a batch

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        subgraph_type: Any = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: str = "forward",
        *,
        with_edge: bool = True,
        seed: int | None = None,
        stream: int = 0,
    ) -> None:
        del is_sorted, share_memory
        _refuse_what_is_to_come(
            subgraph_type=(getattr(subgraph_type, "value", subgraph_type), "directional"),
            disjoint=(disjoint, False),
            temporal_strategy=(temporal_strategy, "uniform"),
            time_attr=(time_attr, None),
            weight_attr=(weight_attr, None),
            directed=(directed, True),
            sample_direction=(sample_direction, "forward"),
        )
        self.graph = data if isinstance(data, Graph) else graph_of(data)
        self.replace = replace
        self.with_edge = with_edge
        self.seed = seed
        self.stream = stream
        self.num_neighbors = num_neighbors
        self._calls = itertools.count()
        self._pool = BufferPool()

    @property
    def num_neighbors(self) -> Any:
        """Fan-out of each hop, for each edge type of a heterogeneous graph; may be set."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        edge_types = self.graph.edge_types
        spec = SamplingSpec.create(value, edge_types, self.replace, self.with_edge)
        by_type = {t: list(hops) for t, hops in zip(edge_types, spec.fanouts, strict=False)}
        self._num_neighbors = by_type if self.graph.is_heterogeneous else list(spec.fanouts[0])
        self._engine = Engine(GraphView.of_graph(self.graph), spec)

    @property
    def num_nodes(self) -> Any:
        """Number of nodes; {node type: number} of a heterogeneous graph."""
        return self.graph.num_nodes if self.graph.is_heterogeneous else self.graph.num_nodes[NODE]

    @property
    def edge_permutation(self) -> None:
        """None: `edge` of what this sampler returns are the user's own edge ids."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the kernels' objects, which the other process makes for itself."""
        state = self.__dict__.copy()
        for name in ("_engine", "_pool", "_calls"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a sampler in another process."""
        self.__dict__.update(state)
        self._calls = itertools.count()
        self._pool = BufferPool()
        self.num_neighbors = self._num_neighbors

    def sample_from_nodes(
        self, index: NodeSamplerInput, key: BatchKey | None = None, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draws the neighbourhood of seed nodes.

        Args:
            index: the seeds, as PyG's loaders pass them.
            key: what decides the draws; default: see `seed`.
            **kwargs: none so far.

        Returns:
            Seeds first, then nodes in the order of first appearance; edges grouped by hop. Of a
            heterogeneous graph: the same for each type, and all types are there.

        Raises:
            IndexError: a seed does not exist.
        """
        if kwargs:
            raise TypeError(f"unexpected arguments {list(kwargs)}")
        if index.time is not None:
            raise NotImplementedError("seed times ('input_time') are still to come")
        node_type = self._seed_type(index.input_type)
        seeds = to_int64(index.node, "seeds")
        check_range(seeds, self.graph.num_nodes[node_type], "seeds")
        run, batch = key or next_key(self.seed, self.stream, self._calls)
        place = self.graph.node_types.index(node_type)
        subgraph = self._engine.sample_local([(place, seeds)], run, batch)
        nodes = [self._nodes_of(subgraph, i) for i in range(len(self.graph.node_types))]
        edges = [self._edges_of(subgraph, i) for i in range(len(self.graph.edge_types))]
        num_nodes = [subgraph.nodes_per_hop(i) for i in range(len(nodes))]
        num_edges = [subgraph.edges_per_hop(i) for i in range(len(edges))]
        self._engine.release(subgraph)
        metadata = (index.input_id, None)
        if not self.graph.is_heterogeneous:
            row, col, edge = edges[0]
            return SamplerOutput(
                nodes[0], row, col, edge, None, num_nodes[0], num_edges[0], metadata=metadata
            )
        node_types, edge_types = self.graph.node_types, self.graph.edge_types
        return HeteroSamplerOutput(
            node=dict(zip(node_types, nodes, strict=True)),
            row={t: e[0] for t, e in zip(edge_types, edges, strict=True)},
            col={t: e[1] for t, e in zip(edge_types, edges, strict=True)},
            edge={t: e[2] for t, e in zip(edge_types, edges, strict=True)},
            batch=None,
            num_sampled_nodes=dict(zip(node_types, num_nodes, strict=True)),
            num_sampled_edges=dict(zip(edge_types, num_edges, strict=True)),
            metadata=metadata,
        )

    def _seed_type(self, input_type: NodeType | None) -> NodeType:
        if not self.graph.is_heterogeneous:
            return NODE
        if input_type not in self.graph.num_nodes:
            raise ValueError(
                f"seeds of a heterogeneous graph need a node type of {self.graph.node_types} "
                f"(got {input_type!r})"
            )
        return input_type

    def _nodes_of(self, subgraph: _native.Subgraph, node_type: int) -> Tensor:
        node = self._pool.empty((subgraph.num_nodes(node_type),), _INT64)
        subgraph.write_nodes(node_type, node)
        return torch.from_numpy(node)

    def _edges_of(
        self, subgraph: _native.Subgraph, relation: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        edge_index = self._pool.empty((2, subgraph.num_edges(relation)), _INT64)
        subgraph.write_edge_index(relation, edge_index[0], edge_index[1])
        row, col = torch.from_numpy(edge_index)
        edge = self._edge_ids(subgraph, relation) if self.with_edge else None
        return row, col, edge

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """Still to come."""
        raise NotImplementedError("sampling from edges (link loaders) is still to come")

    def sample_prob(
        self, seeds: ArrayLike, num_nodes: int | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Probability of each node being touched by a batch drawn from `seeds`.

        Args:
            seeds: [num_seeds] node ids (or a PyG `NodeSamplerInput`).
            num_nodes: number of nodes; default: the graph's.
            batch_size: seeds in a batch; default: all of them make one batch.

        Returns:
            [num_nodes] float64. Method: `khop.sampler.hotness`.

        Raises:
            IndexError, TypeError: seeds that do not exist or are no integers.
            ValueError: another number of nodes than the graph's, a batch size below 1.
            NotImplementedError: a heterogeneous graph.
        """
        if isinstance(self._num_neighbors, dict):
            raise NotImplementedError("hotness over several edge types is still to come")
        ids = to_int64(getattr(seeds, "node", seeds), "seeds")
        check_range(ids, self.num_nodes, "seeds")
        if num_nodes is not None and num_nodes != self.num_nodes:
            raise ValueError(f"num_nodes is {num_nodes}, but the graph has {self.num_nodes} nodes")
        csr = self._engine.view.csrs[0]
        return torch.from_numpy(
            sample_prob(csr, self._num_neighbors, ids, self.num_nodes, batch_size, self.replace)
        )

    def _edge_ids(self, subgraph: _native.Subgraph, relation: int) -> Tensor:
        count = subgraph.num_edges(relation)
        positions: Array = self._pool.empty((count,), _INT64)
        subgraph.write_edges(relation, positions)
        edge_ids = self.graph.topologies[self.graph.edge_types[relation]].edge_ids
        if edge_ids is None:
            return torch.from_numpy(positions)
        named = self._pool.empty((count,), edge_ids.dtype)
        _native.gather(edge_ids, positions, named)
        np.copyto(positions, named)
        return torch.from_numpy(positions)


def _refuse_what_is_to_come(**options: tuple[Any, Any]) -> None:
    for name, (given, supported) in options.items():
        if given != supported:
            raise NotImplementedError(
                f"{name}={given!r} is still to come; so far khop samples with {name}={supported!r}"
            )
