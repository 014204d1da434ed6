"""GraphSAINT's samplers: subgraphs of drawn nodes, and the norms of their losses.

Runs in the trainer.
"""

from __future__ import annotations

import abc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from tqdm.auto import tqdm

from khop import _native
from khop.data.arrays import distinct
from khop.data.steps import run
from khop.loader.arguments import EpochOptions, check_positive
from khop.loader.induced.base import InducedLoader, check_homogeneous
from khop.loader.induced.saved_tensors import saved_tensors
from khop.loader.iteration.epochs import EpochKeys
from khop.sampler.methods.saint import SOURCES, SaintWalks, sources, visited
from khop.sampler.pyg.draw_scope import BatchKey
from khop.sampler.requests import SeedSet
from khop.typing import Int64Array

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ROOTS = 17  # purpose of keys. Others are in `khop.sampler.methods.{saint,walk}`
_NORM_EPOCH = 2**64 - 1
"""Epoch of the subgraphs in which norms are counted. No loader reaches it."""

# From PyG: count of a node in no subgraph, norm of an edge to such a node, largest norm of an edge.
_NEVER_SEEN, _MOST = 0.1, 1e4


class GraphSAINTSampler(InducedLoader):
    """Base of GraphSAINT's samplers: an epoch is `num_steps` subgraphs, drawn independently.

    A batch has the drawn nodes, ascending and without repetition, all edges among them sorted by
    source, `n_id` and `e_id`. With `sample_coverage`, `node_norm` weighs the loss, and `edge_norm`
    multiplies messages. The mean sum of `node_norm` over a batch tends to 1 as the coverage grows.

    Norms come from S subgraphs drawn beforehand, which together have at least `sample_coverage`
    times as many nodes as the graph. C_v of these subgraphs have node v. C_e of them have edge e =
    (u, v). `node_norm` is S / (C_v num_nodes), with 0.1 in place of a C_v of 0. `edge_norm` is C_v
    / C_e, at most 10,000, and 0.1 if both are 0. (PyG takes C_u. The paper takes C_v, as here.)

    Method: GraphSAINT (https://arxiv.org/abs/1907.04931).

    Attributes:
        node_norm: [num_nodes] float32, with `sample_coverage` only.
        edge_norm: [num_edges] float32, likewise.
    """

    node_norm: Tensor
    edge_norm: Tensor

    def __init__(
        self,
        data: Data,
        batch_size: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Unpack[EpochOptions],
    ) -> None:
        name = type(self).__name__
        check_homogeneous(data, name)
        check_positive(batch_size, "batch_size")
        check_positive(num_steps, "num_steps")
        if isinstance(sample_coverage, bool) or not sample_coverage >= 0:
            raise ValueError(
                f"sample_coverage must be a number, 0 or positive (got {sample_coverage!r})"
            )
        for option in ("sampler", "batch_sampler"):
            if kwargs.get(option) is not None:
                raise TypeError(f"{name} draws its nodes by itself: leave {option} out")
        self._num_drawn = batch_size
        self.num_steps = num_steps
        self.sample_coverage = sample_coverage
        super().__init__(data, num_steps, batch_size=1, by_source=True, **kwargs)
        graph = self.node_sampler.graph
        (self._topology,) = graph.topologies.values()
        (self._num_nodes,) = graph.num_nodes.values()
        self._check_graph()
        if sample_coverage > 0:
            self._set_norms(kwargs.get("seed"), save_dir, log)

    @abc.abstractmethod
    def _drawn_nodes(self, key: BatchKey) -> Int64Array:
        """Draw the nodes of a batch, with repetitions, as [n] int64 ids. Run in threads.

        `key` determines the random numbers.
        """

    def _check_graph(self) -> None:
        """Raise ValueError if the graph lacks the nodes or edges that are drawn."""
        if self._num_nodes == 0:
            raise ValueError(f"{type(self).__name__} draws nodes, but the graph has none")

    def _walked(self, key: BatchKey, length: int) -> Int64Array:
        """Return the nodes that `batch_size` walks of `length` steps visit, with repetitions.

        Walks start at uniform nodes and follow edges to their destinations.
        """
        at = _native.program_key(*key, _ROOTS, 0, 0)
        roots = _native.draw_ids(at, self._num_nodes, self._num_drawn)
        nodes: Int64Array = run(visited(self.node_sampler.access(key), roots, length))
        return nodes

    def _chosen(self, items: Int64Array, key: BatchKey) -> list[SeedSet]:
        return [SeedSet(0, distinct(self._drawn_nodes(key)))]

    def _settings(self) -> list[Any]:
        return [self._num_drawn]

    def _annotate(self, batch: Data, metadata: Any) -> None:
        if self.sample_coverage > 0:
            batch.node_norm = self.node_norm[batch.n_id]
            batch.edge_norm = self.edge_norm[batch.e_id]

    @property
    def _filename(self) -> str:
        return f"{type(self).__name__.lower()}_{self.sample_coverage}.pt"

    def _set_norms(self, seed: int | None, save_dir: str | None, log: bool) -> None:
        def count() -> dict[str, Tensor]:
            if seed is None:
                run_key = EpochKeys(None, 0, self.generator).next_run_key()
            else:
                run_key = _native.run_key(seed, _NORM_EPOCH, 0)
            return self._norms(*self._counted(run_key, log))

        path = None if save_dir is None else Path(save_dir) / self._filename
        graph = self._topology
        lengths = {"node_norm": self._num_nodes, "edge_norm": graph.num_edges}
        made_from = [type(self).__name__, *self._settings(), graph.indptr, graph.indices]
        norms = saved_tensors(path, made_from, lengths, torch.float32, count)
        self.node_norm, self.edge_norm = norms["node_norm"], norms["edge_norm"]

    def _counted(self, run_key: int, log: bool) -> tuple[int, Int64Array, Int64Array]:
        """Draw subgraphs until their nodes reach the coverage, to compute norms.

        Returns their number, and how many of them each node [num_nodes] and edge [num_edges] is in.
        `log` shows a progress bar.
        """
        nodes = np.zeros(self._num_nodes, np.int64)
        edges = np.zeros(self._topology.num_edges, np.int64)
        steps = seen = 0
        least = self._num_nodes * self.sample_coverage
        title = "Compute GraphSAINT normalization"
        with tqdm(total=least, desc=title, unit="node", disable=not log) as bar:
            while seen < least:
                drawn = self._induced(np.zeros(0, np.int64), BatchKey(run_key, steps))
                node, edge = drawn.nodes[0].numpy(), drawn.edges[0]
                assert edge is not None  # the sampler records edges
                nodes[node] += 1
                edges[edge.numpy()] += 1
                steps, seen = steps + 1, seen + len(node)
                bar.update(len(node))
        return steps, nodes, edges

    def _norms(self, steps: int, nodes: Int64Array, edges: Int64Array) -> dict[str, Tensor]:
        """Return `node_norm` and `edge_norm` (float32), by name.

        `steps` subgraphs were drawn. `nodes` and `edges` count how many of them each is in.
        """
        topology = self._topology
        of_target = np.empty_like(edges)
        order = slice(None) if topology.edge_ids is None else topology.edge_ids
        of_target[order] = nodes[topology.indices]  # rows are sources
        edge_norm = np.full(len(edges), _NEVER_SEEN)
        seen = of_target > 0
        with np.errstate(divide="ignore"):
            edge_norm[seen] = np.minimum(of_target[seen] / edges[seen], _MOST)
        node_norm = steps / np.where(nodes > 0, nodes, _NEVER_SEEN) / max(self._num_nodes, 1)
        norms = {"node_norm": node_norm, "edge_norm": edge_norm}
        return {name: torch.from_numpy(norm).float() for name, norm in norms.items()}


class GraphSAINTNodeSampler(GraphSAINTSampler):
    """PyG's `GraphSAINTNodeSampler`: nodes drawn in proportion to their number of out-edges.

    A batch has the sources of `batch_size` uniform edges, drawn with replacement, and all edges
    among them. `GraphSAINTRandomWalkSampler` describes the norms.

    Method: the node sampler of GraphSAINT (https://arxiv.org/abs/1907.04931), as in PyG.

    Args:
        data: a PyG `Data`.
        batch_size: edges drawn for a batch.
        num_steps: batches in an epoch.
        sample_coverage: how often each node is drawn on average to compute norms. If 0, no norms.
        save_dir: folder in which norms are kept, and looked up. If None, they are not kept.
        log: show a progress bar while norms are counted.
        **kwargs: `EpochOptions`: `transform`, `seed`, `num_workers`, ... Norms depend on the seed
            alone.

    Raises:
        TypeError, ValueError: arguments do not fit, the graph has no edges, or a file in
            `save_dir` is of another graph or other options.

    Example:
        >>> loader = GraphSAINTNodeSampler(data, batch_size=3, num_steps=2, seed=1)
        >>> [batch.num_nodes <= 3 for batch in loader]
        [True, True]
    """

    def _check_graph(self) -> None:
        if self._topology.num_edges == 0:
            raise ValueError(f"{type(self).__name__} draws edges, but the graph has none")

    def _drawn_nodes(self, key: BatchKey) -> Int64Array:
        at = _native.program_key(*key, SOURCES, 0, 0)
        return sources(at, self._topology.indptr[1:], self._num_drawn)


class GraphSAINTEdgeSampler(GraphSAINTSampler):
    """PyG's `GraphSAINTEdgeSampler`, with the paper's probabilities: both ends of drawn edges.

    `batch_size` times, a uniform node is drawn, and then one of its out-edges. In an undirected
    graph, the probability of an edge (u, v) is proportional to 1 / d_u + 1 / d_v, as in the paper.
    PyG's is proportional to d_u + d_v. A node without edges is taken alone.

    Method: the edge sampler of GraphSAINT (https://arxiv.org/abs/1907.04931).

    Args:
        data: a PyG `Data`.
        batch_size: edges drawn for a batch, with replacement.
        num_steps, sample_coverage, save_dir, log, **kwargs: as for `GraphSAINTNodeSampler`.

    Raises:
        TypeError, ValueError: as `GraphSAINTNodeSampler`.

    Example:
        >>> loader = GraphSAINTEdgeSampler(data, batch_size=2, num_steps=2, seed=1)
        >>> [batch.num_nodes <= 4 for batch in loader]
        [True, True]
    """

    def _drawn_nodes(self, key: BatchKey) -> Int64Array:
        return self._walked(key, 1)


class GraphSAINTRandomWalkSampler(GraphSAINTSampler):
    """PyG's `GraphSAINTRandomWalkSampler`: the nodes that random walks visit.

    `batch_size` walks begin at uniform nodes, drawn with replacement, and go `walk_length` steps
    along the edges. At a node without out-edges they stay. A batch has all visited nodes and all
    edges among them.

    With `sample_coverage`, S subgraphs are drawn beforehand. C_v of them have node v, and C_e have
    edge e to v. Batches then have `node_norm` [num_nodes], S / (C_v N), to weigh the loss, and
    `edge_norm` [num_edges], C_v / C_e, to multiply messages. N is the number of nodes.

    Method: the random walk sampler of GraphSAINT (https://arxiv.org/abs/1907.04931).

    Args:
        data: a PyG `Data`.
        batch_size: walks of a batch.
        walk_length: steps of a walk, 1 to 1,000.
        num_steps, sample_coverage, save_dir, log, **kwargs: as for `GraphSAINTNodeSampler`.

    Raises:
        TypeError, ValueError: as `GraphSAINTNodeSampler`, or for a malformed `walk_length`.

    Example:
        >>> options = {"sample_coverage": 50, "log": False, "seed": 1}
        >>> loader = GraphSAINTRandomWalkSampler(data, 2, 2, num_steps=1, **options)
        >>> batch = next(iter(loader))
        >>> batch.node_norm.shape == batch.n_id.shape, batch.edge_norm.shape == batch.e_id.shape
        (True, True)
    """

    def __init__(
        self,
        data: Data,
        batch_size: int,
        walk_length: int,
        num_steps: int = 1,
        sample_coverage: int = 0,
        save_dir: str | None = None,
        log: bool = True,
        **kwargs: Unpack[EpochOptions],
    ) -> None:
        self.walk_length = SaintWalks(walk_length).walk_length  # checked
        super().__init__(data, batch_size, num_steps, sample_coverage, save_dir, log, **kwargs)

    def _drawn_nodes(self, key: BatchKey) -> Int64Array:
        return self._walked(key, self.walk_length)

    def _settings(self) -> list[Any]:
        return [*super()._settings(), self.walk_length]

    @property
    def _filename(self) -> str:
        return f"{type(self).__name__.lower()}_{self.walk_length}_{self.sample_coverage}.pt"
