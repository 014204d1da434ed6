"""Collection of batches: a subgraph and its attributes, written where they will be read.

Rows come from three places: the local part, its copies of other parts' hot rows, and the owners of
the rest. Requests to owners are sent before anything is copied here. Arrays are named
`n<type>.<attribute>` and `e<type>.<attribute>`; `id` holds original node ids, `edge_id` original
edge ids, `edge_index` the endpoints' numbers in the batch, `t<type>` the trees of a disjoint
batch's nodes, and `s.<name>` further arrays of the caller, seeds' positions for example. Counters
of a batch: `batch` (its index), `nodes` and `edges` (their numbers), `rows` (see
`khop.trace.clock.ROWS`), `made` (see `khop.trace.clock.BatchTimings`), and `n<type>.hops` and
`e<type>.hops`, the nodes and edges of each hop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np

from khop import _native
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record
from khop.channel.message import FRAME_BYTES
from khop.channel.pool import BufferPool
from khop.codec import Distinct
from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.sampler.replies import Checked, check_rows
from khop.sampler.requests import RemoteParts, Ticket
from khop.storage.part import Part
from khop.trace.clock import ROWS, BatchTimings
from khop.typing import Array, Int64Array

# Rows of other parts come in replies of at most this size. Each array fits one frame, which is not
# copied. While one is put in its place, the owner gathers the next, in memory that it has used
# before and that has not left its cache.
_REPLY_BYTES = FRAME_BYTES
_INT64 = np.dtype(np.int64)

Allocate = Callable[[Record], Mapping[str, Array]]


@dataclass(frozen=True)
class CollectSpec:
    """Attributes of a batch, for each node type and each edge type.

    Attributes:
        node_attrs: names, for each node type.
        edge_attrs: names, for each edge type.
        with_edge: for each edge type, include edge ids (and attributes).
        with_trees: include each node's tree.
        counts_hops: include the numbers of nodes and edges of each hop.
    """

    node_attrs: list[Annotated[list[str], Distinct()]] = field(default_factory=list)
    edge_attrs: list[Annotated[list[str], Distinct()]] = field(default_factory=list)
    with_edge: list[bool] = field(default_factory=list)
    with_trees: bool = False
    counts_hops: bool = True


class Table(NamedTuple):
    """Node or edge type, and names of the attributes to read of it."""

    kind: str  # 'node' or 'edge'
    type_index: int
    names: list[str]
    bounds: list[int]


class Collector:
    """Writer of the arrays of batches.

    Args:
        part: the local part.
        spec: the attributes.
        remote: the other partitions, if there are any.
        labels: {index of a node type: rows of all its nodes, by new id} that the folder does not
            hold; batches carry them as `y`.
    """

    def __init__(
        self,
        part: Part,
        spec: CollectSpec,
        remote: RemoteParts | None,
        labels: Mapping[int, Feature] | None = None,
    ) -> None:
        self._part = part
        self._spec = spec
        self._remote = remote
        self._labels = {
            i: labels[i]
            for i, names in enumerate(spec.node_attrs)
            if labels and i in labels
            if "y" in names
        }
        self._is_single = part.meta.num_parts == 1
        node_types, edge_types = part.meta.node_types, part.meta.edge_types
        self._tables = [
            Table("node", i, ["id", *self._stored(i)], t.bounds)
            for i, t in enumerate(node_types[: len(spec.node_attrs)])
        ]
        self._tables += [
            Table("edge", i, ["edge_id", *spec.edge_attrs[i]], t.bounds)
            for i, t in enumerate(edge_types[: len(spec.with_edge)])
            if spec.with_edge[i]
        ]
        self._layouts: dict[Any, Layout] = {}
        self._scratch = BufferPool()

    def _stored(self, node_type: int) -> list[str]:
        """Return the attributes of a node type that come from the folder."""
        names = self._spec.node_attrs[node_type]
        return [name for name in names if name != "y" or node_type not in self._labels]

    def collect(
        self,
        subgraph: _native.Subgraph,
        allocate: Allocate,
        batch: int,
        extras: Mapping[str, Array] | None = None,
    ) -> Generator[list[Ticket], None, Record]:
        """Write a batch.

        Args:
            subgraph: as the engine returned it.
            allocate: called once with the batch's layout and sizes; returns the arrays to fill.
            batch: index of the batch.
            extras: further arrays of the batch, by name.

        Returns:
            The batch.
        """
        extras = extras or {}
        rows = [self._ids_of(subgraph, table) for table in self._tables]
        pending: list[tuple[Table, Ticket, Int64Array]] = []
        local: list[tuple[Table, dict[str, Feature] | None, Int64Array, Int64Array]] = []
        counts = dict.fromkeys(ROWS, 0)
        for table, ids in zip(self._tables, rows, strict=True):
            self._locate(table, ids, local, pending, counts)

        record = self._record(subgraph, extras)
        arrays = allocate(record)
        self._count(record, subgraph, batch, counts)
        for name, values in extras.items():
            np.copyto(arrays[f"s.{name}"], values)
        for i in range(len(self._part.meta.edge_types)):
            edge_index = arrays[f"e{i}.edge_index"]
            subgraph.write_edge_index(i, edge_index[0], edge_index[1])
        for i in range(len(self._part.meta.node_types)) if self._spec.with_trees else ():
            subgraph.write_trees(i, arrays[f"t{i}"])
        for i, labels in self._labels.items():
            labels.gather(rows[i], arrays[f"n{i}.y"])
        for table, features, own, places in local:
            self._copy(table, features, own, places, arrays)
        for table, ticket, places in pending:
            if not ticket.done:
                yield [ticket]
            _place(table, ticket, places, arrays)
        return record

    def _record(self, subgraph: _native.Subgraph, extras: Mapping[str, Array]) -> Record:
        """Return the batch's layout, made with the first batch of its kind, and its sizes."""
        key = tuple((name, array.dtype, array.ndim) for name, array in extras.items())
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._layout(len(self._layouts), subgraph, extras)
        meta = self._part.meta
        sizes = [subgraph.num_nodes(i) for i in range(len(meta.node_types))]
        sizes += [subgraph.num_edges(i) for i in range(len(meta.edge_types))]
        for array in extras.values():
            sizes += array.shape
        return Record(layout, sizes)

    def _count(
        self, record: Record, subgraph: _native.Subgraph, batch: int, counts: Mapping[str, int]
    ) -> None:
        meta = self._part.meta
        node_types, edge_types = range(len(meta.node_types)), range(len(meta.edge_types))
        record.note("batch", batch)
        record.note("nodes", sum(subgraph.num_nodes(i) for i in node_types))
        record.note("edges", sum(subgraph.num_edges(i) for i in edge_types))
        record.note("rows", [counts[kind] for kind in ROWS])
        if self._spec.counts_hops:
            for i in node_types:
                record.note(f"n{i}.hops", subgraph.nodes_per_hop(i))
            for i in edge_types:
                record.note(f"e{i}.hops", subgraph.edges_per_hop(i))

    def read(
        self, wanted: Sequence[tuple[Table, Int64Array]]
    ) -> Generator[list[Ticket], None, list[dict[str, Array]]]:
        """Read rows of several types at once, without a batch.

        Args:
            wanted: attributes, and the new ids of nodes or positions of edges.

        Returns:
            {name: rows} for each table.
        """
        counts = {"local": 0, "cached": 0, "remote": 0}
        local: list[tuple[dict[str, Array], Any]] = []
        pending: list[tuple[dict[str, Array], Any]] = []
        read = []
        for table, ids in wanted:
            specs = self._rows_of(table, len(ids))
            arrays = {s.name: np.empty(s.shape, storage_dtype(s.dtype)) for s in specs}
            at_hand: list[Any] = []
            on_their_way: list[Any] = []
            self._locate(table, ids, at_hand, on_their_way, counts)
            local += [(arrays, rows) for rows in at_hand]
            pending += [(arrays, rows) for rows in on_their_way]
            read.append({name: arrays[array_name(table, name)] for name in table.names})
        for out, (table, features, own, places) in local:
            self._copy(table, features, own, places, out)
        if pending:
            yield [ticket for _, (_, ticket, _) in pending]
        for out, (table, ticket, places) in pending:
            _place(table, ticket, places, out)
        return read

    def _ids_of(self, subgraph: _native.Subgraph, table: Table) -> Int64Array:
        if table.kind == "node":
            ids = self._scratch.empty((subgraph.num_nodes(table.type_index),), _INT64)
            subgraph.write_nodes(table.type_index, ids)
        else:
            ids = self._scratch.empty((subgraph.num_edges(table.type_index),), _INT64)
            subgraph.write_edges(table.type_index, ids)
        return ids

    def _locate(
        self,
        table: Table,
        ids: Int64Array,
        local: list[Any],
        pending: list[Any],
        counts: dict[str, int],
    ) -> None:
        home, is_node = self._part.part, table.kind == "node"
        if self._is_single:
            local.append((table, None, ids, None))
            counts["local"] += len(ids) if is_node else 0
            return
        rows_at_once = self._rows_at_once(table)
        _, grouped, places, offsets = _native.split_by_owner(ids, table.bounds)
        for part in range(len(offsets) - 1):
            share = slice(offsets[part], offsets[part + 1])
            wanted, where = grouped[share], places[share]
            if part == home:
                local.append((table, None, wanted - table.bounds[home], where))
                counts["local"] += len(wanted) if is_node else 0
                continue
            cached = self._part.cached(table.type_index) if is_node else None
            if cached is not None and len(wanted):
                found = cached.places.find(wanted)
                hit = found >= 0
                local.append((table, cached.features, found[hit], where[hit]))
                counts["cached"] += int(hit.sum())
                wanted, where = wanted[~hit], where[~hit]
            counts["remote"] += len(wanted) if is_node else 0
            for begin in range(0, len(wanted), rows_at_once):
                assert self._remote is not None
                piece = slice(begin, begin + rows_at_once)
                ticket = self._remote.fetch(
                    part, table.kind, table.type_index, wanted[piece], table.names
                )
                check = partial(self._check_rows, table, part, len(wanted[piece]))
                pending.append((table, Checked(ticket, check), where[piece]))

    def _check_rows(self, table: Table, part: int, count: int, arrays: list[Array]) -> list[Array]:
        """Return the rows of a reply, checked against the request."""
        rows = self._rows_of(table, count)
        expected = [(n, r.dtype, r.shape) for n, r in zip(table.names, rows, strict=True)]
        return check_rows(arrays, part, expected, table.bounds[-1])

    def _rows_at_once(self, table: Table) -> int:
        """Return how many rows to request from another part at once: the reply fits a frame."""
        rows = self._rows_of(table, 1)
        nbytes = sum(math.prod(r.shape) * storage_dtype(r.dtype).itemsize for r in rows)
        return max(_REPLY_BYTES // max(nbytes, 1), 1)  # an attribute may have no columns

    def _feature(self, table: Table, name: str) -> Feature:
        if table.kind == "node":
            return self._part.node_feature(table.type_index, name)
        return self._part.edge_feature(table.type_index, name)

    def _copy(
        self,
        table: Table,
        features: dict[str, Feature] | None,
        rows: Int64Array,
        places: Int64Array | None,
        arrays: Mapping[str, Array],
    ) -> None:
        for name in table.names:
            out = arrays[array_name(table, name)]
            if name == "id" and self._is_single:  # not renumbered
                np.copyto(out, rows)
                continue
            feature = features[name] if features is not None else self._feature(table, name)
            feature.gather(rows, out, places)

    def _layout(
        self, number: int, subgraph: _native.Subgraph, extras: Mapping[str, Array]
    ) -> Layout:
        """Return the layout; its sizes are nodes of each type, edges, the axes of `extras`."""
        num_nodes, num_edges = len(self._part.meta.node_types), len(self._part.meta.edge_types)
        node_axes = [-1 - i for i in range(num_nodes)]
        edge_axes = [-1 - num_nodes - i for i in range(num_edges)]
        arrays = [
            ArrayLayout(f"e{i}.edge_index", "int64", (2, axis)) for i, axis in enumerate(edge_axes)
        ]
        if self._spec.with_trees:
            arrays += [ArrayLayout(f"t{i}", "int64", (axis,)) for i, axis in enumerate(node_axes)]
        for table in self._tables:
            axes = node_axes if table.kind == "node" else edge_axes
            arrays += self._rows_of(table, axes[table.type_index])
        for i, labels in self._labels.items():
            shape = (node_axes[i], *labels.row_shape)
            arrays.append(ArrayLayout(f"n{i}.y", labels.dtype, shape))
        used = num_nodes + num_edges
        for name, array in extras.items():
            axes = [-1 - used - i for i in range(array.ndim)]
            used += array.ndim
            arrays.append(ArrayLayout(f"s.{name}", array.dtype.name, tuple(axes)))
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
        return Layout(number, arrays, counters)

    def _rows_of(self, table: Table, count: int) -> list[ArrayLayout]:
        """Return the layouts of the arrays that hold `count` rows of a table."""
        arrays = []
        for name in table.names:
            if name in ("id", "edge_id"):
                arrays.append(ArrayLayout(array_name(table, name), "int64", (count,)))
            else:
                feature = self._feature(table, name)
                shape = (count, *feature.row_shape)
                arrays.append(ArrayLayout(array_name(table, name), feature.dtype, shape))
        return arrays


def _place(table: Table, ticket: Ticket, places: Int64Array, arrays: Mapping[str, Array]) -> None:
    """Copy the rows of a reply to their positions in the batch."""
    for name, values in zip(table.names, ticket.result(), strict=True):
        _native.gather(values, None, arrays[array_name(table, name)], places)


def array_name(table: Table, name: str) -> str:
    """Return the name of a type's attribute in a batch."""
    return f"{table.kind[0]}{table.type_index}.{name}"


def fetch_rows(
    part: Part,
    kind: str,
    index: int,
    ids: Int64Array,
    names: Sequence[str],
    empty: Callable[[tuple[int, ...], np.dtype[Any]], Array] = np.empty,
) -> list[Array]:
    """Read the rows that a fetch asks a part for, one array per attribute; ids as int64.

    Args:
        part: the part.
        kind: 'node' or 'edge'.
        index: index of the type.
        ids: [n] int64, new ids of nodes or positions of edges.
        names: names of the attributes.
        empty: allocates the arrays.

    Raises:
        IndexError: an id that the part does not own.
        KeyError: no such attribute.
    """
    if kind == "node":
        bounds = part.meta.node_types[index].bounds
        feature_of = part.node_feature
    else:
        bounds = part.meta.edge_types[index].bounds
        feature_of = part.edge_feature
    rows = ids - bounds[part.part]
    replies = []
    for name in names:
        feature = feature_of(index, name)
        dtype = _INT64 if name in ("id", "edge_id") else storage_dtype(feature.dtype)
        out = empty((len(rows), *feature.row_shape), dtype)
        replies.append(feature.gather(rows, out))
    return replies
