"""Neighbour sampler with PyG's interface, for graphs in memory. Runs in the trainer."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
from khop.data import Graph
from khop.data.arrays import check_range, to_int64
from khop.sampler.arguments import check_key_part, check_request
from khop.sampler.collect_device import EdgeNames
from khop.sampler.device import (
    DeviceDrawer,
    DeviceOptions,
    TorchDevice,
    names_on,
    tensors_of,
    wait_and_record_stream,
)
from khop.sampler.device_engine import graphs_on
from khop.sampler.drawer import SubgraphSampler
from khop.sampler.hotness import Seeds, TypedRows, sample_prob
from khop.sampler.link import Links, LinkSampler, LinkSeeds
from khop.sampler.link_spec import ExcludeSeedEdges
from khop.sampler.methods import as_method
from khop.sampler.pyg_links import LinkOptions, LinkSamplers, link_metadata, links_of
from khop.sampler.pyg_output import SampledSubgraph, to_pyg
from khop.sampler.requests import SeedSet
from khop.sampler.seed_times import seed_times
from khop.sampler.source import graph_of
from khop.sampler.spec import SamplingSpec
from khop.sampler.view import GraphView
from khop.typing import NODE, ArrayLike, EdgeType, NodeType


class BatchKey(NamedTuple):
    """Random key of a batch: the key of its epoch, and its index in the epoch."""

    run: int
    batch: int


def next_key(seed: int | None, stream: int, calls: Iterator[int]) -> BatchKey:
    """Return the random key of a sampler's next call.

    Args:
        seed: seed of the sampler. If None, a key from torch's default generator.
        stream: stream of the sampler.
        calls: counts the sampler's calls.
    """
    if seed is None:
        drawn = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)
        return BatchKey(int(drawn) & (2**64 - 1), 0)
    worker = torch.utils.data.get_worker_info()
    epoch = 0 if worker is None else 1 + worker.id  # each worker process has its own count
    return BatchKey(_native.run_key(seed, epoch, stream), next(calls))


class NeighborSampler(BaseSampler):  # type: ignore[misc]
    """Sampler of k-hop neighbourhoods in memory; a drop-in for PyG's `NeighborSampler`.

    Pass it as `neighbor_sampler=` to PyG's loaders, or let `khop.loader.NeighborLoader` make one.
    The graph is converted once, in linear time, to 32-bit compressed rows; further memory is about
    12 bytes an edge, 8 more with times and 12 more with weights.

    Args:
        data: a PyG `Data` or `HeteroData` (with `edge_index` or `adj_t`), a pair of PyG's
            (FeatureStore, GraphStore), or a `khop.data.Graph`.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours. Or a
            method with such, `khop.sampler.Labor([15, 10])`.
        subgraph_type: 'directional' (the drawn edges), 'bidirectional' (and their reverses) or
            'induced' (all edges among the drawn nodes).
        replace: draw with replacement.
        disjoint: give each seed a separate subgraph, numbered in `batch`; temporal sampling always
            does.
        temporal_strategy: 'uniform', or 'last': the latest neighbours.
        time_attr: attribute of nodes or of edges; only neighbours (or edges) whose time is not
            later than the seed's are drawn. Integers or floats.
        weight_attr: attribute of edges; neighbours are drawn with probabilities proportional to
            it, one after the other. A neighbour of weight 0 is never drawn, also not by -1.
        is_sorted: edges are in order of destinations already and, with times, in order of time for
            each destination. They are not sorted then, but checked.
        share_memory: ignored; threads and forked processes share the graph anyway.
        directed: deprecated in PyG; False is subgraph type 'induced'.
        sample_direction: 'forward' draws in-neighbours (PyG's direction), 'backward'
            out-neighbours; rows and columns of the output are always sources and destinations.
        with_edge: return which edges were drawn.
        seed: makes draws reproducible: call i of this sampler draws what call i of any equal
            sampler draws. If None, each call takes a key from torch's default generator.
        stream: separates samplers of the same seed.
        device: a GPU that draws, and whose memory holds the output: 'cuda:1', or 'cuda' for torch's
            current one. The draws are the same as on the CPU. If None, the CPU; for a `Graph` of
            mode 'CUDA' the current GPU.
        device_options: whether the graph is copied to the device, and other options; see
            `DeviceOptions`.

    Raises:
        RuntimeError: the device cannot be used; the message gives the reason.
        ValueError, TypeError: malformed options; invalid times or weights.

    Example:
        >>> from torch_geometric.loader import NodeLoader
        >>> sampler = NeighborSampler(data, [2])
        >>> loader = NodeLoader(data, sampler, input_nodes=torch.tensor([0]))
        >>> next(iter(loader)).n_id
        tensor([0, 1, 2])
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
        device: Any = None,
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
        replace, weight_attr = as_method(num_neighbors).settle(replace, weight_attr)
        if not isinstance(data, Graph):
            data = graph_of(
                data,
                "in" if sample_direction == "forward" else "out",
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
            )
        self.graph: Graph = data
        self._device_options = device_options or DeviceOptions.of_graph(data)
        if device is None and data.mode == "CUDA":
            device = "cuda"
        self._device = None if device is None else TorchDevice(device)
        self._edge_names: EdgeNames | None = None
        if self._device is not None:
            self._device_graphs = graphs_on(
                self._device.native, GraphView.of_graph(data), self._device_options.graph_mode
            )
        self._backward = sample_direction == "backward"
        self._subgraph_type = subgraph_type
        self._disjoint = disjoint
        self._temporal_strategy = temporal_strategy
        self.replace = replace
        self._weight_attr = weight_attr
        self.with_edge = with_edge
        for name, value in (("seed", seed), ("stream", stream)):
            check_key_part(name, value)
        self.seed = seed
        self.stream = stream
        self.num_neighbors = num_neighbors
        self._calls = itertools.count()

    @property
    def device(self) -> TorchDevice | None:
        """The device that draws. If None, the CPU draws."""
        return self._device

    @property
    def device_options(self) -> DeviceOptions:
        """Options of drawing on a device."""
        return self._device_options

    @property
    def num_neighbors(self) -> Any:
        """Fan-out of each hop, for each edge type of a heterogeneous graph; may be set."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        graph, method = self.graph, as_method(value)
        _, weight_attr = method.settle(self.replace, self._weight_attr)
        if weight_attr is not None and not any(graph.is_weighted):
            raise ValueError(
                f"the graph has no weights '{weight_attr}' to draw by: make a sampler with them"
            )
        spec = SamplingSpec.create(
            method,
            graph.edge_types,
            self.replace,
            self.with_edge,
            subgraph_type=self._subgraph_type,
            disjoint=self._disjoint,
            temporal_strategy=self._temporal_strategy,
            temporal=graph.is_temporal,
            weighted=graph.is_weighted,
            heterogeneous=graph.is_heterogeneous,
        )
        self._method = method
        by_type = {t: list(hops) for t, hops in zip(graph.edge_types, spec.fanouts, strict=False)}
        self._num_neighbors = by_type if graph.is_heterogeneous else list(spec.fanouts[0])
        if self._device is None:
            self._drawer = SubgraphSampler(graph, spec, self._backward)
        else:
            as_graph = self._device_options.cuda_graph
            if self._edge_names is None:  # which edges have ids does not depend on fan-outs
                mode = self._device_options.graph_mode
                self._edge_names = names_on(self._device, graph, spec, mode)
            self._drawer = DeviceDrawer(
                graph,
                spec,
                self._backward,
                self._device,
                self._device_graphs,
                self._edge_names,
                as_graph,
            )
        self._link_samplers = LinkSamplers(graph, spec.disjoint)

    @property
    def spec(self) -> SamplingSpec:
        """Fan-outs and options of the draws."""
        return self._drawer.spec

    @property
    def num_nodes(self) -> Any:
        """Number of nodes; {node type: number} of a heterogeneous graph."""
        return self.graph.num_nodes if self.graph.is_heterogeneous else self.graph.num_nodes[NODE]

    @property
    def disjoint(self) -> bool:
        """True if each seed has a separate subgraph."""
        return self._drawer.spec.disjoint

    @property
    def is_temporal(self) -> bool:
        """True if each seed sees the graph at a time."""
        return self._drawer.spec.temporal

    @property
    def edge_permutation(self) -> None:
        """Always None: `edge` of this sampler's output holds the user's edge ids."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the kernels' objects, which the other process makes itself."""
        if self._device is not None:
            raise TypeError(
                "a sampler that draws on a device stays in its process: use threads "
                "(worker_type='thread')"
            )
        state = self.__dict__.copy()
        for name in ("_drawer", "_link_samplers", "_calls"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a sampler in another process."""
        self.__dict__.update(state)
        self._calls = itertools.count()
        self.num_neighbors = self._method

    def sample_from_nodes(
        self, index: NodeSamplerInput, key: BatchKey | None = None, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbourhood of seed nodes.

        Args:
            index: the seeds, as PyG's loaders pass them; with times if the graph has times. Seeds
                without times see it at the time of their nodes.
            key: random key of the draws. If None, see `seed`.
            **kwargs: must be empty.

        Returns:
            Seeds first, then nodes in the order of first appearance; edges grouped by hop. Of a
            heterogeneous graph: the same for each type, and all types are there.

        Raises:
            IndexError: a seed does not exist.
            TypeError: seeds that are no `NodeSamplerInput`.
            ValueError: times of seeds in a graph without times, or none where they are needed.
        """
        if kwargs:
            raise TypeError(f"unexpected arguments {list(kwargs)}")
        drawn = self.draw_nodes(self.seed_set(index), key)
        wait_and_record_stream(tensors_of(drawn), drawn.written)
        return to_pyg(drawn, self.graph, (index.input_id, index.time))

    def seed_set(self, index: NodeSamplerInput) -> SeedSet:
        """Return the seeds of PyG's input, checked; raise what `sample_from_nodes` raises."""
        check_request(index, NodeSamplerInput)
        node_type = self._seed_type(index.input_type)
        seeds = to_int64(index.node, "seeds")
        check_range(seeds, self.graph.num_nodes[node_type], "seeds")
        times = seed_times(self.graph, node_type, seeds, index.time)
        return SeedSet(self.graph.node_types.index(node_type), seeds, times)

    def draw_nodes(self, seeds: SeedSet, key: BatchKey | None = None) -> SampledSubgraph:
        """Draw the neighbourhood of seeds that `seed_set` made, or of some of them.

        Args:
            seeds: the seeds.
            key: as for `sample_from_nodes`.
        """
        run, batch = key or next_key(self.seed, self.stream, self._calls)
        return self._drawer.draw_nodes(seeds, run, batch)

    def _seed_type(self, input_type: NodeType | None) -> NodeType:
        if not self.graph.is_heterogeneous:
            return NODE
        if input_type not in self.graph.num_nodes:
            raise ValueError(
                f"seeds of a heterogeneous graph need a node type of {self.graph.node_types} "
                f"(got {input_type!r})"
            )
        return input_type

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
            index: the links, as PyG's loaders pass them; with times if the graph has times.
            neg_sampling: PyG's description of negatives, or a dictionary or mode for one.
            key: random key of the draws. If None, see `seed`.
            strict_negatives: draw negatives that are no edges of the graph.
            exclude_seed_edges: leave the links out of the neighbourhood, and their reverses; see
                `khop.loader.LinkNeighborLoader`.

        Returns:
            As `sample_from_nodes`, seeds ascending by id and without repetition (in a disjoint
            batch as they come), with the positions of the links' ends in `metadata`, as PyG's
            loaders read them.

        Raises:
            IndexError: an end of a link does not exist.
            TypeError: links that are no `EdgeSamplerInput`.
            ValueError: options that contradict one another; no strict negative exists.
        """
        options = LinkOptions(
            NegativeSampling.cast(neg_sampling), strict_negatives, exclude_seed_edges
        )
        check_request(index, EdgeSamplerInput)
        sampler = self.link_sampler(index.input_type, options)
        drawn, seeds = self.draw_links(sampler, links_of(index, self.graph, sampler.spec), key)
        wait_and_record_stream(tensors_of(drawn), drawn.written)
        return to_pyg(drawn, self.graph, link_metadata(index, sampler.spec, seeds))

    def draw_links(
        self, sampler: LinkSampler, links: Links, key: BatchKey | None = None
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """Draw the neighbourhood of links that `links_of` made, or of some of them.

        Args:
            sampler: from `link_sampler`.
            links: the links.
            key: as for `sample_from_edges`.

        Returns:
            The subgraph, its trees numbered by link, and the positions of the links' ends in it.
        """
        run, batch = key or next_key(self.seed, self.stream, self._calls)
        return self._drawer.draw_links(sampler, links, run, batch)

    def link_sampler(self, link_type: EdgeType | None, options: LinkOptions) -> LinkSampler:
        """Return the sampler of links of a type; raise ValueError for options that do not fit."""
        return self._link_samplers.get(link_type, options)

    def check_link_options(self, link_type: EdgeType | None, options: LinkOptions) -> None:
        """Check options of link batches; raise what drawing such batches would raise."""
        self.link_sampler(link_type, options)

    def sample_prob(
        self,
        seeds: ArrayLike | NodeSamplerInput,
        num_nodes: Any = None,
        batch_size: int | None = None,
    ) -> Tensor | dict[NodeType, Tensor]:
        """Estimate the probability that a batch drawn from `seeds` touches each node.

        Args:
            seeds: [num_seeds] node ids, or a PyG `NodeSamplerInput`, whose `input_type` is the
                seeds' node type in a heterogeneous graph.
            num_nodes: number of nodes, or {node type: number}; only compared with the graph's.
                Tensors of these lengths are accepted, as in GraphLearn-for-PyTorch.
            batch_size: seeds in a batch. If None, all of them make one batch.

        Returns:
            [num_nodes] float64, one for each node type of a heterogeneous graph. Method:
            `khop.sampler.hotness`.

        Raises:
            IndexError, TypeError: seeds that do not exist or are no integers.
            ValueError: seeds of no node type of the graph, another number of nodes than the
                graph's, a batch size below 1, a sampler that draws by weight or by time.
        """
        spec = self._drawer.spec
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
        probs = sample_prob(
            TypedRows(view.num_nodes, view.relations, view.csrs),
            self._drawer.spec.fanouts[: len(view.relations)],
            Seeds(self.graph.node_types.index(node_type), ids, batch_size),
            self.replace,
        )
        by_type = dict(zip(counts, map(torch.from_numpy, probs), strict=True))
        return by_type if self.graph.is_heterogeneous else by_type[NODE]


def _check_num_nodes(given: Any, counts: Mapping[NodeType, int]) -> None:
    """Raise ValueError if the numbers of nodes that a caller expects are not the graph's."""
    if given is None:
        return
    for node_type, value in (given if isinstance(given, Mapping) else {NODE: given}).items():
        # A tensor may be the number itself, or one as long as there are nodes.
        count = len(value) if getattr(value, "ndim", 0) else int(value)
        if counts.get(node_type) != count:
            raise ValueError(
                f"num_nodes is {count} of type '{node_type}', but the graph has {dict(counts)}"
            )
