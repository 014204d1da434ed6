"""`PartitionSampler`: a sampler over a partitioned graph, for PyG's own loaders."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from khop import _native
from khop.distributed.context import require_context
from khop.distributed.dataset import DistDataset
from khop.distributed.peers import run
from khop.distributed.sampled import (
    HeteroPartitionSamplerOutput,
    PartitionSamplerOutput,
    StoredEdges,
    remember,
)
from khop.distributed.transport import PartitionClient
from khop.sampler.engine import Engine, GraphView
from khop.sampler.neighbor import BatchKey, next_key
from khop.sampler.spec import SamplingSpec
from khop.typing import NODE, NodeType


class PartitionSampler(BaseSampler):  # type: ignore[misc]
    """Draws k-hop neighbourhoods from a partitioned graph, in the process that asks.

        dataset = DistDataset().load('products-parts', partition_idx=rank)
        sampler = PartitionSampler(dataset, [15, 10])
        loader = torch_geometric.loader.NodeLoader(
            (dataset, dataset), sampler, input_nodes=node_split('train_mask'), batch_size=1024)

    Ids are original ids. What is drawn equals what `khop.sampler.NeighborSampler` draws from the
    whole graph with the same seed and stream, bit for bit. Batches of PyG's loaders carry edge
    attributes as well (`khop.distributed.sampled` says how, and what a `transform_sampler_output`
    must heed). `DistNeighborLoader` is faster: its samplers are processes of their own that keep
    several batches in flight and write features where the trainer reads them.

    All trainers make it together. In PyG's worker processes each has connections of its own.

    Args:
        data: the trainer's partition.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.
        replace: draw with replacement.
        with_edge: return which edges were drawn; False: batches have no edge attributes.
        seed: makes draws reproducible: call i of this sampler draws what call i of any equal
            sampler draws. Default: each call takes a key from torch's default generator.
        stream: separates samplers of the same seed; default: the trainer's rank.

    Raises:
        RendezvousError: trainers do not agree or do not arrive.
        TypeError, ValueError: no `DistDataset`, malformed `num_neighbors`.
    """

    is_keyed = True  # `sample_from_nodes` takes the key of a batch

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Any,
        replace: bool = False,
        with_edge: bool = True,
        *,
        seed: int | None = None,
        stream: int | None = None,
    ) -> None:
        if not isinstance(data, DistDataset):
            raise TypeError(f"data must be a DistDataset (got '{type(data).__name__}')")
        self.data = data
        self.replace = replace
        self.with_edge = with_edge
        self.seed = seed
        self.stream = require_context().rank if stream is None else stream
        self.num_neighbors = num_neighbors
        self._calls = itertools.count()
        if data.num_partitions > 1:
            data.peers()  # before a worker process is forked, and while all trainers are here

    @property
    def num_neighbors(self) -> Any:
        """Fan-out of each hop, for each edge type of a heterogeneous graph; may be set."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        meta = self.data.meta
        edge_types = [t.name for t in meta.edge_types]
        self._spec = SamplingSpec.create(value, edge_types, self.replace, self.with_edge)
        hops = [list(fanouts) for fanouts in self._spec.fanouts]
        by_type = dict(zip(edge_types, hops, strict=False))
        self._num_neighbors = by_type if meta.heterogeneous else hops[0]
        self._engine: tuple[PartitionClient | None, Engine] | None = None

    @property
    def edge_permutation(self) -> None:
        """None: `edge` of what this sampler returns are original edge ids."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the kernels' objects, which the other process makes for itself."""
        state = self.__dict__.copy()
        for name in ("_engine", "_calls"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a sampler in another process."""
        self.__dict__.update(state)
        self._calls = itertools.count()
        self._engine = None

    def sample_from_nodes(
        self, index: NodeSamplerInput, key: BatchKey | None = None, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draws the neighbourhood of seed nodes.

        Args:
            index: the seeds, as PyG's loaders pass them.
            key: what decides the draws; default: see `seed`.
            **kwargs: none so far.

        Returns:
            As `khop.sampler.NeighborSampler.sample_from_nodes`, in original ids.

        Raises:
            IndexError: a seed does not exist.
            PartitionUnavailableError: the server of another partition cannot be reached.
        """
        if kwargs:
            raise TypeError(f"unexpected arguments {list(kwargs)}")
        if index.time is not None:
            raise NotImplementedError("seed times ('input_time') are still to come")
        node_type = self._seed_type(index.input_type)
        seeds = self.data.to_new_ids(index.node, "seeds", node_type)
        place = [t.name for t in self.data.meta.node_types].index(node_type)
        run_key, batch = key or next_key(self.seed, self.stream, self._calls)
        with self.data.reader.session(self.data.peers) as client:
            engine = self._engine_of(client)
            subgraph = run(engine.sample([(place, seeds)], run_key, batch), client)
            out = self._output(subgraph, client, (index.input_id, None))
            engine.release(subgraph)
        return out

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """Still to come."""
        raise NotImplementedError("sampling from edges (link loaders) is still to come")

    def _seed_type(self, input_type: NodeType | None) -> NodeType:
        names = [t.name for t in self.data.meta.node_types]
        if not self.data.meta.heterogeneous:
            return NODE
        if input_type not in names:
            raise ValueError(
                f"seeds of a heterogeneous graph need a node type of {names} (got {input_type!r})"
            )
        return input_type

    def _engine_of(self, client: PartitionClient | None) -> Engine:
        """The engine that asks a client: a forked process has another than its parent."""
        if self._engine is None or self._engine[0] is not client:
            view = GraphView.of_part(self.data.reader.part)
            self._engine = client, Engine(view, self._spec, client)
        return self._engine[1]

    def _output(
        self, subgraph: _native.Subgraph, client: PartitionClient | None, metadata: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        meta, reader = self.data.meta, self.data.reader
        node_types = [t.name for t in meta.node_types]
        edge_types = [t.name for t in meta.edge_types]
        new_ids = [_nodes_of(subgraph, i) for i in range(len(node_types))]
        wanted = [(reader.table("node", i, ["id"]), ids.numpy()) for i, ids in enumerate(new_ids)]
        if self.with_edge:
            wanted += [
                (reader.table("edge", i, ["edge_id"]), _edges_of(subgraph, i).numpy())
                for i in range(len(edge_types))
            ]
        ids = [
            torch.from_numpy(rows[table.names[0]])
            for rows, (table, _) in zip(reader.rows_with(wanted, client), wanted, strict=True)
        ]
        nodes = dict(zip(node_types, ids, strict=False))
        edges: dict[Any, Any] = dict.fromkeys(edge_types)
        for i, edge in enumerate(ids[len(node_types) :]):
            edges[edge_types[i]] = edge
            positions = wanted[len(node_types) + i][1]
            remember(edge, StoredEdges(self.data.opened.fingerprint, i, positions))
        ends = {t: _ends_of(subgraph, i) for i, t in enumerate(edge_types)}
        num_nodes = {t: subgraph.nodes_per_hop(i) for i, t in enumerate(node_types)}
        num_edges = {t: subgraph.edges_per_hop(i) for i, t in enumerate(edge_types)}
        if meta.heterogeneous:
            return HeteroPartitionSamplerOutput(
                node=nodes,
                row={t: row for t, (row, _) in ends.items()},
                col={t: col for t, (_, col) in ends.items()},
                edge=edges,
                batch=None,
                num_sampled_nodes=num_nodes,
                num_sampled_edges=num_edges,
                metadata=metadata,
            )
        (edge_type,) = edge_types
        return PartitionSamplerOutput(
            nodes[NODE],
            *ends[edge_type],
            edges[edge_type],
            None,
            num_nodes[NODE],
            num_edges[edge_type],
            metadata=metadata,
        )


def _nodes_of(subgraph: _native.Subgraph, node_type: int) -> torch.Tensor:
    """New ids of the sampled nodes."""
    node = torch.empty(subgraph.num_nodes(node_type), dtype=torch.int64)
    subgraph.write_nodes(node_type, node.numpy())
    return node


def _edges_of(subgraph: _native.Subgraph, relation: int) -> torch.Tensor:
    """Positions of the sampled edges among the stored."""
    edge = torch.empty(subgraph.num_edges(relation), dtype=torch.int64)
    subgraph.write_edges(relation, edge.numpy())
    return edge


def _ends_of(subgraph: _native.Subgraph, relation: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of the sampled edges' sources and destinations."""
    edge_index = torch.empty((2, subgraph.num_edges(relation)), dtype=torch.int64)
    subgraph.write_edge_index(relation, edge_index[0].numpy(), edge_index[1].numpy())
    return edge_index[0], edge_index[1]
