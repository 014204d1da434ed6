"""Program (sampling method in Python) that uses all that programs may request of a graph.

`smallest` draws the same in plain Python.
"""

import itertools
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from khop.codec import Between
from khop.sampler.methods import ProgramMethod, register
from support.reference import oracle

PURPOSE, RANDOM = 7, 8
PROGRAM_HOP = 0xFFFFFFFC


@register
@dataclass(frozen=True)
class Smallest(ProgramMethod):
    """Program that takes the k neighbours of smallest random word of each row.

    Nodes get new words in every hop.
    """

    name: ClassVar[str] = "test-smallest"
    edge_values: ClassVar[tuple[str, ...]] = ("edge_norm",)
    node_values: ClassVar[tuple[str, ...]] = ("node_norm",)
    layer_wise: ClassVar[bool] = True

    fanout: Annotated[int, Between(1, 100)]
    hops: Annotated[int, Between(0, 10)] = 2

    @property
    def num_neighbors(self) -> list[int]:
        return [self.fanout] * self.hops

    def draw(self, graph: Any) -> Generator[list[Any], None, None]:
        for node_type, ids, _ in graph.seeds:
            original = yield from graph.original_ids(node_type, ids)
            assert (graph.engine_ids(node_type, original) == ids).all()
            graph.subgraph.add_seeds(node_type, ids)
        norms: dict[int, list[Any]] = {r: [] for r in range(len(graph.relations))}
        for hop in range(self.hops):
            for relation, (source, destination) in enumerate(graph.relations):
                ids, _, _ = graph.subgraph.frontier(destination)
                counts, neighbors, edges = yield from graph.neighbors(relation, ids)
                assert (counts == (yield from graph.degrees(relation, ids))).all()
                rows = np.repeat(np.arange(len(ids)), counts)
                assert (yield from graph.has_edges(relation, ids[rows], neighbors)).all()
                key = graph.key(PURPOSE, hop, source)
                words = yield from graph.words(key, source, neighbors)
                order = np.lexsort((edges, words, rows))
                place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
                kept = np.sort(order[place < self.fanout])
                left = np.bincount(rows[kept], minlength=len(ids)).astype(np.int32)
                graph.add_hop(relation, (left, neighbors[kept], edges[kept]))
                norms[relation].append(np.repeat(counts / np.maximum(left, 1), left))
            graph.subgraph.end_hop(all=True)
        for relation, found in norms.items():
            graph.values[f"e{relation}.edge_norm"] = np.concatenate([*found, []]).astype("f4")
        for i in range(len(graph.num_nodes)):
            size = graph.subgraph.num_nodes(i)
            graph.values[f"n{i}.node_norm"] = np.arange(size, dtype=np.float32)


@register
@dataclass(frozen=True)
class OneHop(ProgramMethod):
    """Program that takes the seeds and one neighbour of each, with all edges among them."""

    name: ClassVar[str] = "test-one-hop"
    subgraph_type: ClassVar[str | None] = "induced"
    num_neighbors: ClassVar[list[int]] = []

    def draw(self, graph: Any) -> Generator[list[Any], None, None]:
        ((node_type, ids, _),) = graph.seeds
        key, trees = graph.key(RANDOM), np.arange(len(ids), dtype=np.int32)
        _, found, _ = yield from graph.neighbors(0, ids, 1, key=key, replace=True, trees=trees)
        graph.subgraph.add_seeds(node_type, np.concatenate([ids, found]))


def word_of(key, node):
    """Return the random word of a node's original id."""
    low, high = itertools.islice(oracle.words(key, node), 2)
    return low | high << 32


def smallest(edge_index, seeds, fanout, hops, run_key, batch):
    """Return nodes, and (neighbour, node, edge) of each hop, as `Smallest` draws them."""
    nodes, layers = [int(s) for s in seeds], []
    for hop in range(hops):
        place = oracle.step_key(run_key, batch, PROGRAM_HOP, PURPOSE)
        key, layer = oracle.step_key(place, 0, hop, 0), []
        for node in list(nodes):
            row = [(e, int(u)) for e, (u, v) in enumerate(edge_index.T.tolist()) if v == node]
            words = {e: word_of(key, u) for e, u in row}
            least = sorted(row, key=lambda entry: (words[entry[0]], entry[0]))[:fanout]
            for e, u in sorted(least):
                nodes += [] if u in nodes else [u]
                layer.append((u, node, e))
        layers.append(layer)
    return nodes, layers
