"""Joins batches with their attributes in the memory of a device. Imports no torch.

`DeviceCollector` is for batches that the device drew, of a part that is the whole graph.
`StagedCollector` is for batches that the CPU drew from several parts: rows of the part at hand are
gathered by the device, those of other parts come from the host. All are staged in the device's
memory one group after the other, and one more gather there puts them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.channel.layout import Record
from khop.channel.slab import DeviceArray, Scratch
from khop.data.device_feature import DeviceFeature
from khop.partition.part import Part
from khop.sampler.collect import ROWS, Allocate, Collector, CollectSpec, Table, array_name
from khop.sampler.requests import RemoteParts, Ticket
from khop.typing import Array, Int64Array, IntArray


class DeviceCollector(Collector):
    """Fills the arrays of batches in the memory of a device.

    What a `Collector` of the same part writes, bit for bit. The part must be the only one: nothing
    is renumbered then, and all rows are at hand.

    Args:
        part: the part.
        spec: which attributes.
        device: who drew the batches and gathers.
        graph_mode: where edge ids lie: 'CUDA' or 'ZERO_COPY'.
        feature_mode: where attributes lie: 'CUDA', 'ZERO_COPY' or 'CPU'.
    """

    def __init__(
        self,
        part: Part,
        spec: CollectSpec,
        device: _native.Device,
        graph_mode: str,
        feature_mode: str,
    ) -> None:
        super().__init__(part, spec, None)
        self._device = device
        self._positions = Scratch(device)
        edges = [table for table in self._tables if table.kind == "edge"]
        self._edge_ids = {
            table.type_index: self._on_device(self._edge_ids_of(table), graph_mode)
            for table in edges
        }
        self._features = _features_on(self, device, feature_mode)

    def _edge_ids_of(self, table: Table) -> IntArray:
        ids: IntArray = self._feature(table, "edge_id").array
        return ids

    def _on_device(self, ids: IntArray, mode: str) -> DeviceArray:
        if mode == "ZERO_COPY":
            memory = _native.DeviceMemory.mapped(self._device, ids)
        else:
            memory = _native.DeviceMemory.allocate(self._device, ids.nbytes)
            memory.upload(0, ids)
        return DeviceArray(memory, 0, ids.shape, ids.dtype.name)

    def collect(
        self,
        subgraph: Any,
        allocate: Allocate,
        batch: int,
        extras: Mapping[str, Array] | None = None,
    ) -> Generator[list[Ticket], None, Record]:
        """As of `Collector`, of a `DeviceSubgraph`; never waits for another partition.

        Args:
            subgraph: as the device's engine returned it.
            allocate: called once with the batch's layout and sizes; returns `DeviceArray`s to fill.
            batch: index of the batch.
            extras: further arrays of the batch, by name.

        Returns:
            The batch, which the device is still writing.
        """
        yield from ()
        extras = extras or {}
        record = self._record(subgraph, extras)
        arrays: Mapping[str, Any] = allocate(record)
        nodes = [table.type_index for table in self._tables if table.kind == "node"]
        counts = dict.fromkeys(ROWS, 0) | {"local": sum(subgraph.num_nodes(i) for i in nodes)}
        self._count(record, subgraph, batch, counts)
        for name, values in extras.items():
            arrays[f"s.{name}"].upload(values)
        for i in range(len(self._part.meta.edge_types)):
            ends = arrays[f"e{i}.edge_index"]
            subgraph.write_edge_index(i, ends.row(0), ends.row(1))
        for i in range(len(self._part.meta.node_types)) if self._spec.with_trees else ():
            subgraph.write_trees(i, arrays[f"t{i}"])
        for table in self._tables:
            rows = self._write_ids(table, subgraph, arrays)
            for name in table.names[1:]:
                feature = self._features[table.kind, table.type_index, name]
                feature.gather(rows, arrays[array_name(table, name)], wait=False)  # they exist
        return record

    def _write_ids(
        self, table: Table, subgraph: Any, arrays: Mapping[str, DeviceArray]
    ) -> DeviceArray:
        """Writes the ids of a type; returns where its attributes stand."""
        i = table.type_index
        if table.kind == "node":
            ids = arrays[f"n{i}.id"]
            subgraph.write_nodes(i, ids)
            return ids
        subgraph.write_edges(i, arrays[f"e{i}.edge_id"], self._edge_ids[i])
        count = subgraph.num_edges(i)
        positions = DeviceArray(self._positions.take(8 * count), 0, (count,), "int64")
        if len(table.names) > 1:
            subgraph.write_edges(i, positions)
        return positions


class _Rows(NamedTuple):
    """Rows of a table of one origin: in the part at hand, in a copy of others', or a reply.

    Attributes:
        places: where in the batch they belong.
        own: rows of the part at hand; None: they are on the host.
        values: reads them on the host: attribute to rows.
    """

    places: Int64Array
    own: Int64Array | None
    values: Any


class StagedCollector(Collector):
    """Fills the arrays of batches of several parts in the memory of a device.

    What a `Collector` of the same part writes, bit for bit.

    Args:
        part: the part at hand.
        spec: which attributes.
        remote: the other partitions.
        device: gathers what is at hand.
        feature_mode: where attributes lie: 'CUDA', 'ZERO_COPY' or 'CPU'.
    """

    def __init__(
        self,
        part: Part,
        spec: CollectSpec,
        remote: RemoteParts | None,
        device: _native.Device,
        feature_mode: str,
    ) -> None:
        super().__init__(part, spec, remote)
        self._device = device
        self._features = _features_on(self, device, feature_mode)
        self._staged, self._own, self._order = (Scratch(device) for _ in range(3))

    def collect(
        self,
        subgraph: _native.Subgraph,
        allocate: Allocate,
        batch: int,
        extras: Mapping[str, Array] | None = None,
    ) -> Generator[list[Ticket], None, Record]:
        """As of `Collector`; `allocate` returns `DeviceArray`s.

        All replies are waited for before anything is written: the device's memory may be that of
        the next batch, too.
        """
        extras = extras or {}
        ids = [self._ids_of(subgraph, table) for table in self._tables]
        counts = dict.fromkeys(ROWS, 0)
        found: list[tuple[list[Any], list[Any]]] = [([], []) for _ in self._tables]
        for table, wanted, (local, pending) in zip(self._tables, ids, found, strict=True):
            self._locate(table, wanted, local, pending, counts)
        waited_for = [t for _, pending in found for _, t, _ in pending if not t.done]
        if waited_for:
            yield waited_for
        record = self._record(subgraph, extras)
        arrays: Mapping[str, Any] = allocate(record)
        self._count(record, subgraph, batch, counts)
        for name, values in extras.items():
            arrays[f"s.{name}"].upload(values)
        for i in range(len(self._part.meta.edge_types)):
            ends = np.empty((2, subgraph.num_edges(i)), np.int64)
            subgraph.write_edge_index(i, ends[0], ends[1])
            arrays[f"e{i}.edge_index"].upload(ends)
        for i in range(len(self._part.meta.node_types)) if self._spec.with_trees else ():
            trees = np.empty(subgraph.num_nodes(i), np.int64)
            subgraph.write_trees(i, trees)
            arrays[f"t{i}"].upload(trees)
        for table, wanted, (local, pending) in zip(self._tables, ids, found, strict=True):
            self._write(table, len(wanted), self._groups(table, local, pending), arrays)
        return record

    def _groups(self, table: Table, local: list[Any], pending: list[Any]) -> list[_Rows]:
        """Rows of a table by their origin, each with a reader of what the host has of them."""
        groups = []
        for _, features, rows, places in local:
            if features is None:
                read = partial(_gathered, partial(self._feature, table), rows)
                groups.append(_Rows(places, rows, read))
            else:
                groups.append(_Rows(places, None, partial(_gathered, features.get, rows)))
        for _, ticket, places in pending:
            values = dict(zip(table.names, ticket.result(), strict=True))
            groups.append(_Rows(places, None, values.__getitem__))
        return groups

    def _write(
        self, table: Table, count: int, groups: list[_Rows], arrays: Mapping[str, DeviceArray]
    ) -> None:
        order = np.empty(count, np.int64)  # where each row is staged
        begins, end = [], 0
        for places, _, _ in groups:
            begins.append(end)
            end += len(places)
            order[places] = np.arange(end - len(places), end)
        ids = np.empty(count, np.int64)
        for places, _, read in groups:
            ids[places] = read(table.names[0])
        arrays[array_name(table, table.names[0])].upload(ids)
        if count == 0 or len(table.names) == 1:
            return
        ordered = self._uploaded(self._order, order)
        for name in table.names[1:]:
            out = arrays[array_name(table, name)]
            width = out.nbytes // count
            staged = self._staged.take(out.nbytes)
            for (_, own, read), begin in zip(groups, begins, strict=True):
                if own is None:
                    staged.upload(begin * width, np.ascontiguousarray(read(name)))
                elif len(own):
                    into = DeviceArray(staged, begin * width, (len(own), *out.shape[1:]), out.dtype)
                    feature = self._features[table.kind, table.type_index, name]
                    feature.gather(self._uploaded(self._own, own), into, wait=False)
            rows = DeviceArray(staged, 0, out.shape, out.dtype)
            self._device.gather(rows, ordered, out, wait=False)  # a permutation: they exist

    def _uploaded(self, scratch: Scratch, values: Int64Array) -> DeviceArray:
        uploaded = DeviceArray(scratch.take(values.nbytes), 0, values.shape, "int64")
        uploaded.upload(values)
        return uploaded


def _gathered(feature_of: Callable[[str], Any], rows: Int64Array, name: str) -> Array:
    """Rows of an attribute on the host."""
    gathered: Array = feature_of(name).gather(rows)
    return gathered


def _features_on(
    collector: Collector, device: _native.Device, mode: str
) -> dict[tuple[str, int, str], DeviceFeature]:
    """A part's attributes that batches carry, for a device to gather."""
    return {
        (table.kind, table.type_index, name): DeviceFeature(
            collector._feature(table, name), device, mode
        )
        for table in collector._tables
        for name in table.names[1:]
    }
