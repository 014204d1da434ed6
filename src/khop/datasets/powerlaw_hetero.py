"""Synthetic heterogeneous graphs with heavy-tailed degrees, made one edge type at a time.

The method is described in `khop.datasets.powerlaw`. Sources and destinations of each edge type have
weights of their own: a paper of many authors need not have many topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import HeteroData

from khop.datasets.powerlaw import (
    _PAIRS_PER_BLOCK,
    _Permutation,
    _random_bits,
    _require,
    _weight_classes,
    complete_folder,
)
from khop.typing import EdgeType, Int64Array, NodeType

# Streams of random bits: two orders of nodes and the pairs of each edge type.
_STREAMS = 3
_FIRST_STREAM = 16  # `PowerLaw` uses lower ones


@dataclass(frozen=True)
class PowerLawHetero:
    """Random heterogeneous graph with heavy-tailed degrees. Equal arguments make equal graphs.

    Both ends of an edge are drawn independently, in proportion to the nodes' weights for this edge
    type. There are no attributes.

    Args:
        num_nodes: {node type: number of nodes}, each 2 to 2^40.
        num_edges: {edge type: number of edges}.
        mirrored: edge types that come with their reverses: with `(a, 'r', b)` also
            `(b, 'rev_r', a)`, whose edge i is the reverse of edge i. If None, all.
        exponent: of the tail of the degree distributions, above 2. Default: 3.13.
        seed: 0 to 2^64 - 1. Default: 0.

    Raises:
        ValueError: an argument is out of its range, or an edge type has unknown node types.

    Example:
        >>> PowerLawHetero({"a": 9, "b": 5}, {("a", "to", "b"): 20}).edge_types
        [('a', 'to', 'b'), ('b', 'rev_to', 'a')]
    """

    num_nodes: Mapping[NodeType, int]
    num_edges: Mapping[EdgeType, int]
    _: KW_ONLY
    mirrored: tuple[EdgeType, ...] | None = None
    exponent: float = 3.13
    seed: int = 0

    def __post_init__(self) -> None:
        for node_type, count in self.num_nodes.items():
            _require(2 <= count <= 2**40, f"num_nodes['{node_type}']", "in 2 ... 2^40", count)
        for edge_type, count in self.num_edges.items():
            _require(count >= 0, f"num_edges[{edge_type}]", "0 or more", count)
            known = edge_type[0] in self.num_nodes and edge_type[2] in self.num_nodes
            _require(known, "num_edges", f"between {list(self.num_nodes)}", edge_type)
        for edge_type in self.mirrored or ():
            _require(edge_type in self.num_edges, "mirrored", "of num_edges", edge_type)
        distinct = len(set(self.edge_types)) == len(self.edge_types)
        _require(distinct, "mirrored", "without types whose reverse is given", self.mirrored)
        _require(self.exponent > 2, "exponent", "above 2", self.exponent)
        _require(0 <= self.seed < 2**64, "seed", "in 0 ... 2^64 - 1", self.seed)

    @classmethod
    def academic(cls, scale: float = 1.0, *, seed: int = 0) -> PowerLawHetero:
        """Create a graph of papers, authors, fields and institutions, in six edge types.

        At scale 1 there are 5.1 M nodes and 124 M edges, as many as in `PowerLaw.products`: papers
        with their authors (72 M edges, both ways together) and fields (48 M), authors with their
        institutions (4 M). Mean degrees go from 0.7 (an author's institutions) to 400 (a field's
        papers). Scale multiplies nodes and edges.
        """
        nodes = {"paper": 2_000_000, "author": 3_000_000, "field": 60_000, "institution": 10_000}
        edges = {
            ("author", "writes", "paper"): 36_000_000,
            ("paper", "has_topic", "field"): 24_000_000,
            ("author", "affiliated_with", "institution"): 2_000_000,
        }
        return cls(
            {t: max(2, round(n * scale)) for t, n in nodes.items()},
            {t: round(n * scale) for t, n in edges.items()},
            seed=seed,
        )

    @property
    def edge_types(self) -> list[EdgeType]:
        """All edge types, each followed by its reverse, if it has one."""
        types = []
        for edge_type in self.num_edges:
            types.append(edge_type)
            if self.mirrored is None or edge_type in self.mirrored:
                types.append(_reverse(edge_type))
        return types

    def iter_edge_types(self) -> Iterator[tuple[EdgeType, Int64Array]]:
        """Yield the edge types in order, each with its edges, int64 [2, num_edges]."""
        for edge_type in self.num_edges:
            pair = self._draw(edge_type)
            yield edge_type, pair
            if self.mirrored is None or edge_type in self.mirrored:
                yield _reverse(edge_type), np.ascontiguousarray(pair[::-1])

    def data(self) -> HeteroData:
        """Return the graph as PyG data, in memory: 16 bytes per edge."""
        data = HeteroData()
        for node_type, count in self.num_nodes.items():
            data[node_type].num_nodes = count
        for edge_type, pair in self.iter_edge_types():
            data[edge_type].edge_index = torch.from_numpy(pair)
        return data

    def write(self, directory: str | Path) -> None:
        """Write the edges of each type to an `.npy` file in a folder, named by `file_name`.

        Arrays are [2, num_edges], int32 if the ids fit, else int64. The folder is complete or
        absent.

        Raises:
            FileExistsError: the folder is not empty.
        """
        narrow = max(self.num_nodes.values()) <= 2**31
        with complete_folder(Path(directory)) as unfinished:
            for edge_type, pair in self.iter_edge_types():
                file = unfinished / self.file_name(edge_type)
                np.save(file, pair.astype(np.int32) if narrow else pair)

    @staticmethod
    def file_name(edge_type: EdgeType) -> str:
        """Return the name of the .npy file that `write` makes for an edge type."""
        return "__".join(edge_type) + ".npy"

    def _draw(self, edge_type: EdgeType) -> Int64Array:
        """Draw the edges of an edge type, int64 [2, n]. Its reverse is not included."""
        source, _, destination = edge_type
        stream = _FIRST_STREAM + _STREAMS * list(self.num_edges).index(edge_type)
        count = self.num_edges[edge_type]
        ends = []
        for i, node_type in enumerate((source, destination)):
            num_nodes = self.num_nodes[node_type]
            # Each edge type has its own hubs.
            seed = int(_random_bits(self.seed, stream + i, 0, 1)[0])
            weights = _weight_classes(num_nodes, count, self.exponent)
            ends.append((weights, _Permutation(num_nodes, seed)))
        edges = np.empty((2, count), np.int64)
        for block, first in enumerate(range(0, count, _PAIRS_PER_BLOCK)):
            num_pairs = min(_PAIRS_PER_BLOCK, count - first)
            raw = _random_bits(self.seed, stream + 2, block, 2 * num_pairs).reshape(2, num_pairs)
            for (weights, node_at), bits, drawn in zip(ends, raw, edges, strict=True):
                drawn[first : first + num_pairs] = node_at(weights.draw_rank(bits))
        return edges


def _reverse(edge_type: EdgeType) -> EdgeType:
    """Return the reverse edge type: `(b, 'rev_r', a)` for `(a, 'r', b)`, and back."""
    source, relation, destination = edge_type
    turned = relation.removeprefix("rev_") if relation.startswith("rev_") else f"rev_{relation}"
    return (destination, turned, source)
