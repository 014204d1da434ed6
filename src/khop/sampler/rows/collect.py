"""Collection of batches: a subgraph and its attributes, written to arrays that are given.

Rows come from the local part, from its copies of other parts' hot rows, and from the owners of the
rest. A cache has rows of owners that earlier batches requested. Requests are sent before anything
is copied here.

Arrays are named `n<type>.<attribute>` and `e<type>.<attribute>`. `id` holds original node ids,
`edge_id` original edge ids, `edge_index` the endpoints' indices in the batch. `t<type>` holds the
tree of each node of a disjoint batch, and `s.<name>` data of seeds, such as the positions of links'
ends. A sampling method can add values of nodes or edges: `e<type>.edge_norm`.

Counters of a batch are `batch` (its index), `nodes` and `edges` (how many), `rows` (see
`khop.trace.clock.ROWS`) and `made` (see `khop.trace.clock.BatchTimings`). `n<type>.hops` and
`e<type>.hops` count the nodes and edges of each hop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np

from khop import _native
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record
from khop.channel.pool import BufferPool
from khop.codec import AtMost, Distinct
from khop.data import Feature, RowFormat
from khop.sampler.methods.access import Waiting
from khop.sampler.requests import RemoteParts
from khop.sampler.rows.row_cache import PLAN_BYTES, RowCache, TableSize, capacities
from khop.sampler.rows.row_fetch import RowFetch, write_rows
from khop.sampler.rows.row_fetcher import OpenRows, PartRows
from khop.sampler.spec import MAX_TYPES
from khop.storage.folder import AttrMeta
from khop.storage.part import Part
from khop.trace.clock import REUSED, ROWS, BatchTimings
from khop.typing import Array

_INT64 = np.dtype(np.int64)
_MAX_ATTRIBUTES = 4096  # of a type
NODE_BYTES, EDGE_BYTES = 160, 32
"""Bytes of a drawn batch, without rows, per node and edge: ids, positions, tables, planned uses."""
# Announced batches for rows on disk: 4 % more misses than with all batches of an epoch, where 8
# batches have 12 % more (benchmarks/disk.py, cache of 15 % of the rows).
_KNOWN_FOR_DISK = 32

_Names = Annotated[list[Annotated[str, AtMost(512)]], AtMost(_MAX_ATTRIBUTES), Distinct()]
_NamesByType = Annotated[list[_Names], AtMost(MAX_TYPES)]

Allocate: TypeAlias = Callable[[Record], Mapping[str, Array]]
"""Function from a batch's layout and sizes to the arrays to fill, by name."""


@dataclass(frozen=True)
class CollectSpec:
    """Attributes of a batch, for each node type and each edge type.

    Attributes:
        node_attrs: names, for each node type.
        edge_attrs: names, for each edge type.
        with_edge: for each edge type, include edge ids (and attributes).
        with_trees: include each node's tree.
        counts_hops: include the numbers of nodes and edges of each hop.
        as_stored: write encoded rows as they are stored. The trainer widens them.
    """

    node_attrs: _NamesByType = field(default_factory=list)
    edge_attrs: _NamesByType = field(default_factory=list)
    with_edge: Annotated[list[bool], AtMost(MAX_TYPES)] = field(default_factory=list)
    with_trees: bool = False
    counts_hops: bool = True
    as_stored: bool = False

    def row(self, attr: AttrMeta) -> RowFormat:
        """Return dtype and shape of an attribute's rows in the arrays of a batch."""
        return attr.stored if self.as_stored else attr.delivered


@dataclass(eq=False)
class DrawnBatch:
    """A batch whose neighbours are drawn, and whose rows are not copied yet.

    Attributes:
        subgraph: as the engine returned it.
        batch: index of the batch.
        extras: further arrays of the batch, by name: 's.<name>' of seeds, of any shape,
            'n<type>.<name>' [num_nodes] and 'e<type>.<name>' [num_edges] of a type.
        fetches: the rows of each table, located.
        nbytes: estimated bytes of its memory before its rows are copied.
        reused_bytes: bytes of its rows that earlier batches requested.
        rules: misses by other rules, see `khop.trace.clock.RULES`.
        request_number: number of its request. None while its rows are not requested.
        after: number of the last request whose batch must be written before, with all before it.
        is_begun: whether its arrays are being written.
    """

    subgraph: Any
    batch: int
    extras: Mapping[str, Array]
    fetches: list[RowFetch] = field(default_factory=list)
    nbytes: int = 0
    reused_bytes: int = 0
    rules: tuple[int, int] = (0, 0)
    request_number: int | None = None
    after: int = -1
    is_begun: bool = False


class Collector:
    """Writer of batches to arrays: ids, edges and attributes, also from other partitions.

    A batch goes through `locate`, `announce`, `request` and `collect`. If there are caches of other
    parts' rows (`is_ordered`), batches are announced and requested in the same order. `may_collect`
    is then True for a batch once the batches that it depends on are collected.

    Args:
        part: the local part.
        spec: the attributes.
        remote: the other partitions, if there are any.
        labels: {index of a node type: rows of all its nodes, by new id} that the folder does not
            hold. Batches have them as `y`.
        cache_bytes: bytes of the caches of other parts' rows. 0 for no caches.
        opened: opens the rows of an attribute, also of a pack. If None, there is no pack.
    """

    def __init__(
        self,
        part: Part,
        spec: CollectSpec,
        remote: RemoteParts | None,
        labels: Mapping[int, Feature] | None = None,
        cache_bytes: int = 0,
        opened: OpenRows | None = None,
    ) -> None:
        self._part = part
        self._spec = spec
        self._labels = {
            i: labels[i]
            for i, names in enumerate(spec.node_attrs)
            if labels and i in labels
            if "y" in names
        }
        meta = part.meta
        node_types = range(len(meta.node_types))[: len(spec.node_attrs)]
        edge_types = range(len(meta.edge_types))[: len(spec.with_edge)]
        named = [("node", i, ["id", *self._stored(i)]) for i in node_types]
        named += [
            ("edge", i, ["edge_id", *spec.edge_attrs[i]]) for i in edge_types if spec.with_edge[i]
        ]
        how: dict[str, Any] = {"as_stored": spec.as_stored, "opened": opened or Part.feature}
        self._tables = [PartRows(part, *table, remote, **how) for table in named]
        # Names of their arrays in batches.
        self._names = [
            [f"{t.unit[0]}{t.type_index}.{n}" for n in t.attributes] for t in self._tables
        ]
        self._layouts: dict[object, Layout] = {}
        self._scratch = BufferPool()
        sizes = {i: _remote_size(table) for i, table in enumerate(self._tables)}
        counts = capacities(cache_bytes if remote is not None else 0, sizes)
        self._caches = {
            i: RowCache(self._tables[i], count, sizes[i].num_rows) for i, count in counts.items()
        }
        on_disk = set(() if part.folder.disk is None else part.folder.disk.names)
        self._reads_disk = opened is not None or any(
            table.attributes.keys() & on_disk for table in self._tables
        )
        # Batches whose rows were requested and are not written, in order. For caches only.
        self._requested: list[DrawnBatch] = []
        self._num_requests = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes of the caches of other parts' rows, with their plans."""
        tables = self._tables
        return sum(c.capacity * (tables[i].row_bytes + PLAN_BYTES) for i, c in self._caches.items())

    @property
    def is_ordered(self) -> bool:
        """True if batches must be announced and requested in the same order.

        Caches of other parts' rows need it, and rows that are read past the page cache profit.
        """
        return bool(self._caches) or self._reads_disk

    @property
    def batches_known(self) -> int:
        """Number of batches that should be announced, for caches and stores to choose well."""
        known = [cache.batches_known for cache in self._caches.values()]
        return max([*known, _KNOWN_FOR_DISK * self._reads_disk])

    def _stored(self, node_type: int) -> list[str]:
        """Return the names of a node type's attributes that are read from the folder."""
        names = self._spec.node_attrs[node_type]
        return [name for name in names if name != "y" or node_type not in self._labels]

    def locate(self, drawn: DrawnBatch) -> None:
        """Locate the rows of a batch."""
        subgraph, meta = drawn.subgraph, self._part.meta
        num_nodes = sum(subgraph.num_nodes(i) for i in range(len(meta.node_types)))
        num_edges = sum(subgraph.num_edges(i) for i in range(len(meta.edge_types)))
        drawn.nbytes = NODE_BYTES * num_nodes + EDGE_BYTES * num_edges
        for table in self._tables:
            if table.unit == "node":
                ids = self._scratch.empty((subgraph.num_nodes(table.type_index),), _INT64)
                subgraph.write_nodes(table.type_index, ids)
            else:
                ids = self._scratch.empty((subgraph.num_edges(table.type_index),), _INT64)
                subgraph.write_edges(table.type_index, ids)
            drawn.fetches.append(table.locate(ids))

    def announce(self, drawn: DrawnBatch) -> None:
        """Announce to caches and stores the rows that a batch will need."""
        for i, cache in self._caches.items():
            cache.announce(drawn.fetches[i])
        for fetch in drawn.fetches if self._reads_disk else ():
            fetch.expect()

    def request(self, drawn: DrawnBatch) -> None:
        """Send requests for the rows of other parts. If batches wait, begin the other reads."""
        for i, (table, fetch) in enumerate(zip(self._tables, drawn.fetches, strict=True)):
            if i not in self._caches:
                table.request_missing(fetch)
        if self._caches:
            self._request_by_plan(drawn)
        for fetch in drawn.fetches if self.is_ordered else ():
            fetch.start_reads()

    def _request_by_plan(self, drawn: DrawnBatch) -> None:
        self._requested.append(drawn)
        drawn.request_number = self._num_requests
        self._num_requests += 1
        before = self._missed_by_rules()
        drawn.after = max(
            cache.request(drawn.fetches[i], drawn.request_number)
            for i, cache in self._caches.items()
        )
        (lru, sieve), (lru_before, sieve_before) = self._missed_by_rules(), before
        drawn.rules = lru - lru_before, sieve - sieve_before

    def _missed_by_rules(self) -> tuple[int, int]:
        """Return the misses of LRU and of SIEVE so far, of the rows of nodes."""
        tables = [self._tables[i] for i in self._caches]
        misses = [
            cache.missed_by_rules
            for table, cache in zip(tables, self._caches.values(), strict=True)
            if table.unit == "node"
        ]
        return sum(lru for lru, _ in misses), sum(sieve for _, sieve in misses)

    def may_collect(self, drawn: DrawnBatch) -> bool:
        """Return True if no batch that is not collected has rows or memory that a batch needs."""
        return all(
            other is drawn or other.request_number is None or other.request_number > drawn.after
            for other in self._requested
        )

    def withdraw(self, drawn: DrawnBatch) -> None:
        """Give up a batch that was announced, or requested and not collected to its end."""
        if drawn not in self._requested:
            for i, cache in self._caches.items():
                cache.forget(drawn.fetches[i])
            return
        # Later batches may count on rows that this one does not store: they request theirs anew.
        # Batches that are begun do not count on it.
        first = self._requested.index(drawn)
        later = [batch for batch in self._requested[first + 1 :] if not batch.is_begun]
        gone = {id(batch) for batch in (drawn, *later)}
        self._requested = [batch for batch in self._requested if id(batch) not in gone]
        for batch in [drawn, *later]:
            for i, cache in self._caches.items():
                cache.discard(batch.fetches[i])
        for batch in later:
            for i, cache in self._caches.items():
                cache.announce(batch.fetches[i])
            self._request_by_plan(batch)

    def clear(self) -> None:
        """Forget all batches that are not collected, and the rows in the caches."""
        self._requested.clear()
        for cache in self._caches.values():
            cache.clear()

    def collect(self, drawn: DrawnBatch, allocate: Allocate) -> Waiting[Record]:
        """Write a batch whose rows were requested, and return its record.

        Args:
            drawn: the batch.
            allocate: returns the arrays to fill. Called once.
        """
        subgraph, extras, fetches = drawn.subgraph, drawn.extras, drawn.fetches
        drawn.is_begun = True
        record = self._record(subgraph, extras)
        arrays = allocate(record)
        self._count(record, subgraph, drawn.batch, self._origins(fetches))
        for i in self._caches:
            drawn.reused_bytes += fetches[i].origins[REUSED] * self._tables[i].row_bytes
        for name, values in extras.items():
            np.copyto(arrays[name], values)
        for i in range(len(self._part.meta.edge_types)):
            edge_index = arrays[f"e{i}.edge_index"]
            subgraph.write_edge_index(i, edge_index[0], edge_index[1])
        for i in range(len(self._part.meta.node_types)) if self._spec.with_trees else ():
            subgraph.write_trees(i, arrays[f"t{i}"])
        for i, labels in self._labels.items():
            labels.gather(fetches[i].ids, arrays[f"n{i}.y"])
        outs = [[arrays[name] for name in names] for names in self._names]
        yield from write_rows(list(zip(fetches, outs, strict=True)))
        if self._caches:
            self._requested.remove(drawn)
        return record

    def _origins(self, fetches: Sequence[RowFetch]) -> list[int]:
        """Return how many rows of nodes are local, local copies of hot rows, or of other parts."""
        counts = [0] * len(ROWS)
        for table, fetch in zip(self._tables, fetches, strict=True):
            if table.unit == "node":
                counts = [a + b for a, b in zip(counts, fetch.origins, strict=True)]
        return counts

    def _record(self, subgraph: _native.Subgraph, extras: Mapping[str, Array]) -> Record:
        """Return the record (sizes and layout) of a batch.

        Batches with equal arrays share a layout.
        """
        key = tuple((name, array.dtype, array.ndim) for name, array in extras.items())
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._layout(len(self._layouts), subgraph, extras)
        meta = self._part.meta
        sizes = [subgraph.num_nodes(i) for i in range(len(meta.node_types))]
        sizes += [subgraph.num_edges(i) for i in range(len(meta.edge_types))]
        for name, array in extras.items():
            if name.startswith("s."):
                sizes += array.shape
        return Record(layout, sizes)

    def _count(
        self, record: Record, subgraph: _native.Subgraph, batch: int, origins: Sequence[int]
    ) -> None:
        meta = self._part.meta
        node_types, edge_types = range(len(meta.node_types)), range(len(meta.edge_types))
        record.note("batch", batch)
        record.note("nodes", sum(subgraph.num_nodes(i) for i in node_types))
        record.note("edges", sum(subgraph.num_edges(i) for i in edge_types))
        record.note("rows", origins)
        if self._spec.counts_hops:
            for i in node_types:
                record.note(f"n{i}.hops", subgraph.nodes_per_hop(i))
            for i in edge_types:
                record.note(f"e{i}.hops", subgraph.edges_per_hop(i))

    def _layout(
        self, index: int, subgraph: _native.Subgraph, extras: Mapping[str, Array]
    ) -> Layout:
        """Return the layout of a batch: its arrays and counters.

        The sizes are the numbers of nodes and edges of each type, then axes of seeds' arrays.
        """
        num_nodes, num_edges = len(self._part.meta.node_types), len(self._part.meta.edge_types)
        node_axes = [-1 - i for i in range(num_nodes)]
        edge_axes = [-1 - num_nodes - i for i in range(num_edges)]
        arrays = [
            ArrayLayout(f"e{i}.edge_index", "int64", (2, axis)) for i, axis in enumerate(edge_axes)
        ]
        if self._spec.with_trees:
            arrays += [ArrayLayout(f"t{i}", "int64", (axis,)) for i, axis in enumerate(node_axes)]
        for table, names in zip(self._tables, self._names, strict=True):
            axis = (node_axes if table.unit == "node" else edge_axes)[table.type_index]
            arrays += [
                ArrayLayout(name, attr.dtype, (axis, *attr.shape))
                for name, attr in zip(names, table.attributes.values(), strict=True)
            ]
        for i, labels in self._labels.items():
            shape = (node_axes[i], *labels.row_shape)
            arrays.append(ArrayLayout(f"n{i}.y", labels.dtype, shape))
        used = num_nodes + num_edges
        for name, array in extras.items():
            if name.startswith("s."):
                axes = [-1 - used - i for i in range(array.ndim)]
                used += array.ndim
            else:  # of a type: 'e0.edge_norm'
                index_of_type = int(name[1:].partition(".")[0])
                axes = [(node_axes if name[0] == "n" else edge_axes)[index_of_type]]
            arrays.append(ArrayLayout(name, array.dtype.name, tuple(axes)))
        counters = [
            CounterLayout("batch", 1),
            CounterLayout("nodes", 1),
            CounterLayout("edges", 1),
            CounterLayout("rows", len(ROWS)),
            CounterLayout("made", len(BatchTimings._fields)),
        ]
        if self._spec.counts_hops:
            counters += [
                CounterLayout(f"n{i}.hops", len(subgraph.nodes_per_hop(i)))
                for i in range(num_nodes)
            ]
            counters += [
                CounterLayout(f"e{i}.hops", len(subgraph.edges_per_hop(i)))
                for i in range(num_edges)
            ]
        return Layout(index, arrays, counters)


def _remote_size(table: PartRows) -> TableSize:
    """Return the size of the rows that are requested, without rows that the part has copies of.

    Ids of edges alone are not cached.
    """
    if table.unit == "edge" and len(table.attributes) == 1:
        return TableSize(0, 0)
    copies = table.copies()
    num_copies = 0 if copies is None else len(copies.positions)
    return TableSize(table.row_bytes, max(table.num_elsewhere - num_copies, 0))
