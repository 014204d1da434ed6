"""Neighbour sampler with PyG's interface, for graphs in memory. Runs in the trainer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput

from khop.data import Graph
from khop.data.arrays import check_range, to_int64
from khop.data.device import is_cpu
from khop.data.info import GraphInfo
from khop.sampler.device.collect import EdgeNames
from khop.sampler.device.engine import graphs_on
from khop.sampler.drawing.hotness import Draws, Seeds, TypedRows, estimated_prob, spec_of
from khop.sampler.drawing.link import Links, LinkSampler, LinkSeeds
from khop.sampler.drawing.negative import Candidates, NegativeSampler
from khop.sampler.drawing.view import GraphView
from khop.sampler.link_spec import LinkSpec
from khop.sampler.methods import SamplingMethod
from khop.sampler.methods.access import GraphAccess
from khop.sampler.pyg.base import PygSampler
from khop.sampler.pyg.device import (
    DeviceOptions,
    TorchDevice,
    tensors_of,
    wait_and_record_stream,
)
from khop.sampler.pyg.device_drawer import Begun, DeviceDrawer
from khop.sampler.pyg.device_hotness import DeviceDraws
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.pyg.links import negative_weights
from khop.sampler.pyg.output import SampledSubgraph, SubgraphSampler
from khop.sampler.pyg.padded import PadSizes
from khop.sampler.pyg.source import graph_of
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingOptions
from khop.typing import NODE, ArrayLike, Int64Array, NodeType, NumNeighbors


class NeighborSampler(PygSampler):
    """Sampler of k-hop neighbourhoods in memory, a drop-in for PyG's `NeighborSampler`.

    Pass it as `neighbor_sampler=` to PyG's loaders, or let `khop.loader.NeighborLoader` make one.
    The graph is converted once, in linear time, to 32-bit compressed rows. Further memory is about
    12 bytes per edge, 8 more with times and 12 more with weights.

    Args:
        data: a PyG `Data` or `HeteroData` (with `edge_index` or `adj_t`), a pair of PyG's
            (FeatureStore, GraphStore), or a `khop.data.Graph`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}, or a method with fan-outs:
            `khop.sampler.Labor([15, 10])`. -1 takes all neighbours.
        subgraph_type, replace, disjoint, temporal_strategy: see `khop.loader.NeighborLoader`.
        time_attr: attribute of nodes or of edges, integers or floats. Only neighbours (or edges)
            whose time is not later than the seed's are drawn.
        weight_attr: attribute of edges. Neighbours are drawn with probabilities proportional to
            it, one after the other. Neighbours of weight 0 are never drawn, not even by fan-out -1.
        is_sorted: edges are in order of destinations already and, with times, in order of time for
            each destination. They are then checked, not sorted.
        share_memory: ignored. Threads and forked processes share the graph anyway.
        directed: deprecated in PyG. False means subgraph type 'induced'.
        sample_direction: 'forward' draws in-neighbours (PyG's direction), 'backward'
            out-neighbours. Rows and columns of the output are always sources and destinations.
        with_edge: return which edges were drawn.
        seed: makes draws reproducible: call i of this sampler draws what call i of any equal
            sampler draws. If None, each call takes a key from torch's default generator.
        stream: separates samplers of the same seed.
        device: a GPU that draws, and whose memory holds the output: 'cuda:1', or 'cuda' for torch's
            current one. The draws are the same as on the CPU. If 'cpu', the CPU draws. If None, the
            CPU draws, or for a `Graph` of mode 'CUDA' the current GPU.
        device_options: options of the device, such as whether the graph is copied to it.

    Raises:
        RuntimeError: the device cannot be used. The message gives the reason.
        ValueError, TypeError: malformed options, or invalid times or weights.

    Example:
        >>> from torch_geometric.loader import NodeLoader
        >>> sampler = NeighborSampler(data, [2])
        >>> loader = NodeLoader(data, sampler, input_nodes=torch.tensor([0]))
        >>> next(iter(loader)).n_id
        tensor([0, 1, 2])
    """

    _drawer: SubgraphSampler

    def __init__(
        self,
        data: Data | HeteroData | tuple[FeatureStore, GraphStore] | Graph,
        num_neighbors: NumNeighbors | SamplingMethod,
        subgraph_type: Literal["directional", "bidirectional", "induced"] | Enum = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: Literal["forward", "backward"] = "forward",
        *,
        with_edge: bool = True,
        seed: int | None = None,
        stream: int = 0,
        device: str | int | torch.device | None = None,
        device_options: DeviceOptions | None = None,
    ) -> None:
        del share_memory
        if not directed:
            warnings.warn(
                "directed=False is deprecated: pass subgraph_type='induced'", stacklevel=2
            )
            subgraph_type = "induced"
        if sample_direction not in ("forward", "backward"):
            raise ValueError(
                f"sample_direction must be 'forward' or 'backward' (got '{sample_direction}')"
            )
        options = SamplingOptions(
            replace, with_edge, subgraph_type, disjoint, temporal_strategy, time_attr, weight_attr
        )
        if not isinstance(data, Graph):
            data = graph_of(
                data,
                "in" if sample_direction == "forward" else "out",
                time_attr=time_attr,
                weight_attr=options.settled(num_neighbors).weight_attr,
                is_sorted=is_sorted,
            )
        self.graph: Graph = data
        self._device_options = device_options or DeviceOptions.of_graph(data)
        if device is None and data.mode == "CUDA":
            device = "cuda"
        self._device = None if is_cpu(device) else TorchDevice(device)
        self._edge_names: EdgeNames | None = None
        if self._device is not None:
            self._device_graphs = graphs_on(
                self._device.native, GraphView.of_graph(data), self._device_options.graph_mode
            )
        self._backward = sample_direction == "backward"
        super().__init__(num_neighbors, options, seed, stream)

    @property
    def device(self) -> TorchDevice | None:
        """The device that draws. If None, the CPU draws.

        :meta private:
        """
        return self._device

    @property
    def device_options(self) -> DeviceOptions:
        """Options of drawing on a device."""
        return self._device_options

    @property
    def num_nodes(self) -> int | dict[NodeType, int]:
        """Number of nodes. For a heterogeneous graph, a dict of numbers by node type."""
        return self.graph.num_nodes if self.graph.is_heterogeneous else self.graph.num_nodes[NODE]

    def draw_nodes(self, seeds: Sequence[SeedSet], key: BatchKey | None = None) -> SampledSubgraph:
        """Draw the neighbourhood of seeds, a set per node type. If `key` is None, use the next.

        :meta private:
        """
        run, batch = self._key(key)
        return self._drawer.draw_nodes(seeds, run, batch)

    def begin_nodes(
        self, seeds: Sequence[SeedSet], key: BatchKey, pad: PadSizes | None = None
    ) -> Begun:
        """Launch on the device what `draw_nodes` draws, without a wait, padded to these sizes.

        :meta private:
        """
        return self.device_drawer.begin_nodes(seeds, *key, pad)

    def begin_links(
        self, sampler: LinkSampler, links: Links, key: BatchKey, pad: PadSizes | None = None
    ) -> Begun:
        """Launch on the device what `draw_links` draws, padded to these sizes.

        :meta private:
        """
        return self.device_drawer.begin_links(sampler, links, *key, pad)

    def check_all(self) -> None:
        """Wait for padded batches on the device. Raises ValueError if one did not fit its padding.

        :meta private:
        """
        self.device_drawer.check_all()

    @property
    def device_drawer(self) -> DeviceDrawer:
        """The drawer of a sampler with a device.

        :meta private:
        """
        assert isinstance(self._drawer, DeviceDrawer)
        return self._drawer

    def access(self, key: BatchKey) -> GraphAccess:
        """Return what a program (sampling method in Python) sees of the graph, for this key.

        :meta private:
        """
        return self._drawer.access(*key)

    def draw_links(
        self, sampler: LinkSampler, links: Links, key: BatchKey | None = None
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """Draw the neighbourhood of links by a `link_sampler`. If `key` is None, use the next.

        Returns the subgraph, its trees numbered by link, and the positions of the links' ends.

        :meta private:
        """
        run, batch = self._key(key)
        return self._drawer.draw_links(sampler, links, run, batch)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without objects that the other process creates anew.

        Raises:
            TypeError: the sampler draws on a device.
        """
        if self._device is not None:
            raise TypeError(
                "a sampler that draws on a device stays in its process: use threads "
                "(worker_type='thread')"
            )
        return super().__getstate__()

    def _info_for(self, num_neighbors: NumNeighbors | SamplingMethod) -> GraphInfo:
        return self.graph.info

    def _make_drawer(self) -> SubgraphSampler:
        graph, spec = self.graph, self.spec
        if self._device is None:
            return SubgraphSampler(graph, spec, self._backward)
        options = self._device_options
        if self._edge_names is None:  # which edges have ids does not depend on fan-outs
            topologies = enumerate(graph.topologies.values())
            ids = {r: t.edge_ids for r, t in topologies if spec.records_edge(r)}
            self._edge_names = EdgeNames(
                self._device.native,
                {r: of_type for r, of_type in ids.items() if of_type is not None},
                len(graph.edge_types),
                options.graph_mode,
            )
        return DeviceDrawer(
            graph,
            spec,
            self._backward,
            self._device,
            self._device_graphs,
            self._edge_names,
            bool(options.cuda_graph),
        )

    def _times_of(self, node_type: NodeType, seeds: Int64Array) -> Int64Array | None:
        times = self.graph.node_times.get(node_type)
        return None if times is None else times[seeds]

    def _nodes_drawn(self, seeds: SeedSet, key: BatchKey | None) -> SampledSubgraph:
        drawn = self.draw_nodes([seeds], key)
        wait_and_record_stream(tensors_of(drawn), drawn.written)
        return drawn

    def _links_drawn(
        self, sampler: LinkSampler, links: Links, key: BatchKey | None
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        drawn, seeds = self.draw_links(sampler, links, key)
        wait_and_record_stream([*tensors_of(drawn), *seeds.index.values()], drawn.written)
        return drawn, seeds

    def _make_link_sampler(self, spec: LinkSpec, neg: NegativeSampling | None) -> LinkSampler:
        if neg is None:
            return LinkSampler(spec)
        weights = negative_weights(neg)
        dst = self._candidates(spec.dst_type, weights.get("dst_weight"), "dst_weight")
        src = None
        if spec.mode == "binary":
            src = self._candidates(spec.src_type, weights.get("src_weight"), "src_weight")
        return LinkSampler(spec, NegativeSampler(dst, src))

    def _candidates(self, type_index: int, weights: ArrayLike | None, name: str) -> Candidates:
        node_type = self.graph.node_types[type_index]
        times = self.graph.node_times.get(node_type)
        return Candidates(self.graph.num_nodes[node_type], weights, times, name)

    def sample_prob(
        self,
        seeds: ArrayLike | NodeSamplerInput,
        num_nodes: int | Tensor | Mapping[NodeType, int | Tensor] | None = None,
        batch_size: int | None = 1024,
    ) -> Tensor | dict[NodeType, Tensor]:
        """Estimate the probability that a batch drawn from `seeds` touches each node.

        Batches are drawn by the sampler's own method. For methods that are drawn by programs
        (`khop.sampler.PoissonLadies`, ...) nodes that none of up to 512 batches touches get 0.

        Args:
            seeds: [num_seeds] node ids, or a PyG `NodeSamplerInput`, whose `input_type` is the
                seeds' node type in a heterogeneous graph.
            num_nodes: number of nodes, or {node type: number of nodes}, for comparison with the
                graph. Tensors of these lengths are accepted, as in GraphLearn-for-PyTorch.
            batch_size: seeds in a batch of training, by default 1024. If None, all seeds make one
                batch, which touches most nodes, unlike batches of training. A sampler with a device
                leaves such a batch to the CPU. It draws others on the device, with the CPU's bits.

        Returns:
            [num_nodes] float64, one for each node type of a heterogeneous graph. Method:
            `khop.sampler.drawing.hotness`.

        Raises:
            IndexError, TypeError: seeds that do not exist or are no integers.
            ValueError: a node type or `num_nodes` that are not the graph's, a batch size below 1,
                or a sampler that draws by weight or by time.
        """
        spec = self.spec
        if spec.temporal or any(spec.weighted):
            raise ValueError(
                "the hotness of nodes is that of uniform draws: make a sampler without time_attr "
                "and weight_attr for it"
            )
        counts, view = self.graph.num_nodes, self._drawer.view
        node_type = self._seed_type(getattr(seeds, "input_type", None))
        ids = to_int64(getattr(seeds, "node", seeds), "seeds")
        check_range(ids, counts[node_type], "seeds")
        _check_num_nodes(num_nodes, counts)
        rows = TypedRows(view.num_nodes, view.relations, view.csrs, view.node_types)
        fanouts = spec.fanouts[: len(view.relations)]
        options = fanouts, self.replace, spec.method
        if self._device is None or batch_size is None:
            draws = Draws(rows, spec_of(*options))
        else:  # as large as batches of training
            graphs = self._device_graphs
            draws = DeviceDraws(self.graph, spec_of(*options), self._device, graphs)
        of_seeds = Seeds(self.graph.node_types.index(node_type), ids, batch_size)
        probs = estimated_prob(draws, rows, fanouts, of_seeds, self.replace, spec.method)
        by_type = dict(zip(counts, map(torch.from_numpy, probs), strict=True))
        return by_type if self.graph.is_heterogeneous else by_type[NODE]


def _check_num_nodes(
    expected: int | Tensor | Mapping[NodeType, int | Tensor] | None, counts: Mapping[NodeType, int]
) -> None:
    """Raise ValueError if the user's numbers of nodes (`expected`) differ from the graph's."""
    if expected is None:
        return
    by_type = expected if isinstance(expected, Mapping) else {NODE: expected}
    for node_type, value in by_type.items():
        # A tensor is a number, or as long as there are nodes.
        count = len(value) if isinstance(value, Tensor) and value.ndim else int(value)
        if counts.get(node_type) != count:
            raise ValueError(
                f"num_nodes is {count} of type '{node_type}', but the graph has {dict(counts)}"
            )
