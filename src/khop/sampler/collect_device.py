"""Joins a batch that a device drew with its attributes, all on the device. Imports no torch."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from khop import _native
from khop.channel.layout import Record
from khop.channel.slab import DeviceArray, Scratch
from khop.data.device_feature import DeviceFeature
from khop.partition.part import Part
from khop.sampler.collect import ROWS, Allocate, Collector, CollectSpec, Table
from khop.sampler.requests import Ticket
from khop.typing import Array, IntArray


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
        self._features = {
            (table.kind, table.type_index, name): DeviceFeature(
                self._feature(table, name), device, feature_mode
            )
            for table in self._tables
            for name in table.names[1:]
        }

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
                feature.gather(rows, arrays[f"{table.kind[0]}{table.type_index}.{name}"])
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
