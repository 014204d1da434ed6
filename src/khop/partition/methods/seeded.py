"""Partitioning by hotness, computed from the graph, the training seeds and the fan-outs.

1. `communities` cuts the graph, all node types together, into clusters of about equal size. The
   method is restreaming linear deterministic greedy partitioning (Stanton and Kliot 2012, Nishimura
   and Ugander 2013). A pass is linear in the number of edges.
2. `split_seeds` divides training seeds between the parts, in equal shares, and keeps seeds of a
   cluster together. More rows of a batch are local if the part's seeds lie close together.
3. `khop.sampler.drawing.hotness` computes how likely batches of each part's seeds touch a node.
   `FrequencyPartitioner` places nodes by these probabilities.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import numpy as np

from khop import _native, codec
from khop.options import Option, resolved, takes_options
from khop.partition.batches import SeedNodes, seeds_of, typed_rows
from khop.partition.methods.frequency import FrequencyPartitioner, assign_balanced, even_sizes
from khop.partition.methods.structure import StructuralPartitioner
from khop.partition.options import PartitionOptions
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import GraphSource, check_masks
from khop.partition.writing.numbering import Numbering
from khop.partition.writing.undirected import RowBlock, Undirected, split_by_type, undirected
from khop.sampler.drawing.hotness import Seeds, sample_prob
from khop.sampler.methods import NEIGHBOR, SamplingMethod, as_method
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import FolderMeta, check_output
from khop.typing import Float64Array, Int32Array, Int64Array, IntArray, NodeType, NumNeighbors

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Unpack

# More than any probability: a part's own seeds come first.
_SEED_BONUS = 2.0
# Less than any difference that matters: nodes that training does not touch go to their cluster.
_CLUSTER_BONUS = 1e-9
# Memory of an edge: both directions, and the rows that batches are drawn from.
_EDGE_BYTES = 40
# Measured on the bundled graph for 2 to 8 parts: strictly even clusters (no slack) cost half of
# the gain. More than 8 passes change little.
_PASSES = 8
_SLACK = 1.05


class HotnessGroup(TypedDict, total=False):
    """Options of method 'frequency', except `num_neighbors` and `base`."""

    batch_size: Annotated[int, Option(1024, "seeds in a batch of one trainer.")]
    seeds: Annotated[
        SeedNodes,
        Option(
            None,
            "[num_seeds] ids of the nodes to train on. If None, nodes of `train_mask` if the graph "
            "has it, else all nodes. Of a heterogeneous graph (node type, ids), or (node type, "
            "None) for that default. It may be None if a single node type has a `train_mask`.",
        ),
    ]
    cache_ratio: Annotated[
        float | Mapping[NodeType, float] | None,
        Option(
            None, "share of the nodes that a part may keep copies of; see `FrequencyPartitioner`."
        ),
    ]
    cache_memory_budget: Annotated[
        int | str | Mapping[NodeType, int | str] | None,
        Option(None, "bytes (or '512MB') of copies a part may keep."),
    ]


class FrequencyOptions(HotnessGroup, PartitionOptions, total=False):
    """Keyword arguments of `frequency_partition`.

    Example:
        >>> options: FrequencyOptions = {"batch_size": 2, "cache_ratio": 0.5}
        >>> frequency_partition(data, path / "parts", 2, [2], **options).num_parts
        2
    """

    base: Annotated[
        type[StructuralPartitioner] | None,
        Option(
            None,
            "a partitioner that places all nodes, except seeds that must move to make even shares: "
            "`MetisPartitioner`, `StreamPartitioner`, `ClusterMetisPartitioner`. Hotness then "
            "decides on copies alone. If None, hotness places nodes.",
        ),
    ]


@takes_options(FrequencyOptions)
def frequency_partition(
    data: Data | HeteroData | GraphSource,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_neighbors: NumNeighbors | SamplingMethod,
    **options: Unpack[FrequencyOptions],
) -> FolderMeta:
    """Partition a graph by hotness, with parts that hold equal shares of the seeds.

    Training seeds are divided between the parts by the graph's structure, and stay with their part,
    so that each trainer's seeds are local. Then `FrequencyPartitioner` places the other nodes by
    how likely each part's batches touch them.

    Args:
        data: a PyG `Data` or `HeteroData`, or a `GraphSource`.
        output_dir: the partition folder to write.
        num_parts: number of parts.
        num_neighbors: fan-out of each hop in training, or {edge type: fan-outs}. Or the sampling
            method of training, such as `khop.sampler.Labor([15, 10])`.
        **options: `FrequencyOptions`.

    Returns:
        The content of the folder's meta.json.

    Raises:
        ValueError, TypeError, IndexError: the arguments do not fit one another.
        FileExistsError: `output_dir` exists and `overwrite` is False.

    Example:
        >>> meta = frequency_partition(data, path / "parts", 2, [2], batch_size=2)
        >>> meta.num_parts
        2
    """
    chosen = resolved(FrequencyOptions, "frequency_partition", options)
    check_output(output_dir, chosen["overwrite"])
    source = data if isinstance(data, GraphSource) else GraphSource.from_data(data)
    check_masks(source)
    return SeededPartitioner.from_data(
        source, output_dir, num_parts, num_neighbors=num_neighbors, **chosen
    ).partition()


class SeededPartitioner(FrequencyPartitioner):
    """Partitioner of `frequency_partition`: by hotness that it computes itself.

    It divides the training seeds between the parts. From a part's seeds it computes `probs`, the
    probability that batches touch each node. `FrequencyPartitioner` uses them.
    """

    def _configure(  # type: ignore[override]
        self,
        num_neighbors: NumNeighbors | SamplingMethod = (15, 10, 5),
        batch_size: int = 1024,
        seeds: SeedNodes = None,
        cache_ratio: float | Mapping[NodeType, float] | None = None,
        cache_memory_budget: int | str | Mapping[NodeType, int | str] | None = None,
        base: type[StructuralPartitioner] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1 (got {batch_size})")
        self.base, self.batch_size = base, batch_size
        self.seed_type, self.seeds = seeds_of(self.source, seeds)
        if isinstance(num_neighbors, tuple):
            num_neighbors = list(num_neighbors)
        as_method(num_neighbors).check_node_types(list(self.source.nodes))
        self.spec = SamplingSpec.create(
            num_neighbors, list(self.source.edges), heterogeneous=self.source.heterogeneous
        )
        if self.spec.num_hops == 0:
            raise ValueError(
                "num_neighbors must hold a fan-out of -1 or more for each hop (got none)"
            )
        self.fanouts = self.spec.fanouts[: len(self.source.edges)]
        self._is_ready = False  # probabilities follow, once memory and disk have been checked
        super()._configure([{}] * self.num_parts, cache_memory_budget, cache_ratio)

    def identity(self) -> dict[str, Any]:
        self._get_ready()
        return super().identity()

    def number_nodes(self, workspace: Workspace | None = None) -> dict[NodeType, Numbering]:
        """Divide the seeds and compute hotness, then assign all nodes to parts and number them.

        `workspace` keeps the assignment for a run that resumes this one. If None, nothing is
        written.
        """
        self._get_ready()
        return super().number_nodes(workspace)

    def _get_ready(self) -> None:
        """Divide the seeds between parts and compute probabilities. Further calls do nothing."""
        if self._is_ready:
            return
        graph = undirected(self.source, Resources(None, self.effort.jobs), progress=self.progress)
        clusters = self._clusters(graph)
        first = 0
        for node_type, node in self.source.nodes.items():
            if node_type == self.seed_type:
                break
            first += node.count
        self.part_of_seed = split_seeds(graph, self.seeds + first, clusters, self.num_parts)
        self.clusters = split_by_type(self.source, clusters)
        hotness = self._hotness()
        self.probs = {t: self._probs_of(t, hotness) for t in self.source.nodes}
        self._is_ready = True

    def _clusters(self, graph: Undirected) -> IntArray:
        """Divide the nodes into `num_parts` clusters. Return the cluster of each, [num_nodes].

        Clusters are the parts that option `base` makes, or `communities` without a base.
        """
        if self.base is None or self.num_parts == 1:
            return communities(
                graph,
                self.num_parts,
                self.seed,
                lambda done, total: self.progress("clusters", done, total),
            )
        partitioner = self.base.from_data(
            self.source,
            self.output_dir,
            self.num_parts,
            edge_dir=self.edge_dir,
            seed=self.seed,
            overwrite=self.overwrite,
            progress=self.progress,
            jobs=self.effort.jobs,
        )
        return partitioner.cut(graph)

    def _hotness(self) -> list[dict[NodeType, Float64Array]]:
        rows = typed_rows(self.source, self.edge_dir)
        node_types = list(self.source.nodes)

        def of_part(part: int) -> dict[NodeType, Float64Array]:
            ids = self.seeds[self.part_of_seed == part]
            seeds = Seeds(node_types.index(self.seed_type), ids, self.batch_size)
            probs = sample_prob(rows, self.fanouts, seeds, method=self.spec.method)
            return dict(zip(node_types, probs, strict=True))

        hotness = []
        for probs in Resources(None, self.effort.jobs).in_order(of_part, range(self.num_parts)):
            hotness.append(probs)
            self.progress("hotness", len(hotness), self.num_parts)
        return hotness

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part of each node of a type: [num_nodes] integers.

        Option `base` decides, or hotness without a base. Seeds stay in the part that they were
        divided to.
        """
        if self.base is not None:
            owners: IntArray = self.clusters[node_type].copy()
            if node_type == self.seed_type:
                owners[self.seeds] = self.part_of_seed
            return owners
        scores = self.probs[node_type].copy()
        if node_type == self.seed_type:
            scores[self.part_of_seed, self.seeds] += _SEED_BONUS
        scores[self.clusters[node_type], np.arange(scores.shape[1])] += _CLUSTER_BONUS
        return assign_balanced(scores, even_sizes(scores.shape[1], self.num_parts))

    def assignment_bytes(self) -> int:
        """Estimate the bytes of memory to divide the seeds and to compute hotness."""
        return super().assignment_bytes() + self.source.num_edges * _EDGE_BYTES

    def describe(self) -> dict[str, Any]:
        hops = {
            " ".join(edge_type): list(fanouts)
            for edge_type, fanouts in zip(self.source.edges, self.fanouts, strict=True)
        }
        alike = len({tuple(fanouts) for fanouts in self.fanouts}) == 1
        method = self.spec.method
        return {
            **super().describe(),
            "name": FrequencyPartitioner.__name__,
            "num_neighbors": list(self.fanouts[0]) if alike else hops,
            **({} if method == NEIGHBOR else {"sampling": codec.to_json(method)}),
            "batch_size": self.batch_size,
            "num_seeds": len(self.seeds),
            **({} if self.base is None else {"base": self.base.__name__}),
            **({"seed_type": self.seed_type} if self.source.heterogeneous else {}),
        }


def communities(
    graph: Undirected,
    num_parts: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Int32Array:
    """Cut a graph into `num_parts` clusters of about equal size, with few edges between them.

    The edges are read in several passes, with nodes in a random order by `seed`. `progress(done,
    total)` is called after each.

    Returns:
        [num_nodes] int32 cluster of each node. Sizes exceed the mean by at most 5 % and one node.
    """
    if num_parts == 1:
        return np.zeros(graph.num_nodes, np.int32)
    labels = np.full(graph.num_nodes, num_parts, np.int32)  # num_parts: in no cluster yet
    capacity = int(np.ceil(_SLACK * graph.num_nodes / num_parts))
    turn = _native.AssignPass(
        np.ones((1, graph.num_nodes), np.int32),
        np.full((1, num_parts), capacity),
        np.zeros((1, num_parts), np.int64),
        labels,
        "ldg",
        graph.num_edges,
    )
    for i in range(_PASSES):
        for rows, order in graph.visits(seed, 0, 0):
            turn.visit(rows, order)
        progress(i + 1, _PASSES)
    return labels


def split_seeds(graph: Undirected, seeds: Int64Array, labels: IntArray, num_parts: int) -> IntArray:
    """Assign each seed to the part with its cluster's number, but move a few to make even shares.

    Args:
        graph: the graph.
        seeds: [num_seeds] distinct node ids.
        labels: [num_nodes] cluster of each node.
        num_parts: number of parts.

    Returns:
        [num_seeds] int32 part of each seed. Shares differ by at most one.
    """
    scores = np.empty((num_parts, len(seeds)))
    order = np.argsort(seeds)
    ends = np.searchsorted(seeds[order], graph.bounds)
    for rows, first, last in zip(graph.blocks(), ends[:-1], ends[1:], strict=True):
        mine = order[first:last]
        counts = _count(rows, seeds[mine], labels, num_parts)
        scores[:, mine] = 0.5 * counts / np.maximum(1, counts.sum(axis=0))
    scores[labels[seeds], np.arange(len(seeds))] += 1
    return assign_balanced(scores, even_sizes(len(seeds), num_parts))


def _count(rows: RowBlock, nodes: Int64Array, labels: IntArray, num_parts: int) -> Float64Array:
    """Return [num_parts, num_nodes] float64 number of edges from `nodes` to each cluster.

    `labels` is the cluster of every node of the graph, below `num_parts`.
    """
    index = nodes - rows.first_node
    begins, sizes = rows.indptr[index], np.diff(rows.indptr)[index]
    owner = np.repeat(np.arange(len(nodes)), sizes)
    entries = np.arange(len(owner)) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
    cells = owner * num_parts + labels[rows.indices[entries]]
    weights = rows.weights[entries].astype(np.float64)
    counts = np.bincount(cells, weights, len(nodes) * num_parts)
    table: Float64Array = counts.reshape(len(nodes), num_parts).T.astype(np.float64)
    return table
