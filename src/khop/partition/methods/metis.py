"""METIS, of the graph itself or of its clusters. Needs pymetis (`pip install pymetis`).

METIS runs in a process of its own, so that the memory it takes is given back: some 110 bytes an
entry of the undirected graph, beside the graph. It knows one constraint: of several it gets the
hardest, and passes of `StreamPartitioner` then even out the others, of two cuts.
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
from khop.partition.writing.cluster_ids import CLUSTER_NODES
from khop.partition.writing.undirected import (
    Numbers,
    Rows,
    Undirected,
    cluster_nodes,
    split_by_type,
)
from khop.tables import human_bytes
from khop.typing import Int32Array, Int64Array, IntArray, NodeType

# METIS's own default of imbalance, in thousandths; it is kept below the slack that is asked for.
UFACTOR = 30
_EVEN_OUT = 10
# Cuts that are evened out, of which the best is taken: it varies by a tenth and more with the seed.
_CUTS = 2
_SEED_STEP = 1_000_003
_METIS_ENTRY_BYTES = 120
# This process's path, not the working directory, where a file may have the name of a module.
_PROGRAM = (
    "import sys; sys.path[:] = {!r}; from khop.partition.methods.metis_process import main; main()"
)
_REFINE = 4
# As many as METIS cuts in some GB.
_CLUSTERS = 1_000_000


class MetisPartitioner(StructuralPartitioner):
    """Partitioner by METIS's multilevel k-way method: the fewest edges between parts.

    The graph is made undirected; edges that are there several times weigh more. Debian's graph in
    2, 4 and 8 parts: 0.06, 0.14 and 0.19 of its edges are cut, where `StreamPartitioner` cuts 0.08,
    0.16 and 0.24. Takes some 110 bytes and 3 us an entry of the undirected graph: for graphs beyond
    10^8 edges see `ClusterMetisPartitioner`.

    Method: Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998, https://github.com/KarypisLab/METIS,
    through pymetis.

    Args:
        *args, **kwargs: see `PartitionerBase`, and:
        balance: what parts get even shares of; see `StreamPartitioner`. Several constraints are
            evened out after METIS, which cuts more edges.
        slack: how much more than the mean of each a part may hold; default: 0.03.

    Raises:
        ImportError: pymetis is not installed.
        ValueError: see `PartitionerBase`.

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
        """Return the bytes of the edges in memory; METIS's process included."""
        return super()._in_memory() + self._edge_count() * 2 * _METIS_ENTRY_BYTES

    def _is_large(self) -> bool:
        return False  # METIS has all edges in memory

    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node, by METIS; several constraints are then evened out.

        :meta private:
        """
        return self._best(graph, self._metis(graph, self.constraints.most_uneven()), 1)

    def _best(self, graph: Undirected, cuts: Sequence[Int32Array], refine: int) -> Int32Array:
        """Improve cuts and return the best, balance first; with several constraints even them out.

        Which score disturbs METIS's cut less depends on the graph; and which of its cuts is even in
        the other constraints, on its seed.
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
        return min(tried, key=lambda found: found[:2])[2]

    def _metis(self, graph: Undirected, weights: Int64Array) -> list[Int32Array]:
        """Return METIS's cut; with several constraints those of a few seeds."""
        seeds = [self.seed]
        if len(self.constraints.names) > 1:
            seeds += [self.seed + i * _SEED_STEP for i in range(1, _CUTS)]
            # METIS takes no weight of 0: 1 is next to nothing only where the mean is large.
            weights = np.maximum((weights * (1000 / weights.mean())).astype(np.int64), 1)
        ufactor = max(1, min(UFACTOR, int(1000 * self.slack) - 1))
        cuts, rows = [], graph.whole()
        for i, seed in enumerate(seeds):
            self.progress("METIS", i, len(seeds))
            cuts.append(run_metis(rows, weights, self.num_parts, ufactor, seed))
        self.progress("METIS", 1, 1)
        return cuts


class ClusterMetisPartitioner(MetisPartitioner):
    """Partitioner by METIS of clusters: near METIS's cut, of graphs far larger than it takes.

    Passes over the nodes first make clusters of bounded size, by size-constrained label
    propagation; METIS cuts the graph of clusters; passes over the nodes improve its cut.

    Method: Meyerhenke, Sanders and Schulz, SEA 2014, for the clusters.

    Args:
        *args, **kwargs: see `MetisPartitioner`, and:
        clusters: about how many clusters METIS gets. If None, 1,000,000; with `cluster_ids=True`
            one for 64 nodes, if these are fewer. Graphs with fewer nodes than clusters are cut by
            METIS as they are.

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
        self,
        balance: Sequence[str] = ("nodes",),
        slack: float = 0.03,
        clusters: int | None = None,
    ) -> None:
        super()._configure(balance, slack)
        count = sum(node.count for node in self.source.nodes.values())
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
        self._of_node: Numbers | None = None

    def _in_memory(self) -> int:
        """Return the bytes of the edges in memory; METIS gets no more than its clusters."""
        if self._node_count() <= self.clusters:
            return super()._in_memory()
        return StructuralPartitioner._in_memory(self) * 2

    def _is_large(self) -> bool:
        return self._node_count() > self.clusters and StructuralPartitioner._is_large(self)

    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node: METIS of its clusters, and passes that improve it.

        :meta private:
        """
        if graph.num_nodes <= self.clusters:
            return super().cut(graph)
        of_node, count = self._of_node = self._clusters(graph)
        sizes = np.bincount(of_node, self.constraints.most_uneven(), count).astype(np.int64)
        with self.undirected(Numbers(of_node, count)) as contracted:
            self._check_memory(contracted)
            cuts = [labels[of_node] for labels in self._metis(contracted, sizes)]
        return self._best(graph, cuts, _REFINE)

    def _check_memory(self, contracted: Undirected) -> None:
        """Refuse a graph of clusters that METIS has no memory for; how large it is shows late."""
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

    def _clusters(self, graph: Undirected) -> Numbers:
        weights = self.constraints.most_uneven().astype(np.int32)
        return cluster_nodes(graph, weights, self.clusters, self.seed, self.progress)

    def cluster_nodes(self) -> dict[NodeType, IntArray]:
        """Return the clusters that METIS got, by node type."""
        if self.cluster_ids is not True:
            return super().cluster_nodes()
        if self._of_node is None:  # a single part needs no METIS
            with self.undirected() as graph:
                self._of_node = self._clusters(graph)
        return split_by_type(self.source, self._of_node.of_node)

    def describe(self) -> dict[str, Any]:
        """Return method and arguments, as recorded in meta.json."""
        return {**super().describe(), "clusters": self.clusters}


def has_metis() -> bool:
    """Return True if pymetis is installed."""
    return importlib.util.find_spec("pymetis") is not None


def run_metis(
    graph: Rows,
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
        ufactor: imbalance that is allowed, in thousandths.
        seed: of METIS's random choices.
        recursive: bisect recursively.

    Returns:
        [num_nodes] int32 part of each node.

    Raises:
        RuntimeError: METIS failed; the message has what it said.
        ValueError: weights of another length, or not above 0.
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
        numbers = [str(n) for n in (num_parts, ufactor, seed % (2**31 - 1), int(recursive))]
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _PROGRAM.format([p for p in sys.path if Path(p).is_absolute()]),
                folder,
                *numbers,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.strip()[-2000:] or f"it ended with status {done.returncode}"
            taken = human_bytes(len(graph.indices) * _METIS_ENTRY_BYTES)
            raise RuntimeError(
                f"METIS failed on {num_nodes} nodes and {len(graph.indices)} entries, for "
                f"which it takes some {taken}: {said}"
            )
        labels: Int32Array = np.load(Path(folder, "labels.npy"), allow_pickle=False).astype(
            np.int32
        )
    if labels.shape != weights.shape or (len(labels) and not 0 <= labels.min() <= labels.max()):
        raise RuntimeError(f"METIS returned labels of shape {labels.shape}")
    return labels
