"""Rows of attributes of several partitions, each gathered on the GPU of its trainer.

A batch has three calls of all trainers: numbers of rows, their ids, and the rows of all attributes.
Runs in trainers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from khop.channel.layout import Record
from khop.data import Feature
from khop.data.arrays import STORAGE
from khop.data.device_feature import DeviceFeature
from khop.distributed.loaders.device_exchange import (
    MOST_ROWS,
    DeviceExchange,
    Shares,
    by_trainer,
    check_ids,
)
from khop.sampler.methods.access import Waiting
from khop.sampler.pyg.device import TorchDevice
from khop.sampler.rows.collect import Allocate, Collector, CollectSpec, DrawnBatch
from khop.sampler.rows.row_fetcher import PartRows
from khop.storage.folder import EdgeTypeMeta
from khop.storage.part import Part

# Rows of each attribute begin at multiples of this in what trainers send.
_ALIGNMENT = 16


class _Table(NamedTuple):
    """Attributes of a type that trainers send each other.

    Attributes:
        unit: 'node' or 'edge'.
        type_index: index of the type.
        bounds: range bounds of the partitions, on the device.
        own: first id of this trainer's rows, and one past the last.
        features: {name of the array: rows of this trainer's partition}.
    """

    unit: str
    type_index: int
    bounds: Tensor
    own: tuple[int, int]
    features: dict[str, DeviceFeature]


class ExchangedCollector(Collector):
    """Writer of batches that `ExchangedEngine` drew, to tensors in the device's memory.

    Writes the same bits as a `Collector`. The caller holds the device's lock, and torch works on
    the device's stream.

    Args:
        part, spec: see `Collector`.
        device: this trainer's device.
        feature_mode: memory of attributes: 'CUDA' or 'ZERO_COPY'.
        exchange: the exchange with other trainers.
        most_nodes: for each node type, maximum number of this trainer's nodes in any batch.
    """

    def __init__(
        self,
        part: Part,
        spec: CollectSpec,
        device: TorchDevice,
        feature_mode: str,
        exchange: DeviceExchange,
        most_nodes: Sequence[int],
    ) -> None:
        super().__init__(part, spec, None)
        self._device, self._exchange, self._most_nodes = device, exchange, most_nodes
        # Arrays of ids that are the numbers in the folder.
        self._plain: list[tuple[str, int, str]] = []
        self._sent = [self._table(table, feature_mode) for table in self._tables]

    def _table(self, table: PartRows, mode: str) -> _Table:
        part, unit, index = self._part, table.unit, table.type_index
        meta = part.meta.types(unit)[index]
        named = meta.edge_ids if isinstance(meta, EdgeTypeMeta) else part.meta.renumbered
        features = {}
        for name in table.attributes:
            array = f"{unit[0]}{index}.{name}"
            rows = table.open(part, name)
            if name in ("id", "edge_id"):
                if not named:
                    self._plain.append((unit, index, array))
                    continue
                rows = Feature(np.asarray(rows.array, np.int64))
            features[array] = DeviceFeature(rows, self._device.native, mode)
        low, high = meta.bounds[part.part : part.part + 2]
        bounds = torch.tensor(meta.bounds, device=self._device.torch_device)
        return _Table(unit, index, bounds, (low, high), features)

    def locate(self, drawn: DrawnBatch) -> None:
        """Do nothing: ids are on the device."""

    def request(self, drawn: DrawnBatch) -> None:
        """Do nothing: trainers send rows when all write their batches."""

    def collect(self, drawn: DrawnBatch, allocate: Allocate) -> Waiting[Record]:
        """Write a batch, a `DeviceSubgraph`, to tensors, while all trainers do. See `Collector`.

        The device is still writing when this returns.
        """
        yield from ()
        subgraph = drawn.subgraph
        record = self._record(subgraph, drawn.extras)
        arrays: Mapping[str, Any] = allocate(record)
        ids = self._write_ids(subgraph, arrays)
        for unit, index, name in self._plain:
            arrays[name].copy_(ids[unit, index])
        tables = [table for table in self._sent if table.features]
        splits = [self._exchange.split(ids[t.unit, t.type_index], t.bounds) for t in tables]
        most = [
            self._most_nodes[table.type_index] if table.unit == "node" else MOST_ROWS
            for table in tables
        ]
        shares = self._exchange.announce(splits, most)
        orders = [split.order for split in splits]
        if tables:
            of_tables = [ids[table.unit, table.type_index] for table in tables]
            in_order = [some[order] for some, order in zip(of_tables, orders, strict=True)]
            asked = self._exchange.ask(shares, in_order)
            received = self._send(tables, asked, shares)
            self._scatter(tables, received, by_trainer(orders, shares.asked), shares.asked, arrays)
        rows = [sum(of[i] for i, t in enumerate(tables) if t.unit == "node") for of in shares.asked]
        remote = sum(rows) - rows[self._exchange.rank]
        local = sum(map(subgraph.num_nodes, range(len(self._spec.node_attrs)))) - remote
        self._count(record, subgraph, drawn.batch, (local, 0, 0, remote))
        return record

    def _write_ids(
        self, subgraph: Any, arrays: Mapping[str, Tensor]
    ) -> dict[tuple[str, int], Tensor]:
        """Write edges and trees of a batch. Return ids of its nodes and edges, as in the folder."""
        num_nodes, num_edges, _, _ = subgraph.sizes()
        with_edge = {table.type_index for table in self._tables if table.unit == "edge"}
        ids = {}
        for unit, counts in (("node", num_nodes), ("edge", num_edges)):
            for index, count in enumerate(counts):
                if unit == "node" or index in with_edge:
                    ids[unit, index] = self._device.empty([count])
        subgraph.write(
            [ids["node", i].data_ptr() for i in range(len(num_nodes))],
            [arrays[f"e{i}.edge_index"].data_ptr() for i in range(len(num_edges))],
            [ids["edge", i].data_ptr() if ("edge", i) in ids else 0 for i in range(len(num_edges))],
            [arrays[f"t{i}"].data_ptr() for i in range(len(num_nodes))]
            if self._spec.with_trees
            else [],
            [],
        )
        return ids

    def _send(self, tables: Sequence[_Table], asked: Tensor, shares: Shares) -> Tensor:
        """Gather the rows that trainers ask for, and exchange them. Returns [n] uint8.

        Raises:
            ProtocolError: this trainer does not have a row.
        """
        lengths = [count for of in shares.asking for count in of]
        pieces = asked.split_with_sizes(lengths)
        of_tables = list(tables) * self._exchange.size
        check_ids(
            pieces,
            [table.own for table in of_tables],
            [f"{table.unit}s of type {table.type_index}" for table in of_tables],
        )
        spans, sent = _spans(tables, shares.asking)
        out = self._device.empty([sum(sent)], torch.uint8)
        for i, feature, _, begin, nbytes in spans:
            if nbytes == 0:
                continue
            rows = pieces[i] - of_tables[i].own[0]
            into = out[begin : begin + nbytes].view(_dtype(feature))
            # All of these rows exist.
            feature.gather(rows, into.view(len(rows), *feature.row_shape), wait=False)
        _, expected = _spans(tables, shares.asked)
        return self._exchange.send(out, sent, expected, shares.step)

    def _scatter(
        self,
        tables: Sequence[_Table],
        received: Tensor,
        orders: Sequence[Tensor],
        counts: Sequence[Sequence[int]],
        arrays: Mapping[str, Tensor],
    ) -> None:
        """Put rows from all trainers at their positions in the batch."""
        for i, feature, name, begin, nbytes in _spans(tables, counts)[0]:
            if nbytes == 0:
                continue
            width = math.gcd(_row_bytes(feature), 8)
            words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
            rows = received[begin : begin + nbytes].view(words).view(len(orders[i]), -1)
            out = arrays[name].view(-1).view(torch.uint8).view(words).view(len(arrays[name]), -1)
            out[orders[i]] = rows


def _dtype(feature: DeviceFeature) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, feature.dtype)
    return dtype


def _row_bytes(feature: DeviceFeature) -> int:
    return STORAGE[feature.dtype].itemsize * math.prod(feature.row_shape)


_Span = tuple[int, DeviceFeature, str, int, int]


def _spans(
    tables: Sequence[_Table], counts: Sequence[Sequence[int]]
) -> tuple[list[_Span], list[int]]:
    """Return where rows of attributes are in what trainers send: trainer by trainer.

    `counts` has, for each trainer, how many rows of each table it gets or sends.

    Returns:
        For each trainer, table and attribute: the position of (trainer, table), the attribute and
        the name of its array, and where its rows begin and how many bytes they have. Further, the
        bytes of each trainer.
    """
    spans: list[_Span] = []
    sizes = []
    begin = 0
    position = itertools.count()
    for of_trainer in counts:
        first = begin
        for table, count in zip(tables, of_trainer, strict=True):
            i = next(position)
            for name, feature in table.features.items():
                nbytes = count * _row_bytes(feature)
                spans.append((i, feature, name, begin, nbytes))
                begin += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        sizes.append(begin - first)
    return spans, sizes
