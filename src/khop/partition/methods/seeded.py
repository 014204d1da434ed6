"""Partitioning by the hotness that training will have, computed from the graph alone.

Training seeds are split between the parts (`seeds`). The hotness of nodes for each
part follows from its seeds (`khop.sampler.drawing.hotness`). `FrequencyPartitioner` does the rest.
For the split, the nodes of all types count as nodes of one graph; all else is done type by type.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import numpy as np

from khop import codec
from khop.options import Option, resolved, takes_options
from khop.partition.batches import seeds_of, typed_rows
from khop.partition.methods.balance import Scores, assign_balanced, even_sizes
from khop.partition.methods.frequency import FrequencyPartitioner
from khop.partition.methods.seeds import communities, split_seeds
from khop.partition.methods.structure import StructuralPartitioner
from khop.partition.options import PartitionOptions
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import GraphSource, check_masks
from khop.partition.writing.both_directions import undirected
from khop.partition.writing.numbering import Numbering
from khop.partition.writing.undirected import Undirected, split_by_type
from khop.sampler.drawing.hotness import Seeds, sample_prob
from khop.sampler.methods import NEIGHBOR, SamplingMethod, as_method
from khop.sampler.spec import SamplingSpec
from khop.storage.folder import FolderMeta, check_output
from khop.typing import Int64Array, IntArray, NodeType, NumNeighbors

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Above any probability: a part's own seeds come first.
_SEED_BONUS = 2.0
# Below any difference that matters: nodes that training does not touch go to their cluster.
_CLUSTER_BONUS = 1e-9
# An edge: both directions, and the rows that batches are drawn from.
_EDGE_BYTES = 40


class FrequencyGroup(TypedDict, total=False):
    """Options of `frequency_partition` alone."""

    batch_size: Annotated[int, Option(1024, "seeds in a batch of one trainer.")]
    seeds: Annotated[
        Any,
        Option(
            None,
            "[num_seeds] ids of the nodes to train on. If None, those of `train_mask` if the graph "
            "has it, else all nodes. Of a heterogeneous graph (node type, ids), or (node type, "
            "None) for that default; may be None if a single node type has a `train_mask`.",
        ),
    ]
    cache_ratio: Annotated[
        float | Mapping[NodeType, float] | None,
        Option(
            None,
            "share of the nodes that a part may keep copies of; see `FrequencyPartitioner`.",
        ),
    ]
    cache_memory_budget: Annotated[
        int | str | Mapping[NodeType, int | str] | None,
        Option(None, "bytes (or '512MB') of copies a part may keep."),
    ]
    base: Annotated[
        type[StructuralPartitioner] | None,
        Option(
            None,
            "a partitioner that places all nodes but seeds that must move to make even shares: "
            "`MetisPartitioner`, `StreamPartitioner`, `ClusterMetisPartitioner`. Hotness then "
            "decides on copies alone. If None, hotness places nodes.",
        ),
    ]


class FrequencyOptions(FrequencyGroup, PartitionOptions, total=False):
    """Keyword arguments of `frequency_partition`.

    Example:
        >>> options: FrequencyOptions = {"batch_size": 2, "cache_ratio": 0.5}
        >>> frequency_partition(data, path / "parts", 2, [2], **options).num_parts
        2
    """


@takes_options(FrequencyOptions)
def frequency_partition(
    data: Any,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_neighbors: NumNeighbors | SamplingMethod,
    **options: Unpack[FrequencyOptions],
) -> FolderMeta:
    """Partition a graph by hotness, with parts that hold equal shares of the seeds.

    Training seeds are split between the parts by the graph's structure (`methods.seeds`) and
    stay with their part, so that each trainer's seeds are local. Then `FrequencyPartitioner`
    places the other nodes by how likely each part's batches touch them.

    Args:
        data: a PyG `Data` or `HeteroData`, or a `GraphSource`.
        output_dir: the partition folder to write.
        num_parts: number of parts.
        num_neighbors: fan-out of each hop in training, or {edge type: fan-outs}. Or the sampling
            method of training, `khop.sampler.Labor([15, 10])`: its batches are drawn then.
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
    return frequency_partitioner(source, output_dir, num_parts, num_neighbors, **chosen).partition()


def frequency_partitioner(
    data: Any,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_neighbors: NumNeighbors | SamplingMethod,
    *,
    batch_size: int,
    seeds: Any = None,
    **options: Any,
) -> FrequencyPartitioner:
    """Return the partitioner that `frequency_partition` runs; takes the same arguments."""
    source = data if isinstance(data, GraphSource) else GraphSource.from_data(data)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 (got {batch_size})")
    return _SeededPartitioner.from_data(
        source,
        output_dir,
        num_parts,
        seeds=seeds_of(source, seeds),
        spec=_checked_spec(num_neighbors, source),
        batch_size=batch_size,
        **options,
    )


class _SeededPartitioner(FrequencyPartitioner):
    """A `FrequencyPartitioner` that computes its probabilities and keeps seeds with their part."""

    def _configure(  # type: ignore[override]
        self,
        seeds: tuple[NodeType, Int64Array],
        spec: SamplingSpec,
        batch_size: int,
        cache_memory_budget: Any = None,
        cache_ratio: Any = None,
        base: type[StructuralPartitioner] | None = None,
    ) -> None:
        self.base = base
        self.seed_type, self.seeds = seeds
        self.spec, self.batch_size = spec, batch_size
        self.fanouts = spec.fanouts[: len(self.source.edges)]
        self._is_ready = False  # the probabilities follow, once memory and disk have been checked
        super()._configure([{}] * self.num_parts, cache_memory_budget, cache_ratio)

    def identity(self) -> dict[str, Any]:
        """Return all that assignment and copies depend on, beside the graph."""
        self._get_ready()
        return super().identity()

    def number(self, workspace: Workspace | None = None) -> dict[NodeType, Numbering]:
        """Split the seeds and compute hotness, then assign all nodes to parts and number them."""
        self._get_ready()
        return super().number(workspace)

    def _get_ready(self) -> None:
        if self._is_ready:
            return
        self._split_seeds()
        hotness = self._hotness()
        self.probs = {t: self._probs_of(t, hotness) for t in self.source.nodes}
        self._is_ready = True

    def _split_seeds(self) -> None:
        graph = undirected(self.source, Resources(None, self.effort.jobs), progress=self.progress)
        ends = np.cumsum([node.count for node in self.source.nodes.values()])
        first = dict(zip(self.source.nodes, [0, *ends.tolist()], strict=False))
        clusters = self._clusters(graph)
        self.part_of_seed = split_seeds(
            graph, self.seeds + first[self.seed_type], clusters, self.num_parts
        )
        self.clusters = split_by_type(self.source, clusters)

    def _clusters(self, graph: Undirected) -> IntArray:
        """Return a first part of each node, all types one after the other."""
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

    def _hotness(self) -> list[dict[NodeType, Scores]]:
        rows = typed_rows(self.source, self.edge_dir)
        node_types = list(self.source.nodes)

        def of_part(part: int) -> dict[NodeType, Scores]:
            ids = self.seeds[self.part_of_seed == part]
            seeds = Seeds(node_types.index(self.seed_type), ids, self.batch_size)
            probs = sample_prob(rows, self.fanouts, seeds, method=self.spec.method)
            return dict(zip(node_types, probs, strict=True))

        found = []
        for probs in Resources(None, self.effort.jobs).in_order(of_part, range(self.num_parts)):
            found.append(probs)
            self.progress("hotness", len(found), self.num_parts)
        return found

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part of each node, as the base class does, but keep seeds with their part."""
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
        """Return about how much memory it takes to split seeds and to compute hotness."""
        edges = sum(edge.num_edges for edge in self.source.edges.values())
        return super().assignment_bytes() + edges * _EDGE_BYTES

    def describe(self) -> dict[str, Any]:
        """Return method and arguments, as recorded in meta.json."""
        hops = {
            " ".join(edge_type): list(fanouts)
            for edge_type, fanouts in zip(self.source.edges, self.fanouts, strict=True)
        }
        alike = len({tuple(fanouts) for fanouts in self.fanouts}) == 1
        return {
            **super().describe(),
            "name": FrequencyPartitioner.__name__,
            "num_neighbors": list(self.fanouts[0]) if alike else hops,
            **(
                {}
                if self.spec.method == NEIGHBOR
                else {"sampling": codec.to_json(self.spec.method)}
            ),
            "batch_size": self.batch_size,
            "num_seeds": len(self.seeds),
            **({} if self.base is None else {"base": self.base.__name__}),
            **({"seed_type": self.seed_type} if self.source.heterogeneous else {}),
        }


def _checked_spec(num_neighbors: Any, source: GraphSource) -> SamplingSpec:
    as_method(num_neighbors).check_node_types(list(source.nodes))
    spec = SamplingSpec.create(
        num_neighbors, list(source.edges), heterogeneous=source.heterogeneous
    )
    if spec.num_hops == 0:
        raise ValueError("num_neighbors must hold a fan-out of -1 or more for each hop (got none)")
    return spec
