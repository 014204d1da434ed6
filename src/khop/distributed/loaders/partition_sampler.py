"""`PartitionSampler`: a sampler over a partitioned graph, for PyG's own loaders.

Runs in trainers and in PyG's worker processes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch_geometric.sampler import NegativeSampling
from torch_geometric.sampler.base import SubgraphType

from khop import _native
from khop.data.info import GraphInfo
from khop.data.steps import run
from khop.distributed.dataset import DistDataset, check_dataset
from khop.distributed.job.worker_group import require_context
from khop.distributed.loaders.sampling_options import info_for
from khop.distributed.partitions.reader import Table
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.sampling.link_sampling import link_sampler
from khop.distributed.stores.edge_lookup import (
    HeteroPartitionSamplerOutput,
    PartitionSamplerOutput,
    StoredEdges,
    remember,
)
from khop.sampler.drawing.engine import Engine
from khop.sampler.drawing.link import Links, LinkSampler, LinkSeeds
from khop.sampler.drawing.view import GraphView
from khop.sampler.link_spec import LinkSpec
from khop.sampler.methods import SamplingMethod
from khop.sampler.pyg.base import PygSampler
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.links import negative_weights
from khop.sampler.pyg.output import SampledSubgraph, SubgraphWriter, number_by_link
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingOptions, SamplingSpec
from khop.typing import Int64Array, NodeType, NumNeighbors


class PartitionSampler(PygSampler):
    """Sampler of k-hop neighbourhoods of a partitioned graph, in the calling process.

        dataset = DistDataset().load('products-parts', partition_idx=rank)
        sampler = PartitionSampler(dataset, [15, 10])
        loader = torch_geometric.loader.NodeLoader(
            (dataset, dataset), sampler, input_nodes=node_split('train_mask'), batch_size=1024)

    Ids are original ids. `khop.sampler.NeighborSampler` draws the same from the whole graph, with
    the same seed and stream, bit for bit. Batches of PyG's loaders have edge attributes, too:
    `khop.distributed.stores.edge_lookup` says how, and has rules for `transform_sampler_output`.
    `DistNeighborLoader` is faster: its sampler processes keep several batches in flight and write
    features where the trainer reads them.

    All trainers create it together. Each of PyG's worker processes opens connections of its own.

    Args:
        data: the trainer's partition.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}, -1 for all neighbours. Or a
            method with fan-outs, `khop.sampler.Labor([15, 10])`.
        replace: draw with replacement.
        subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr: as for
            `khop.sampler.NeighborSampler`. The folder must have been partitioned with the times
            and weights.
        with_edge: return the ids of drawn edges. If False, batches have no edge attributes.
        seed: makes draws reproducible: call i draws the same in all samplers with equal arguments.
            If None, each call takes a key from torch's default generator.
        stream: separates the random numbers of samplers with the same seed. If None, the trainer's
            rank.

    Raises:
        RendezvousError: trainers do not agree or do not arrive.
        TypeError, ValueError: `data` is no `DistDataset`, or an option is malformed.

    Example:
        >>> from torch_geometric.loader import NodeLoader
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> sampler, seeds = PartitionSampler(dataset, [2]), torch.tensor([0])
        >>> next(iter(NodeLoader((dataset, dataset), sampler, input_nodes=seeds))).n_id
        tensor([0, 1, 2])
    """

    output_forms = (PartitionSamplerOutput, HeteroPartitionSamplerOutput)
    _drawer: _PartDrawer

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: NumNeighbors | SamplingMethod,
        replace: bool = False,
        with_edge: bool = True,
        *,
        subgraph_type: SubgraphType
        | Literal["directional", "bidirectional", "induced"] = "directional",
        disjoint: bool = False,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        seed: int | None = None,
        stream: int | None = None,
    ) -> None:
        self.data = check_dataset(data)
        options = SamplingOptions(
            replace, with_edge, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr
        )
        stream = require_context().rank if stream is None else stream
        super().__init__(num_neighbors, options, seed, stream)
        if data.num_partitions > 1:
            data.peers()  # before a worker process is forked; all trainers connect at this point

    def _info_for(self, num_neighbors: NumNeighbors | SamplingMethod) -> GraphInfo:
        return info_for(self.data, num_neighbors, self._options)

    def _make_drawer(self) -> _PartDrawer:
        return _PartDrawer(self.data, self.info, self.spec)

    def _own_ids(self, node_type: NodeType, seeds: Int64Array) -> Int64Array:
        return self.data.to_new_ids(seeds, "seeds", node_type)

    def _times_of(self, node_type: NodeType, seeds: Int64Array) -> Int64Array | None:
        return self.data.times_of(node_type, seeds)

    def _nodes_drawn(self, seeds: SeedSet, key: BatchKey | None) -> SampledSubgraph:
        run_key, batch = self._key(key)
        with self.data.reader.session(self.data.peers) as client:
            engine = self._drawer.engine(client)
            subgraph = run(engine.sample([seeds], run_key, batch), client)
            drawn = self._drawer.written(subgraph, client)
            engine.release(subgraph)
        return drawn

    def _links_drawn(
        self, sampler: LinkSampler, links: Links, key: BatchKey | None
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        run_key, batch = self._key(key)
        with self.data.reader.session(self.data.peers) as client:
            engine = self._drawer.engine(client)
            subgraph, seeds = run(sampler.sample(engine, links, run_key, batch), client)
            drawn = self._drawer.written(subgraph, client)
            engine.release(subgraph)
        number_by_link(drawn, seeds.num_links)
        return drawn, seeds

    def _make_link_sampler(self, spec: LinkSpec, neg: NegativeSampling | None) -> LinkSampler:
        return link_sampler(self.data.reader.part, spec, self.spec.temporal, negative_weights(neg))


class _PartDrawer:
    """Drawer of batches over the trainer's part and its servers, with original ids in the results.

    Args:
        data: the trainer's partition.
        info: description of the graph.
        spec: specification of the draws.
    """

    def __init__(self, data: DistDataset, info: GraphInfo, spec: SamplingSpec) -> None:
        self._data = data
        self._spec = spec
        self._writer = SubgraphWriter([None] * len(info.edge_types), spec)
        self._engine: tuple[PartitionClient | None, Engine] | None = None

    def engine(self, client: PartitionClient | None) -> Engine:
        """Return the sampling engine that requests rows of other parts by `client`.

        A fork has a client of its own, so a separate engine.
        """
        if self._engine is None or self._engine[0] is not client:
            view = GraphView.of_part(self._data.reader.part)
            self._engine = client, Engine(view, self._spec, client)
        return self._engine[1]

    def written(
        self, subgraph: _native.Subgraph, client: PartitionClient | None
    ) -> SampledSubgraph:
        """Convert a drawn subgraph to tensors with original ids, which `client` reads if remote."""
        drawn, reader = self._writer.write(subgraph), self._data.reader
        reads = [
            (Table("node", i, ["id"]), new_ids.numpy()) for i, new_ids in enumerate(drawn.nodes)
        ]
        positions = {i: edge.numpy() for i, edge in enumerate(drawn.edges) if edge is not None}
        reads += [(Table("edge", i, ["edge_id"]), at) for i, at in positions.items()]
        ids = [
            torch.from_numpy(rows[table.names[0]])
            for rows, (table, _) in zip(reader.rows_with(reads, client), reads, strict=True)
        ]
        nodes, edges = ids[: len(drawn.nodes)], list(drawn.edges)
        for (i, at), edge in zip(positions.items(), ids[len(nodes) :], strict=True):
            edges[i] = edge
            remember(edge, StoredEdges(self._data.opened.fingerprint, i, at))
        return drawn._replace(nodes=nodes, edges=edges)
