"""METIS, of the graph itself or of its clusters. Needs pymetis (`pip install khop[metis]`).

METIS runs in a process of its own, so that the memory it takes is given back: some 110 bytes an
entry of the undirected graph, beside the graph. It knows one constraint: of several it gets the
hardest, and passes of `StreamPartitioner` then even out the others.
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

from khop import _native
from khop.partition.structure import SCORES, StructuralPartitioner, Undirected
from khop.typing import Int32Array, Int64Array, IntArray

# METIS's own default of imbalance, in thousandths; it is kept below the slack that is asked for.
UFACTOR = 30
_EVEN_OUT = 10
_METIS_ENTRY_BYTES = 120
# This process's path, not the working directory, where a file may have the name of a module.
_PROGRAM = "import sys; sys.path[:] = {!r}; from khop.partition.metis_process import main; main()"
_REFINE = 4


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
            raise ImportError(
                f"{type(self).__name__} needs pymetis, which is not installed: pip install "
                "'khop[metis]', or take StreamPartitioner (--method stream)"
            )

    def assignment_bytes(self) -> int:
        """Return about how much memory the cut takes; METIS's process included."""
        edges = sum(edge.num_edges for edge in self.source.edges.values())
        return super().assignment_bytes() + edges * 2 * _METIS_ENTRY_BYTES

    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node, by METIS; several constraints are then evened out."""
        labels = self._metis(graph, self.constraints.most_uneven())
        self._improve(graph, labels, ["cut"])
        return labels

    def _improve(self, graph: Undirected, labels: Int32Array, scores: Sequence[str]) -> None:
        """Improve a cut in place; with several constraints, even it out."""
        if len(self.constraints.names) == 1:
            self.stream(graph, labels, scores, 0)
            return
        # Which score disturbs METIS's cut less depends on the graph.
        tried = [(labels.copy(), score) for score in SCORES]
        found = [
            (self.stream(graph, copy, [score] * _EVEN_OUT, 0), graph.cut(copy))
            for copy, score in tried
        ]
        labels[:] = tried[found.index(min(found))][0]

    def _metis(self, graph: Undirected, weights: Int64Array) -> Int32Array:
        self.progress("METIS", 0, 1)
        ufactor = max(1, min(UFACTOR, int(1000 * self.slack) - 1))
        labels = run_metis(graph, weights, self.num_parts, ufactor, self.seed)
        self.progress("METIS", 1, 1)
        return labels


class ClusterMetisPartitioner(MetisPartitioner):
    """Partitioner by METIS of clusters: near METIS's cut, in memory for far larger graphs.

    Passes over the nodes first make clusters of bounded size, by size-constrained label
    propagation; METIS cuts the graph of clusters; passes over the nodes improve its cut.

    Method: Meyerhenke, Sanders and Schulz, SEA 2014, for the clusters.

    Args:
        *args, **kwargs: see `MetisPartitioner`, and:
        clusters: about how many clusters METIS gets; default: 1,000,000. Graphs with fewer nodes
            are cut by METIS as they are.

    Raises:
        ImportError, ValueError: as `MetisPartitioner`.

    Example:
        >>> partitioner = ClusterMetisPartitioner.from_data(data, path / "parts", 2, clusters=4)
        >>> partitioner.partition().num_parts
        2
    """

    _PASSES = 4

    def _configure(
        self,
        balance: Sequence[str] = ("nodes",),
        slack: float = 0.03,
        clusters: int = 1_000_000,
    ) -> None:
        super()._configure(balance, slack)
        if not self.num_parts <= clusters <= 2**31 - 1:
            raise ValueError(
                f"clusters must be between num_parts, {self.num_parts}, and 2^31 - 1 (got "
                f"{clusters})"
            )
        self.clusters = clusters

    def assignment_bytes(self) -> int:
        """Return about how much memory the cut takes; METIS gets no more than its clusters."""
        nodes = sum(node.count for node in self.source.nodes.values())
        if nodes <= self.clusters:
            return super().assignment_bytes()
        return StructuralPartitioner.assignment_bytes(self) * 2

    def cut(self, graph: Undirected) -> IntArray:
        """Return the part of each node: METIS of its clusters, and passes that improve it."""
        if graph.num_nodes <= self.clusters:
            return super().cut(graph)
        weights = self.constraints.most_uneven()
        of_node, count = self._clusters(graph, weights.astype(np.int32))
        contracted = Undirected(*graph.native().contract(of_node, count))
        sizes = np.bincount(of_node, weights, count).astype(np.int64)
        labels = self._metis(contracted, sizes)[of_node]
        self._improve(graph, labels, ["cut"] * _REFINE)
        return labels

    def _clusters(self, graph: Undirected, weights: Int32Array) -> tuple[IntArray, int]:
        """Return the cluster of each node, and how many there are."""
        of_node = np.arange(graph.num_nodes, dtype=graph.indices.dtype)
        loads, native = weights.astype(np.int64), graph.native()
        limit = max(1, int(2 * loads.sum() // self.clusters))
        for i in range(self._PASSES):
            key = _native.run_key(self.seed, i, 1)
            order = _native.permutation(graph.num_nodes, key)
            native.cluster_pass(order, weights, limit, of_node, loads)
            self.progress("clusters", i + 1, self._PASSES)
        found, numbers = np.unique(of_node, return_inverse=True)
        return numbers.astype(graph.indices.dtype), len(found)

    def describe(self) -> dict[str, Any]:
        """Return method and arguments, as recorded in meta.json."""
        return {**super().describe(), "clusters": self.clusters}


def has_metis() -> bool:
    """Return True if pymetis is installed."""
    return importlib.util.find_spec("pymetis") is not None


def run_metis(
    graph: Undirected,
    weights: Int64Array,
    num_parts: int,
    ufactor: int = UFACTOR,
    seed: int = 0,
    recursive: bool = False,
) -> Int32Array:
    """Run METIS in a process of its own.

    Args:
        graph: the graph.
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
    if weights.shape != (graph.num_nodes,) or (len(weights) and int(weights.min()) < 1):
        raise ValueError(
            f"METIS takes a weight above 0 for each of {graph.num_nodes} nodes (got weights of "
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
            raise RuntimeError(
                f"METIS failed on {graph.num_nodes} nodes and {len(graph.indices)} entries, for "
                f"which it takes some {len(graph.indices) * _METIS_ENTRY_BYTES >> 20} MB: {said}"
            )
        labels: Int32Array = np.load(Path(folder, "labels.npy"), allow_pickle=False).astype(
            np.int32
        )
    if labels.shape != weights.shape or (len(labels) and not 0 <= labels.min() <= labels.max()):
        raise RuntimeError(f"METIS returned labels of shape {labels.shape}")
    return labels
