"""Collection of batches in the memory of a device. Imports no torch.

`DeviceCollector` is for batches that the device drew, of a part that is the whole graph.
`StagedCollector` is for batches that the CPU drew from several parts. It locates and requests rows
as `Collector` does. But the device gathers the local part's rows, and the host cannot write to
single positions in the device's memory. So rows are staged there one group after the other, and
one more gather puts them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from khop import _native
from khop.channel.device_arena import DeviceArray, Scratch
from khop.channel.layout import Record
from khop.data import RowStore
from khop.data.device_feature import DeviceFeature
from khop.data.tickets import Ticket
from khop.sampler.methods.access import Waiting
from khop.sampler.requests import RemoteParts
from khop.sampler.rows.collect import Allocate, Collector, CollectSpec, DrawnBatch
from khop.sampler.rows.row_fetch import RowFetch
from khop.sampler.rows.row_fetcher import PartRows
from khop.storage.part import Part
from khop.typing import Array, Int64Array, IntArray


class EdgeNames:
    """Table in device memory: the original id of the edge at each position of the graph.

    Args:
        device: the device that writes batches with these ids.
        names: {index of an edge type: ids of all its edges}. Edges of other types have their
            positions as ids.
        num_relations: number of edge types.
        mode: memory of the ids: 'CUDA' (the device's) or 'ZERO_COPY' (the host's, read in place).

    Attributes:
        entries: the table, as `DeviceSubgraph.write` takes it.
    """

    def __init__(
        self, device: _native.Device, names: Mapping[int, IntArray], num_relations: int, mode: str
    ) -> None:
        self._memory = []  # kept as long as the entries
        self.entries = [(0, 8, 0)] * num_relations
        for i, ids in names.items():
            array = np.ascontiguousarray(ids)
            if mode == "ZERO_COPY":
                memory = _native.DeviceMemory.mapped(device, array)
            else:
                memory = _native.DeviceMemory.allocate(device, array.nbytes)
                memory.upload(0, array)
                device.synchronize()
            self._memory.append(memory)
            self.entries[i] = (memory.address, array.itemsize, len(array))


class DeviceCollector(Collector):
    """Writer of batches that a device drew: ids, edges and attributes, in the device's memory.

    Writes the same bits as a `Collector` of the same part. The part must be the only one, where
    nothing is renumbered and all rows are local.

    Args:
        part, spec: see `Collector`.
        device: the device that drew the batches and gathers.
        graph_mode: memory of edge ids: 'CUDA' or 'ZERO_COPY'.
        feature_mode: memory of attributes: 'CUDA', 'ZERO_COPY' or 'CPU'.
        values: names of the edges' values that the sampling method draws, as 'e0.edge_norm'.
    """

    def __init__(
        self,
        part: Part,
        spec: CollectSpec,
        device: _native.Device,
        graph_mode: str,
        feature_mode: str,
        values: Sequence[str] = (),
    ) -> None:
        super().__init__(part, spec, None)
        self._device = device
        self._positions = Scratch(device)
        self._values = dict.fromkeys(values, np.empty(0, np.float32))
        edges = [table for table in self._tables if table.unit == "edge"]
        edge_ids = {
            t.type_index: part.edge_feature(t.type_index, "edge_id").array
            for t in edges
            if part.meta.edge_types[t.type_index].edge_ids
        }
        self._edge_names = EdgeNames(device, edge_ids, len(part.meta.edge_types), graph_mode)
        # Attributes of edges are in the order of the graph's edges.
        self._by_position = [t.type_index for t in edges if len(t.attributes) > 1]
        self._features = _features_on(self._tables, part, device, feature_mode)

    def locate(self, drawn: DrawnBatch) -> None:
        """Do nothing: all rows are local, and their ids are on the device."""

    def request(self, drawn: DrawnBatch) -> None:
        """Do nothing: all rows are local."""

    def collect(self, drawn: DrawnBatch, allocate: Allocate) -> Waiting[Record]:
        """Write a batch, a `DeviceSubgraph`, to `DeviceArray`s. See `Collector.collect`.

        The device is still writing when this returns.
        """
        yield from ()
        subgraph, extras = drawn.subgraph, drawn.extras
        record = self._record(subgraph, {**extras, **self._values})
        arrays: Mapping[str, Any] = allocate(record)
        nodes = [table.type_index for table in self._tables if table.unit == "node"]
        local = sum(subgraph.num_nodes(i) for i in nodes)
        self._count(record, subgraph, drawn.batch, (local, 0, 0, 0))
        for name, values in extras.items():
            arrays[name].upload(values)
        rows = self._write_ids(subgraph, arrays)
        for table, names, features in zip(self._tables, self._names, self._features, strict=True):
            for name, feature in zip(names[1:], features, strict=True):
                # All of these rows exist.
                feature.gather(rows[table.unit, table.type_index], arrays[name], wait=False)
        return record

    def _write_ids(
        self, subgraph: Any, arrays: Mapping[str, DeviceArray]
    ) -> dict[tuple[str, int], DeviceArray]:
        """Write ids and edges of the batch, and return the rows to gather of each table."""
        num_nodes, num_edges, _, _ = subgraph.sizes()
        types, relations = range(len(num_nodes)), range(len(num_edges))

        def addresses(names: Iterable[str]) -> list[int]:
            return [arrays[name].address if name in arrays else 0 for name in names]

        subgraph.write(
            addresses(f"n{i}.id" for i in types),
            addresses(f"e{i}.edge_index" for i in relations),
            addresses(f"e{i}.edge_id" for i in relations),
            addresses(f"t{i}" for i in types) if self._spec.with_trees else [],
            self._edge_names.entries,
            values=addresses(self._values),
        )
        rows = {("node", i): arrays[f"n{i}.id"] for i in types if f"n{i}.id" in arrays}
        if not self._by_position:
            return rows
        memory = self._positions.take(8 * sum(num_edges[i] for i in self._by_position))
        begin, positions = 0, [0] * len(num_edges)
        for i in self._by_position:
            array = rows["edge", i] = DeviceArray(memory, begin, (num_edges[i],), "int64")
            positions[i] = array.address
            begin += array.nbytes
        subgraph.write([], [], positions, [], [])
        return rows


_Group: TypeAlias = tuple[Int64Array, "Int64Array | None", Callable[[int], Array]]
"""Rows of a table with one origin: the local part, copies of others' rows, or a reply.

A group has positions in the batch, rows of the local part (None for other origins), and a function.
The function returns the rows of an attribute, by its index, gathered on the host.
"""


class StagedCollector(Collector):
    """Writer of batches that the CPU drew over several parts, to arrays in a device's memory.

    Writes the same bits as a `Collector` of the same part.

    Args:
        part, spec, remote: see `Collector`.
        device: the device that gathers local rows.
        feature_mode: memory of attributes: 'CUDA', 'ZERO_COPY' or 'CPU'.
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
        for table in self._tables:
            table.joins_parts = False  # the device has the rows of the home part
        self._device = device
        self._features = _features_on(self._tables, part, device, feature_mode)
        self._staged, self._own, self._order = (Scratch(device) for _ in range(3))

    def collect(self, drawn: DrawnBatch, allocate: Allocate) -> Waiting[Record]:
        """Write a batch to `DeviceArray`s. See `Collector.collect`.

        Waits for all replies of other parts before it writes: batches in flight share device
        memory.
        """
        subgraph, extras, fetches = drawn.subgraph, drawn.extras, drawn.fetches
        waited_for: list[Ticket] = [
            r.ticket for f in fetches for r in f.remote if not r.ticket.done
        ]
        if waited_for:
            yield waited_for
        record = self._record(subgraph, extras)
        arrays: Mapping[str, Any] = allocate(record)
        self._count(record, subgraph, drawn.batch, self._origins(fetches))
        for name, values in extras.items():
            arrays[name].upload(values)
        for i in range(len(self._part.meta.edge_types)):
            ends = np.empty((2, subgraph.num_edges(i)), np.int64)
            subgraph.write_edge_index(i, ends[0], ends[1])
            arrays[f"e{i}.edge_index"].upload(ends)
        for i in range(len(self._part.meta.node_types)) if self._spec.with_trees else ():
            trees = np.empty(subgraph.num_nodes(i), np.int64)
            subgraph.write_trees(i, trees)
            arrays[f"t{i}"].upload(trees)
        for table, fetch, names, features in zip(
            self._tables, fetches, self._names, self._features, strict=True
        ):
            own = table.local_tables(self._part.part)
            self._write(_groups_of(fetch, own), fetch, [arrays[n] for n in names], features)
        return record

    def _write(
        self,
        groups: list[_Group],
        fetch: RowFetch,
        outs: list[DeviceArray],
        features: list[DeviceFeature],
    ) -> None:
        count = len(fetch.ids)
        order = np.empty(count, np.int64)  # where each row is staged
        begins, end = [], 0
        for positions, _, _ in groups:
            begins.append(end)
            end += len(positions)
            order[positions] = np.arange(end - len(positions), end)
        ids = np.empty(count, np.int64)
        for positions, _, read in groups:
            ids[positions] = read(0)
        outs[0].upload(ids)
        if count == 0 or len(outs) == 1:
            return
        ordered = self._uploaded(self._order, order)
        for index, (out, feature) in enumerate(zip(outs[1:], features, strict=True), 1):
            width = out.nbytes // count
            staged = self._staged.take(out.nbytes)
            for (_, own, read), begin in zip(groups, begins, strict=True):
                if own is None:
                    staged.upload(begin * width, np.ascontiguousarray(read(index)))
                else:
                    into = DeviceArray(staged, begin * width, (len(own), *out.shape[1:]), out.dtype)
                    feature.gather(self._uploaded(self._own, own), into, wait=False)
            rows = DeviceArray(staged, 0, out.shape, out.dtype)
            self._device.gather(rows, ordered, out, wait=False)  # a permutation: they exist

    def _uploaded(self, scratch: Scratch, values: Int64Array) -> DeviceArray:
        uploaded = DeviceArray(scratch.take(values.nbytes), 0, values.shape, "int64")
        uploaded.upload(values)
        return uploaded


def _groups_of(fetch: RowFetch, home: Sequence[RowStore | None] | None) -> list[_Group]:
    """Return rows of a table by origin, once all replies have come. `home`: the part's stores."""
    groups: list[_Group] = []
    for local in fetch.local:
        assert local.positions is not None  # there are several parts
        own = local.rows if local.tables is home else None
        groups.append((local.positions, own, local.gather))
    for request in fetch.remote:
        assert request.positions is not None
        groups.append((request.positions, None, request.result().__getitem__))
    return groups


def _features_on(
    tables: Iterable[PartRows], part: Part, device: _native.Device, mode: str
) -> list[list[DeviceFeature]]:
    """Return the local part's attributes of each table, without ids, for a device to gather.

    `mode` is the memory of attributes: 'CUDA', 'ZERO_COPY' or 'CPU'.
    """
    return [
        [DeviceFeature(table.open(part, name), device, mode) for name in [*table.attributes][1:]]
        for table in tables
    ]
