"""Partitioners by METIS, of a graph or of its clusters. Need pymetis (`pip install pymetis`).

METIS runs in a process of its own, and its memory is freed when the process ends. It takes some 110
bytes per entry of the undirected graph. An edge has two entries. METIS balances one quantity per
node. If the user asks for several, METIS gets the one that is hardest to balance. Passes of
`StreamPartitioner` then balance all, and the best cut is kept.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from khop.partition.methods.structure import SCORES, StructuralPartitioner
from khop.partition.writing.cluster_ids import CLUSTER_NODES, cluster_nodes
from khop.partition.writing.undirected import NodeNumbering, RowBlock, Undirected, split_by_type
from khop.tables import human_bytes
from khop.typing import Int32Array, Int64Array, IntArray, NodeType

# METIS's default of imbalance, in thousandths. Imbalance is kept below the user's slack.
UFACTOR = 30
_EVEN_OUT = 10
# Cuts that are balanced, of which the best is kept. By seed, cuts vary by a tenth and more.
_CUTS = 2
_SEED_STEP = 1_000_003
_METIS_ENTRY_BYTES = 120
# Modules are imported from this process's path, not from the working directory.
_PROGRAM = (
    "import sys; sys.path[:] = {!r}; from khop.partition.methods.metis_process import main; main()"
)
_REFINE = 4
# METIS takes some GB for a graph of this many clusters.
_CLUSTERS = 1_000_000


class MetisPartitioner(StructuralPartitioner):
    """Partitioner by METIS's multilevel k-way method: the fewest edges between parts.

    The graph is made undirected, with weights for parallel edges. Of Debian's graph in 2, 4 and 8
    parts, 0.06, 0.14 and 0.19 of the edges are cut (`StreamPartitioner`: 0.08, 0.16 and 0.24).
    METIS takes some 110 bytes and 3 us per entry of the undirected graph. An edge has two entries.
    Beyond 10^8 edges see `ClusterMetisPartitioner`.

    Method: Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998,
    https://github.com/KarypisLab/METIS, through pymetis.

    Args:
        *args, **kwargs: output_dir, num_parts, num_nodes, ... of `PartitionerBase`, and:
        balance: names of the quantities that parts share evenly, as for `StreamPartitioner`. Passes
            after METIS balance several of them, at the price of more cut edges.
        slack: share by which a part may exceed the mean of each quantity (default: 0.03).

    Raises:
        ImportError: pymetis is not installed.

    Example:
        >>> partitioner = MetisPartitioner.from_data(data, path / "parts", 2)
        >>> partitioner.partition().num_parts
        2
    """

    def _configure(self, balance: Sequence[str] = ("nodes",), slack: float = 0.03) -> None:
        super()._configure(balance, slack)
        if not has_metis():
            raise ModuleNotFoundError(
                f"{type(self).__name__} needs pymetis, which is not installed: pip install "
                "pymetis, or take StreamPartitioner (--method stream)"
            )

    def _in_memory(self) -> int:
        """Return the bytes of memory that the edges take here and in METIS's process."""
        return super()._in_memory() + self.source.num_edges * 2 * _METIS_ENTRY_BYTES

    def _is_large(self) -> bool:
        return False  # METIS has all edges in memory

    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node of an undirected graph: [num_nodes] integers.

        METIS cuts. If there are several quantities to balance, passes over the nodes follow.

        :meta private:
        """
        return self._best(graph, self._metis(graph, self.constraints.most_uneven()), 1)

    def _best(self, graph: Undirected, cuts: Sequence[Int32Array], refine: int) -> Int32Array:
        """Improve METIS's cuts by `refine` passes over the nodes, and return the best one.

        The best cut is the most even, and of equally even ones the smallest. With several
        quantities to balance, passes with each of `SCORES` are tried on each cut, as no score is
        best on all graphs. A cut is [num_nodes] int32 parts.
        """
        plans = [["cut"] * refine]
        if len(self.constraints.names) > 1:
            plans = [[score] * _EVEN_OUT + ["cut"] * _REFINE for score in SCORES]
        tried: list[tuple[float, int, Int32Array]] = []
        for labels in cuts:
            for scores in plans:
                improved = labels.copy()
                excess = self.stream(graph, improved, scores, 0)
                tried.append((excess, graph.cut(improved), improved))
        return min(tried, key=lambda cut: cut[:2])[2]

    def _metis(self, graph: Undirected, weights: Int64Array) -> list[Int32Array]:
        """Return METIS's cut. If there are several quantities to balance, return a few cuts.

        `weights` [num_nodes] int64 is the quantity that METIS balances. The cuts have different
        seeds.
        """
        seeds = [self.seed]
        if len(self.constraints.names) > 1:
            seeds += [self.seed + i * _SEED_STEP for i in range(1, _CUTS)]
            # METIS rejects 0. Scale to mean 1000, so that 1 is negligible.
            weights = np.maximum((weights * (1000 / weights.mean())).astype(np.int64), 1)
        ufactor = max(1, min(UFACTOR, int(1000 * self.slack) - 1))
        cuts, rows = [], graph.whole()
        for i, seed in enumerate(seeds):
            self.progress("METIS", i, len(seeds))
            cuts.append(run_metis(rows, weights, self.num_parts, ufactor, seed))
        self.progress("METIS", 1, 1)
        return cuts


class ClusterMetisPartitioner(MetisPartitioner):
    """Partitioner that runs METIS on clusters of nodes, for graphs far too large for METIS.

    Size-constrained label propagation first joins nodes to clusters. METIS cuts the graph of
    clusters. Passes over the nodes then improve this cut, which is nearly as good as METIS's own.

    Method: Meyerhenke, Sanders and Schulz, SEA 2014, for the clusters.

    Args:
        *args, **kwargs: see `MetisPartitioner`, and:
        clusters: approximate number of clusters. If None, 1,000,000, or with `cluster_ids=True` one
            per 64 nodes if that is less. A graph with no more nodes than this is cut without
            clusters.

    Raises:
        ImportError, ValueError: as `MetisPartitioner`.

    Example:
        >>> partitioner = ClusterMetisPartitioner.from_data(data, path / "parts", 2, clusters=4)
        >>> partitioner.partition().num_parts
        2
    """

    makes_clusters = True
    node_bytes = 64

    def _configure(
        self, balance: Sequence[str] = ("nodes",), slack: float = 0.03, clusters: int | None = None
    ) -> None:
        super()._configure(balance, slack)
        count = self.source.num_nodes
        if clusters is None:
            clusters = _CLUSTERS
            if self.cluster_ids is True:
                clusters = min(clusters, max(self.num_parts, count // CLUSTER_NODES))
        elif self.cluster_ids is True and count < clusters:
            raise ValueError(
                f"the graph has {count} nodes for {clusters} clusters: ask for fewer "
                "(clusters=, --clusters)"
            )
        if not self.num_parts <= clusters <= 2**31 - 1:
            raise ValueError(
                f"clusters must be between num_parts, {self.num_parts}, and 2^31 - 1 (got "
                f"{clusters})"
            )
        self.clusters = clusters
        self._of_node: NodeNumbering | None = None

    def _in_memory(self) -> int:
        if self.source.num_nodes <= self.clusters:
            return super()._in_memory()
        return StructuralPartitioner._in_memory(self) * 2

    def _is_large(self) -> bool:
        return self.source.num_nodes > self.clusters and StructuralPartitioner._is_large(self)

    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node, [num_nodes]: METIS's cut of clusters, improved by passes.

        :meta private:
        """
        if graph.num_nodes <= self.clusters:
            return super().cut(graph)
        of_node, count = self._of_node = self._clusters(graph)
        sizes = np.bincount(of_node, self.constraints.most_uneven(), count).astype(np.int64)
        with self.undirected(self._of_node) as contracted:
            self._check_memory(contracted)
            cuts = [labels[of_node] for labels in self._metis(contracted, sizes)]
        return self._best(graph, cuts, _REFINE)

    def _check_memory(self, contracted: Undirected) -> None:
        """Raise ValueError if METIS needs more memory for the graph of clusters, `contracted`."""
        if not self._is_large():
            return
        assert self.effort.memory is not None
        taken = contracted.num_entries * _METIS_ENTRY_BYTES
        left = self.effort.memory - self.assignment_bytes()
        if taken > left:
            raise ValueError(
                f"METIS takes some {taken:,} bytes for {contracted.num_nodes:,} clusters, but "
                f"{left:,} are left: ask for fewer clusters (clusters=, --clusters), more memory "
                "(--memory), or take --method stream"
            )

    def _clusters(self, graph: Undirected) -> NodeNumbering:
        weights = self.constraints.most_uneven().astype(np.int32)
        return cluster_nodes(graph, weights, self.clusters, self.seed, self.progress)

    def cluster_nodes(self) -> dict[NodeType, IntArray]:
        """Return the cluster of each node by node type: METIS's own with `cluster_ids=True`."""
        if self.cluster_ids is not True:
            return super().cluster_nodes()
        if self._of_node is None:  # a single part needs no METIS
            with self.undirected() as graph:
                self._of_node = self._clusters(graph)
        return split_by_type(self.source, self._of_node.of_node)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "clusters": self.clusters}


def has_metis() -> bool:
    """Return True if pymetis is installed."""
    return importlib.util.find_spec("pymetis") is not None


def run_metis(
    graph: RowBlock,
    weights: Int64Array,
    num_parts: int,
    ufactor: int = UFACTOR,
    seed: int = 0,
    recursive: bool = False,
) -> Int32Array:
    """Run METIS in a process of its own.

    Args:
        graph: all rows of the graph.
        weights: [num_nodes] int64 weights of nodes, above 0.
        num_parts: number of parts.
        ufactor: allowed imbalance, in thousandths.
        seed: seed of METIS's random choices.
        recursive: True for recursive bisection, False for the k-way method.

    Returns:
        [num_nodes] int32 part of each node.

    Raises:
        RuntimeError: METIS failed. The message has its output.
        ValueError: `weights` has another length than the graph, or a value below 1.
    """
    num_nodes = len(graph.indptr) - 1
    if weights.shape != (num_nodes,) or (len(weights) and int(weights.min()) < 1):
        raise ValueError(
            f"METIS takes a weight above 0 for each of {num_nodes} nodes (got weights of "
            f"shape {list(weights.shape)}, the least {weights.min(initial=1)})"
        )
    with tempfile.TemporaryDirectory(prefix="khop-metis-") as folder:
        arrays = {"indptr": graph.indptr, "indices": graph.indices, "edges": graph.weights}
        for name, array in {**arrays, "nodes": weights}.items():
            np.save(Path(folder, f"{name}.npy"), array)
        program = _PROGRAM.format([p for p in sys.path if Path(p).is_absolute()])
        options = [str(n) for n in (num_parts, ufactor, seed % (2**31 - 1), int(recursive))]
        done = subprocess.run(
            [sys.executable, "-c", program, folder, *options],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = done.stderr.strip()[-2000:] or f"it ended with status {done.returncode}"
            taken = human_bytes(len(graph.indices) * _METIS_ENTRY_BYTES)
            raise RuntimeError(
                f"METIS failed on {num_nodes} nodes and {len(graph.indices)} entries, for "
                f"which it takes some {taken}: {reason}"
            )
        labels: Int32Array = np.load(Path(folder, "labels.npy"), allow_pickle=False)
        labels = labels.astype(np.int32)
    if labels.shape != weights.shape or (len(labels) and not 0 <= labels.min() <= labels.max()):
        raise RuntimeError(f"METIS returned labels of shape {labels.shape}")
    return labels
