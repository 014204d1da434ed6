"""Base of the samplers with PyG's interface. Runs in trainers and in PyG's worker processes.

A sampler gets PyG's inputs, checks them, and returns what it draws in PyG's form. Subclasses draw
from a graph in memory (`khop.sampler.pyg.neighbor`) or from partitions
(`khop.distributed.loaders.partition_sampler`).
"""

from __future__ import annotations

import abc
import itertools
import reprlib
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
from khop.data.arrays import check_range, to_int64
from khop.data.info import GraphInfo
from khop.sampler.arguments import check_key_part, seed_times
from khop.sampler.drawing.link import Links, LinkSampler, LinkSeeds
from khop.sampler.link_spec import ExcludeSeedEdges, LinkSpec
from khop.sampler.methods import SamplingMethod, as_method
from khop.sampler.pyg.draw_scope import BatchKey, in_scope, next_key
from khop.sampler.pyg.links import LinkOptions, link_metadata, link_spec, links_of
from khop.sampler.pyg.output import SampledSubgraph, to_pyg
from khop.sampler.requests import SeedSet
from khop.sampler.spec import SamplingOptions, SamplingSpec
from khop.typing import NODE, EdgeType, Int64Array, NodeType, NumNeighbors


class PygSampler(BaseSampler, abc.ABC):  # type: ignore[misc]
    """Base of khop's samplers, which PyG's loaders accept as their sampler.

    Args:
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}, or a sampling method.
        options: the other options of the draws.
        seed: makes draws reproducible: call i of this sampler draws what call i of any equal
            sampler draws. If None, each call takes a key from torch's default generator.
        stream: separates the random numbers of samplers with the same seed.

    Raises:
        TypeError, ValueError: malformed options.
    """

    is_keyed = True  # `sample_from_nodes` takes the key of a batch
    output_forms = (SamplerOutput, HeteroSamplerOutput)

    def __init__(
        self,
        num_neighbors: NumNeighbors | SamplingMethod,
        options: SamplingOptions,
        seed: int | None,
        stream: int,
    ) -> None:
        for name, value in (("seed", seed), ("stream", stream)):
            check_key_part(name, value)
        self.seed = seed
        self.stream = stream
        self._options = options
        self._calls = itertools.count()
        self.num_neighbors = num_neighbors

    @property
    def num_neighbors(self) -> list[int] | dict[EdgeType, list[int]]:
        """Fan-out of each hop, for each edge type of a heterogeneous graph. Can be set."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: NumNeighbors | SamplingMethod) -> None:
        info = self._info_for(value)
        spec = self._options.spec(value, info)
        self._method, self._info, self._spec = as_method(value), info, spec
        self._delivered = spec.method.delivered
        by_type = dict(zip(info.edge_types, map(list, spec.fanouts), strict=False))
        self._num_neighbors: list[int] | dict[EdgeType, list[int]] = (
            by_type if info.heterogeneous else list(spec.fanouts[0])
        )
        self._drawer = self._make_drawer()
        self._kept: _KeptSampler | None = None

    def __repr__(self) -> str:
        """Return fan-outs or method, and the number of nodes."""
        nodes = sum(self._info.node_counts.values())
        return f"{type(self).__name__}({self._spec.summary}, {nodes:,} nodes)"

    @property
    def info(self) -> GraphInfo:
        """Types and counts of the graph, with the times and weights that draws use."""
        return self._info

    @property
    def spec(self) -> SamplingSpec:
        """Fan-outs and other options of the draws."""
        return self._spec

    @property
    def replace(self) -> bool:
        """True if draws are with replacement."""
        return self._spec.replace

    @property
    def with_edge(self) -> bool:
        """True if the ids of drawn edges are returned."""
        return self._spec.with_edge

    @property
    def disjoint(self) -> bool:
        """True if each seed has a separate subgraph."""
        return self._spec.disjoint

    @property
    def is_temporal(self) -> bool:
        """True if draws depend on times: each seed has only neighbours up to its own time."""
        return self._spec.temporal

    @property
    def time_attr(self) -> str | None:
        """Name of the attribute that holds times. If None, draws do not depend on times."""
        return self._options.time_attr

    @property
    def edge_permutation(self) -> None:
        """Always None: `edge` of this sampler's output holds the user's edge ids."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without objects that the other process creates anew."""
        state = self.__dict__.copy()
        for name in ("_drawer", "_kept", "_calls"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._calls = itertools.count()
        self.num_neighbors = self._method

    def sample_from_nodes(
        self,
        index: NodeSamplerInput,
        key: BatchKey | None = None,
        *,
        with_values: bool = False,
        **kwargs: Any,
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbourhood of seed nodes.

        Args:
            index: the seeds, as PyG's loaders pass them. If the graph has times, seeds without
                times see it at the time of their nodes.
            key: random key of the draws. If None, see `seed`.
            with_values: the caller takes the method's values, such as `edge_norm`, from
                `metadata.values`, as khop's loaders do. PyG's own loaders would drop them.
            **kwargs: must be empty.

        Returns:
            Seeds first, then nodes in the order of first appearance, and edges grouped by hop. A
            heterogeneous graph's output has all types.

        Raises:
            IndexError: a seed does not exist.
            PartitionUnavailableError: the server of another partition cannot be reached.
            TypeError: seeds that are no `NodeSamplerInput`.
            ValueError: times of seeds in a graph without times, missing times, or a method with
                values that the caller does not take.
        """
        if kwargs:
            raise TypeError(f"unexpected arguments {list(kwargs)}")
        self._check_taken(with_values)
        drawn = self._nodes_drawn(self.seed_set(index), key)
        return to_pyg(drawn, self._info, (index.input_id, index.time), self.output_forms)

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        key: BatchKey | None = None,
        *,
        strict_negatives: bool = False,
        exclude_seed_edges: ExcludeSeedEdges = False,
        with_values: bool = False,
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Draw the neighbourhood of the ends of links, and of negatives.

        Args:
            index: the links, as PyG's loaders pass them, with times if the graph has times.
            neg_sampling: PyG's description of negatives, or a dictionary or mode for one.
            key: random key of the draws. If None, see `seed`.
            strict_negatives: draw negatives that are no edges of the graph, in any partition.
            exclude_seed_edges: leave the links out of the neighbourhood, and their reverses, as
                `khop.loader.LinkNeighborLoader` does.
            with_values: as for `sample_from_nodes`.

        Returns:
            As `sample_from_nodes`. Seeds are ascending by id and without repetition, but in a
            disjoint batch in the order of the links. `metadata` has the positions of the links'
            ends, as PyG's loaders read them.

        Raises:
            IndexError: an end of a link does not exist.
            PartitionUnavailableError: the server of another partition cannot be reached.
            TypeError: links that are no `EdgeSamplerInput`.
            ValueError: options that contradict one another, strict negatives that do not exist, or
                a method with values that the caller does not take.
        """
        self._check_taken(with_values)
        options = LinkOptions(
            NegativeSampling.cast(neg_sampling), strict_negatives, exclude_seed_edges
        )
        _check_input(index, EdgeSamplerInput)
        sampler = self.link_sampler(index.input_type, options)
        links = links_of(index, self._info, sampler.spec)
        drawn, seeds = self._links_drawn(sampler, links, key)
        metadata = link_metadata(index, sampler.spec, seeds)
        return to_pyg(drawn, self._info, metadata, self.output_forms)

    def seed_set(self, index: NodeSamplerInput) -> SeedSet:
        """Return the seeds of PyG's input, checked as in `sample_from_nodes`.

        :meta private:
        """
        _check_input(index, NodeSamplerInput)
        node_type = self._seed_type(index.input_type)
        seeds = to_int64(index.node, "seeds")
        check_range(seeds, self._info.node_counts[node_type], "seeds")
        seeds = self._own_ids(node_type, seeds)
        times = seed_times(
            self._info, node_type, len(seeds), index.time, lambda: self._times_of(node_type, seeds)
        )
        return SeedSet(self._info.node_types.index(node_type), seeds, times)

    def link_sampler(self, link_type: EdgeType | None, options: LinkOptions) -> LinkSampler:
        """Return the sampler of links of an edge type.

        It is kept for the next call of equal options. :meta private:
        """
        neg = options.neg_sampling
        key = (link_type, options.strict, options.exclude, neg and (neg.mode, neg.amount))
        weights = (neg.src_weight, neg.dst_weight) if neg else (None, None)
        kept = self._kept  # another thread can replace it
        # Tables were made of these very tensors: their contents are not compared.
        if (
            kept is None
            or kept.key != key
            or any(a is not b for a, b in zip(kept.weights, weights, strict=True))
        ):
            spec = link_spec(self._info, link_type, options, self._spec.disjoint)
            kept = _KeptSampler(key, weights, self._make_link_sampler(spec, neg))
            self._kept = kept
        return kept.sampler

    def _seed_type(self, input_type: NodeType | None) -> NodeType:
        if not self._info.heterogeneous:
            return NODE
        if input_type is None or input_type not in self._info.node_counts:
            raise ValueError(
                f"seeds of a heterogeneous graph need a node type of {self._info.node_types} "
                f"(got {input_type!r})"
            )
        return input_type

    def _key(self, key: BatchKey | None) -> BatchKey:
        """Return the random key of a call: `key`, the scope's, or the sampler's next one."""
        key = key or next_key()
        if key is not None:
            return key
        if self.seed is None:
            drawn = torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64)
            return BatchKey(int(drawn) & (2**64 - 1), 0)
        worker = torch.utils.data.get_worker_info()
        epoch = 0 if worker is None else 1 + worker.id  # each worker process has its own count
        return BatchKey(_native.run_key(self.seed, epoch, self.stream), next(self._calls))

    def _check_taken(self, with_values: bool) -> None:
        """Raise ValueError if the sampling method delivers values that the caller would drop."""
        delivered = self._delivered
        if delivered and not with_values and not in_scope():
            raise ValueError(
                f"{type(self._method).__name__} delivers {', '.join(delivered)}, which PyG's own "
                "loaders drop: pass the sampler to khop.loader.NeighborLoader or "
                "LinkNeighborLoader as neighbor_sampler=, or call it with with_values=True and "
                "take them from the output's metadata.values"
            )

    @abc.abstractmethod
    def _info_for(self, num_neighbors: NumNeighbors | SamplingMethod) -> GraphInfo:
        """Return types and counts of the graph, with the times and weights that draws use.

        Raises:
            ValueError: the graph lacks times or weights that options name.
        """

    @abc.abstractmethod
    def _make_drawer(self) -> Any:
        """Return the object that draws by `spec`. Called again when `spec` has changed."""

    @abc.abstractmethod
    def _make_link_sampler(self, spec: LinkSpec, neg: NegativeSampling | None) -> LinkSampler:
        """Return a sampler of link batches. `neg` describes negatives, or is None."""

    def _own_ids(self, node_type: NodeType, seeds: Int64Array) -> Int64Array:
        """Convert checked node ids of the user to the ids by which the engine draws."""
        del node_type
        return seeds

    @abc.abstractmethod
    def _times_of(self, node_type: NodeType, seeds: Int64Array) -> Int64Array | None:
        """Return int64 keys of the seed nodes' own times, or None. `seeds` are the engine's ids."""

    @abc.abstractmethod
    def _nodes_drawn(self, seeds: SeedSet, key: BatchKey | None) -> SampledSubgraph:
        """Return the drawn neighbourhood of seeds, with the user's node ids."""

    @abc.abstractmethod
    def _links_drawn(
        self, sampler: LinkSampler, links: Links, key: BatchKey | None
    ) -> tuple[SampledSubgraph, LinkSeeds]:
        """Return the drawn neighbourhood of links, with the user's node ids.

        Trees of a disjoint batch are numbered by link. The second value has the ends' positions.
        """


class _KeptSampler(NamedTuple):
    key: tuple[Any, ...]
    weights: tuple[Tensor | None, Tensor | None]
    sampler: LinkSampler


def _check_input(index: object, form: type) -> None:
    """Raise TypeError unless a sampler's input is of the class `form`, which is PyG's."""
    if not isinstance(index, form):
        raise TypeError(
            f"a sampler takes a torch_geometric.sampler.{form.__name__} (got "
            f"{type(index).__name__}: {reprlib.repr(index)})"
        )
