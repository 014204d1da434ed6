"""Partitioning by the hotness that training will have, computed from the graph alone.

Training seeds are split between the parts (`khop.partition.seeds`), what each part's batches will
touch follows from its seeds (`khop.sampler.hotness`), and `FrequencyPartitioner` does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from khop import _native
from khop.data.arrays import check_range, to_int64
from khop.partition.balance import Scores, assign_balanced, even_sizes
from khop.partition.base import Progress
from khop.partition.folder import FolderMeta, check_output
from khop.partition.frequency import FrequencyPartitioner
from khop.partition.seeds import adjacency, communities, split_seeds
from khop.partition.source import GraphSource
from khop.sampler.hotness import sample_prob
from khop.typing import EDGE, NODE, ArrayLike, Int64Array, IntArray, NodeType

# Above any probability: a part's own seeds come first.
_SEED_BONUS = 2.0
# Below any difference that matters: nodes that training does not touch go to their cluster.
_CLUSTER_BONUS = 1e-9


def frequency_partition(
    data: Any,
    output_dir: str | os.PathLike[str],
    num_parts: int,
    num_neighbors: Sequence[int],
    *,
    batch_size: int = 1024,
    seeds: ArrayLike | None = None,
    edge_assign_strategy: str = "by_dst",
    time_attr: str | None = None,
    weight_attr: str | None = None,
    cache_ratio: float | None = None,
    cache_memory_budget: int | str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FolderMeta:
    """Partitions a homogeneous graph by hotness, with parts that hold equal shares of the seeds.

    Training seeds are split between the parts by the graph's structure (`khop.partition.seeds`) and
    stay with their part, so that each trainer finds its seeds at home. Then `FrequencyPartitioner`
    places the other nodes by how likely each part's batches touch them.

    Args:
        data: a PyG `Data` or a `GraphSource`.
        output_dir: the partition folder to write.
        num_parts: number of parts.
        num_neighbors: fan-out of each hop in training.
        batch_size: seeds in a batch of one trainer; default: 1024.
        seeds: [num_seeds] node ids that will be trained on; default: `train_mask` if the graph has
            it, else all nodes.
        edge_assign_strategy: 'by_dst' or 'by_src'.
        time_attr: the attribute of nodes or edges that holds times; see `PartitionerBase`.
        weight_attr: the edge attribute that holds weights.
        cache_ratio: share of all nodes that a part may keep copies of.
        cache_memory_budget: bytes (or '512MB') of copies a part may keep.
        seed: of random choices.
        overwrite: replace a folder that exists.
        progress: called as progress(what, done, total).

    Returns:
        What the folder's meta.json says.

    Raises:
        NotImplementedError: the graph is heterogeneous.
        ValueError, TypeError, IndexError: arguments that do not fit one another.
        FileExistsError: `output_dir` exists and `overwrite` is False.
    """
    check_output(output_dir, overwrite)
    source = data if isinstance(data, GraphSource) else GraphSource.from_data(data)
    if source.heterogeneous:
        raise NotImplementedError(
            "hotness over several edge types is still to come: partition heterogeneous graphs with "
            "RandomPartitioner (--method random), or pass probs of your own to FrequencyPartitioner"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1 (got {batch_size})")
    fanouts = _checked_fanouts(num_neighbors)
    partitioner = _SeededPartitioner.from_data(
        source,
        output_dir,
        num_parts,
        edge_assign_strategy,
        time_attr=time_attr,
        weight_attr=weight_attr,
        seed=seed,
        overwrite=overwrite,
        progress=progress,
        seeds=_seeds_of(source, seeds),
        fanouts=fanouts,
        batch_size=batch_size,
        cache_ratio=cache_ratio,
        cache_memory_budget=cache_memory_budget,
    )
    return partitioner.partition()


class _SeededPartitioner(FrequencyPartitioner):
    """A `FrequencyPartitioner` that computes its probabilities and keeps seeds with their part."""

    def _configure(  # type: ignore[override]
        self,
        seeds: Int64Array,
        fanouts: list[int],
        batch_size: int,
        cache_memory_budget: int | str | None,
        cache_ratio: float | None,
    ) -> None:
        self.seeds, self.fanouts, self.batch_size = seeds, fanouts, batch_size
        # Checks the options before the work begins; the probabilities follow.
        nothing = np.zeros(self.source.nodes[NODE].count)
        super()._configure([nothing] * self.num_parts, cache_memory_budget, cache_ratio)
        self._split_seeds()
        super()._configure(self._hotness(), cache_memory_budget, cache_ratio)

    def _split_seeds(self) -> None:
        neighbors = adjacency(self.source.edges[EDGE], self.source.nodes[NODE].count)
        self.clusters = communities(
            neighbors,
            self.num_parts,
            self.seed,
            lambda done, total: self.progress("clusters", done, total),
        )
        self.part_of_seed = split_seeds(neighbors, self.seeds, self.clusters, self.num_parts)
        rows = neighbors[1 if self.edge_dir == "in" else 0]
        self._csr = _native.Csr(rows.indptr, rows.indices)

    def _hotness(self) -> list[Scores]:
        count = self.source.nodes[NODE].count
        probs = []
        for part in range(self.num_parts):
            seeds = self.seeds[self.part_of_seed == part]
            probs.append(sample_prob(self._csr, self.fanouts, seeds, count, self.batch_size))
            self.progress("hotness", part + 1, self.num_parts)
        del self._csr
        return probs

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """As `FrequencyPartitioner`, but seeds stay with their part."""
        scores = self.probs[node_type].copy()
        scores[self.part_of_seed, self.seeds] += _SEED_BONUS
        scores[self.clusters, np.arange(scores.shape[1])] += _CLUSTER_BONUS
        return assign_balanced(scores, even_sizes(scores.shape[1], self.num_parts))

    def describe(self) -> dict[str, Any]:
        """Method and arguments, as meta.json records them."""
        return {
            **super().describe(),
            "name": FrequencyPartitioner.__name__,
            "num_neighbors": self.fanouts,
            "batch_size": self.batch_size,
            "num_seeds": len(self.seeds),
        }


def _checked_fanouts(num_neighbors: Sequence[int]) -> list[int]:
    fanouts = [int(k) for k in num_neighbors]
    if not fanouts or min(fanouts) < -1:
        raise ValueError(
            f"num_neighbors must hold a fan-out of -1 or more for each hop (got {fanouts})"
        )
    return fanouts


def _seeds_of(source: GraphSource, seeds: ArrayLike | None) -> Int64Array:
    node = source.nodes[NODE]
    if seeds is not None:
        ids = np.unique(to_int64(seeds, "seeds"))
        check_range(ids, node.count, "seeds")
        return ids
    mask = node.attrs.get("train_mask")
    if mask is not None and mask.dtype == "bool" and mask.row_shape == () and mask.array.any():
        return np.flatnonzero(mask.array)
    return np.arange(node.count)
