"""Original ids and places of the nodes of a `StepMethod`'s batch. Imports no torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from khop.sampler.methods.access import GraphAccess, Rows, Waiting
from khop.typing import Int64Array


class Names(NamedTuple):
    """Original ids of a step's neighbours.

    Attributes:
        ids: [m] int64, the neighbours under the engine's ids, each once, ascending.
        original: [m] int64, the same under their original ids.
        entries: [n] int64, where in these each entry's neighbour is.
    """

    ids: Int64Array
    original: Int64Array
    entries: Int64Array

    @classmethod
    def of(cls, graph: GraphAccess, neighbors: Int64Array) -> Waiting:
        """Ask for the original ids of neighbours, [n] int64 engine's ids."""
        ids, entries = np.unique(neighbors, return_inverse=True)
        original = yield from graph.original_ids(0, ids)
        return cls(ids, original, entries)

    @property
    def of_entries(self) -> Int64Array:
        """Original ids of all entries, [n] int64."""
        return self.original[self.entries]

    def lookup(self, ids: Int64Array) -> Int64Array:
        """Return the original ids of some of the neighbours."""
        return self.original[np.searchsorted(self.ids, ids)]


class Places(NamedTuple):
    """Places of nodes in a batch: a seed that was given several times has as many.

    Attributes:
        ids: [m] int64 engine's ids, each once.
        nodes: [n] int64, the node at each place of the batch, from 0 to m - 1.
    """

    ids: Int64Array
    nodes: Int64Array

    @classmethod
    def of(cls, graph: GraphAccess) -> Places:
        """Return the places of the seeds."""
        seeds = graph.subgraph.frontier(0)[0]
        _, first, nodes = np.unique(seeds, return_index=True, return_inverse=True)
        order = np.argsort(first)  # of the distinct nodes, by their first places
        return cls(seeds[first[order]], np.argsort(order)[nodes])

    def add_hop(
        self, graph: GraphAccess, of_entries: Int64Array, rows: Rows, kept: Int64Array
    ) -> Int64Array:
        """Add entries of rows to the batch, for each place of their nodes.

        Args:
            graph: the graph; its frontier is the whole batch.
            of_entries: [k] int64, the node that each entry is a neighbour of.
            rows: the rows.
            kept: [k] int64, entries of the rows.

        Returns:
            For each edge that was added its index in `kept`.
        """
        by_node = np.argsort(of_entries, kind="stable")
        counts = np.bincount(of_entries, minlength=len(self.ids))
        begins, counts = (np.cumsum(counts) - counts)[self.nodes], counts[self.nodes]
        offsets = np.repeat(begins - (np.cumsum(counts) - counts), counts)
        order = by_node[offsets + np.arange(len(offsets))]
        entries = kept[order]
        edges = None if rows[2] is None else rows[2][entries]
        graph.add_hop(0, (counts.astype(np.int32), rows[1][entries], edges))
        graph.subgraph.end_hop(all=True)
        return order

    def after_hop(self, graph: GraphAccess) -> Places:
        """Return the places after a hop that was added."""
        added = graph.subgraph.frontier(0)[0][len(self.nodes) :]
        own = np.arange(len(self.ids), len(self.ids) + len(added))
        return Places(np.concatenate([self.ids, added]), np.concatenate([self.nodes, own]))


def find_places(nodes: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return where nodes are in an array that has all of them, once."""
    order = np.argsort(nodes)
    return order[np.searchsorted(nodes, wanted, sorter=order)]
