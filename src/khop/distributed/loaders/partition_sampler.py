"""`PartitionSampler`: a sampler over a partitioned graph, for PyG's own loaders.

Runs in trainers and in PyG's worker processes.
"""

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
from khop.data.arrays import check_range, to_int64
from khop.distributed.dataset import DistDataset
from khop.distributed.job.context import require_context
from khop.distributed.loaders.link_inputs import negative_weights
from khop.distributed.loaders.link_neighbor_loader import link_spec
from khop.distributed.loaders.sampling_options import sampling_spec, seed_times
from khop.distributed.partitions.shared_client import run
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.sampling.link_sampling import link_sampler
from khop.distributed.stores.edge_lookup import (
    HeteroPartitionSamplerOutput,
    PartitionSamplerOutput,
    StoredEdges,
    remember,
)
from khop.sampler.arguments import check_key_part, check_request
from khop.sampler.engine import Engine
from khop.sampler.link import Links, LinkSampler
from khop.sampler.link_spec import ExcludeSeedEdges, LinkSpec
from khop.sampler.methods import as_method
from khop.sampler.neighbor import BatchKey, next_key
from khop.sampler.pyg_links import LinkOptions, link_metadata, number_by_link
from khop.sampler.requests import SeedSet
from khop.sampler.view import GraphView
from khop.typing import EDGE, NODE, EdgeType, NodeType


class PartitionSampler(BaseSampler):  # type: ignore[misc]
    """Sampler of k-hop neighbourhoods of a partitioned graph, in the calling process.

        dataset = DistDataset().load('products-parts', partition_idx=rank)
        sampler = PartitionSampler(dataset, [15, 10])
        loader = torch_geometric.loader.NodeLoader(
            (dataset, dataset), sampler, input_nodes=node_split('train_mask'), batch_size=1024)

    Ids are original ids. Draws equal those of `khop.sampler.NeighborSampler` on the whole graph
    with the same seed and stream, bit for bit. Batches of PyG's loaders have edge attributes as
    well (`khop.distributed.stores.edge_lookup`, also for the rules of `transform_sampler_output`).
    `DistNeighborLoader` is faster: its sampler processes keep several batches in flight and write
    features where the trainer reads them.

    All trainers make it together. Each of PyG's worker processes opens connections of its own.

    Args:
        data: the trainer's partition.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours. Or a
            method with such, `khop.sampler.Labor([15, 10])`.
        replace: draw with replacement.
        subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr: as for
            `khop.sampler.NeighborSampler`; times and weights are those that the folder was
            partitioned with.
        with_edge: return the ids of drawn edges. If False, batches have no edge attributes.
        seed: makes draws reproducible: call i of this sampler draws what call i of any equal
            sampler draws. If None, each call takes a key from torch's default generator.
        stream: separates the random numbers of samplers with the same seed. If None, the trainer's
            rank.

    Raises:
        RendezvousError: trainers do not agree or do not arrive.
        TypeError, ValueError: no `DistDataset`, malformed options.

    Example:
        >>> from torch_geometric.loader import NodeLoader
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> sampler, seeds = PartitionSampler(dataset, [2]), torch.tensor([0])
        >>> next(iter(NodeLoader((dataset, dataset), sampler, input_nodes=seeds))).n_id
        tensor([0, 1, 2])
    """

    is_keyed = True  # `sample_from_nodes` takes the key of a batch

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: Any,
        replace: bool = False,
        with_edge: bool = True,
        *,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        seed: int | None = None,
        stream: int | None = None,
    ) -> None:
        if not isinstance(data, DistDataset):
            raise TypeError(f"data must be a DistDataset (got '{type(data).__name__}')")
        self.data = data
        self.replace, _ = as_method(num_neighbors).settle(replace, weight_attr)
        self.with_edge = with_edge
        self._options = {
            "subgraph_type": subgraph_type,
            "disjoint": disjoint,
            "temporal_strategy": temporal_strategy,
            "time_attr": time_attr,
            "weight_attr": weight_attr,
        }
        for name, value in (("seed", seed), ("stream", stream)):
            check_key_part(name, value)
        self.seed = seed
        self.stream = require_context().rank if stream is None else stream
        self.num_neighbors = num_neighbors
        self._calls = itertools.count()
        if data.num_partitions > 1:
            data.peers()  # before a worker process is forked; all trainers connect at this point

    @property
    def num_neighbors(self) -> Any:
        """Fan-out of each hop, for each edge type of a heterogeneous graph; may be set."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        meta = self.data.meta
        edge_types = [t.name for t in meta.edge_types]
        self._spec = sampling_spec(
            self.data, value, replace=self.replace, with_edge=self.with_edge, **self._options
        )
        hops = [list(fanouts) for fanouts in self._spec.fanouts]
        by_type = dict(zip(edge_types, hops, strict=False))
        self._num_neighbors = by_type if meta.heterogeneous else hops[0]
        self._engine: tuple[PartitionClient | None, Engine] | None = None
        self._links: tuple[EdgeType | None, LinkOptions, LinkSampler] | None = None

    @property
    def edge_permutation(self) -> None:
        """None: `edge` of this sampler's outputs holds original edge ids."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the kernels' objects, which the other process recreates."""
        state = self.__dict__.copy()
        for name in ("_engine", "_links", "_calls"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a sampler in another process."""
        self.__dict__.update(state)
        self._calls = itertools.count()
        self._engine = self._links = None

    def sample_from_nodes(
        self, index: NodeSamplerInput, key: BatchKey | None = None, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbourhood of seed nodes.

        Args:
            index: the seeds, as PyG's loaders pass them.
            key: key of the draws. If None, derived from `seed`.
            **kwargs: must be empty.

        Returns:
            As `khop.sampler.NeighborSampler.sample_from_nodes`, in original ids.

        Raises:
            IndexError: a seed does not exist.
            PartitionUnavailableError: the server of another partition cannot be reached.
        """
        if kwargs:
            raise TypeError(f"unexpected arguments {list(kwargs)}")
        check_request(index, NodeSamplerInput)
        node_type = self._seed_type(index.input_type)
        seeds = self.data.to_new_ids(index.node, "seeds", node_type)
        times = None
        if self._spec.temporal:
            times = seed_times(self.data, node_type, seeds, index.time, "input_time")
        elif index.time is not None:
            raise ValueError("seeds have times ('input_time'): pass time_attr to the sampler, too")
        place = [t.name for t in self.data.meta.node_types].index(node_type)
        run_key, batch = key or next_key(self.seed, self.stream, self._calls)
        with self.data.reader.session(self.data.peers) as client:
            engine = self._engine_of(client)
            subgraph = run(engine.sample([SeedSet(place, seeds, times)], run_key, batch), client)
            out = self._output(subgraph, client, (index.input_id, index.time))
            engine.release(subgraph)
        return out

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        key: BatchKey | None = None,
        *,
        strict_negatives: bool = False,
        exclude_seed_edges: ExcludeSeedEdges = False,
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbourhood of the ends of links, and of negatives.

        Args:
            index: the links, as PyG's loaders pass them.
            neg_sampling: PyG's description of negatives.
            key: key of the draws. If None, derived from `seed`.
            strict_negatives: draw only negatives that are not edges of the graph, in any partition.
            exclude_seed_edges: leave the links out of the neighbourhood.

        Returns:
            As `khop.sampler.NeighborSampler.sample_from_edges`, in original ids.

        Raises:
            IndexError: an end of a link does not exist.
            ValueError: options that contradict one another; no strict negative exists.
            PartitionUnavailableError: the server of another partition cannot be reached.
        """
        options = LinkOptions(
            NegativeSampling.cast(neg_sampling), strict_negatives, exclude_seed_edges
        )
        check_request(index, EdgeSamplerInput)
        sampler = self._link_sampler(index.input_type, options)
        links = self._links_of(index, sampler.spec)
        run_key, batch = key or next_key(self.seed, self.stream, self._calls)
        with self.data.reader.session(self.data.peers) as client:
            engine = self._engine_of(client)
            subgraph, seeds = run(sampler.sample(engine, links, run_key, batch), client)
            out = self._output(subgraph, client, link_metadata(index, sampler.spec, seeds))
            engine.release(subgraph)
        number_by_link(out, seeds.num_links)
        return out

    def check_link_options(self, link_type: EdgeType | None, options: LinkOptions) -> None:
        """Raise the errors that batches of links of a type would raise for these options."""
        self._link_sampler(link_type, options)

    def _link_sampler(self, link_type: EdgeType | None, options: LinkOptions) -> LinkSampler:
        kept = self._links
        # Negatives are compared by identity: the weights in them, already in tables, are not.
        if (
            kept is None
            or kept[1].neg_sampling is not options.neg_sampling
            or (kept[0], *kept[1][1:]) != (link_type, *options[1:])
        ):
            named = EDGE if link_type is None else link_type
            negatives = options.neg_sampling
            spec = link_spec(
                self.data, self._spec, named, negatives, options.strict, options.exclude
            )
            weights = negative_weights(self.data, named, negatives)
            made = link_sampler(self.data.reader.part, spec, self._spec.temporal, weights)
            kept = self._links = link_type, options, made
        return kept[2]

    def _links_of(self, index: EdgeSamplerInput, spec: LinkSpec) -> Links:
        types = self.data.meta.node_types
        src, dst = to_int64(index.row, "sources"), to_int64(index.col, "destinations")
        check_range(src, types[spec.src_type].count, "sources of links")
        check_range(dst, types[spec.dst_type].count, "destinations of links")
        if self._spec.temporal != (index.time is not None):
            raise ValueError("times of links and time_attr belong together: pass both or neither")
        times = None
        if index.time is not None:
            place = types[spec.dst_type].name
            times = seed_times(self.data, place, dst, index.time, "edge_label_time")
        return Links(src, dst, times)

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
        """Return the engine that uses a client; a fork has another client than its parent."""
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
        recorded = [i for i in range(len(edge_types)) if self._spec.records_edge(i)]
        wanted += [
            (reader.table("edge", i, ["edge_id"]), _edges_of(subgraph, i).numpy()) for i in recorded
        ]
        ids = [
            torch.from_numpy(rows[table.names[0]])
            for rows, (table, _) in zip(reader.rows_with(wanted, client), wanted, strict=True)
        ]
        nodes = dict(zip(node_types, ids, strict=False))
        edges: dict[Any, Any] = dict.fromkeys(edge_types)
        for i, edge, (_, positions) in zip(
            recorded, ids[len(node_types) :], wanted[len(node_types) :], strict=True
        ):
            edges[edge_types[i]] = edge
            remember(edge, StoredEdges(self.data.opened.fingerprint, i, positions))
        ends = {t: _ends_of(subgraph, i) for i, t in enumerate(edge_types)}
        num_nodes = num_edges = batch = None
        if self._spec.counts_hops:
            num_nodes = {t: subgraph.nodes_per_hop(i) for i, t in enumerate(node_types)}
            num_edges = {t: subgraph.edges_per_hop(i) for i, t in enumerate(edge_types)}
        if self._spec.disjoint:
            batch = {t: _trees_of(subgraph, i) for i, t in enumerate(node_types)}
        if meta.heterogeneous:
            return HeteroPartitionSamplerOutput(
                node=nodes,
                row={t: row for t, (row, _) in ends.items()},
                col={t: col for t, (_, col) in ends.items()},
                edge=edges,
                batch=batch,
                num_sampled_nodes=num_nodes,
                num_sampled_edges=num_edges,
                metadata=metadata,
            )
        (edge_type,) = edge_types
        return PartitionSamplerOutput(
            nodes[NODE],
            *ends[edge_type],
            edges[edge_type],
            batch and batch[NODE],
            num_nodes and num_nodes[NODE],
            num_edges and num_edges[edge_type],
            metadata=metadata,
        )


def _nodes_of(subgraph: _native.Subgraph, node_type: int) -> torch.Tensor:
    """Return the new ids of the sampled nodes."""
    node = torch.empty(subgraph.num_nodes(node_type), dtype=torch.int64)
    subgraph.write_nodes(node_type, node.numpy())
    return node


def _trees_of(subgraph: _native.Subgraph, node_type: int) -> torch.Tensor:
    """Return the seed index (PyG's `batch`) of the sampled nodes of a disjoint batch."""
    tree = torch.empty(subgraph.num_nodes(node_type), dtype=torch.int64)
    subgraph.write_trees(node_type, tree.numpy())
    return tree


def _edges_of(subgraph: _native.Subgraph, relation: int) -> torch.Tensor:
    """Return the storage positions of the sampled edges."""
    edge = torch.empty(subgraph.num_edges(relation), dtype=torch.int64)
    subgraph.write_edges(relation, edge.numpy())
    return edge


def _ends_of(subgraph: _native.Subgraph, relation: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sources and destinations of the sampled edges, in the batch's numbering."""
    edge_index = torch.empty((2, subgraph.num_edges(relation)), dtype=torch.int64)
    subgraph.write_edge_index(relation, edge_index[0].numpy(), edge_index[1].numpy())
    return edge_index[0], edge_index[1]
