"""Execution of one layer over a trainer's nodes, and storage of its output. Runs in trainers."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from khop.data.arrays import DTYPES, to_array
from khop.distributed.inference.files import RowSpec, Share
from khop.distributed.inference.inputs import EdgeAttrs, LayerInput, described
from khop.distributed.inference.layers import Layer
from khop.distributed.inference.neighborhoods import FullNeighbors, Neighborhood, Range
from khop.loader.batches.collate import to_tensor
from khop.storage.folder import FolderMeta
from khop.typing import Array

Task = TypeVar("Task")
Made = TypeVar("Made")
_BATCHES_AHEAD = 2


class Writer(Protocol):
    """Writer of the rows of a share, in their order."""

    def append(self, rows: Array) -> None:
        """Write the next rows."""

    def finish(self) -> None:
        """Complete the rows, all of which have been written."""

    def abandon(self) -> None:
        """Drop the rows. No effect after `finish`."""


class Peers(Protocol):
    """Nodes that this trainer computes, and the writers of their outputs."""

    own: list[tuple[Share, FullNeighbors]]

    def writer(self, layer: int, node_type: int, share: Share, spec: RowSpec) -> Writer:
        """Return the writer of a layer's outputs for a type's nodes of a share."""


class _Batch(NamedTuple):
    """Batch of nodes with all neighbours, and their input rows. None for types without input."""

    neighborhood: Neighborhood
    rows: list[Array | None]


@dataclass(frozen=True)
class LayerRunner:
    """Runner of a model's layers over all nodes of a trainer, batch by batch.

    Attributes:
        meta: description of the partition folder.
        edge_attrs: edge attributes that layers get.
        device: device of the layers.
        stored: name of the dtype of floating-point outputs on disk. If None, the layer's dtype.
        bipartite: pass each layer a pair: rows of all nodes of a batch, and rows of its own nodes.
        batch_size: maximum number of nodes of a batch.
        max_edges: maximum number of edges of a batch of several nodes.
    """

    meta: FolderMeta
    edge_attrs: EdgeAttrs
    device: torch.device
    stored: str | None
    bipartite: bool
    batch_size: int
    max_edges: int

    def run(
        self,
        layer: Layer,
        index: int,
        inputs: Sequence[LayerInput | None],
        peers: Peers,
        check: Callable[[], None],
    ) -> list[RowSpec | None]:
        """Compute a layer's output for this trainer's nodes, and write it to files.

        Args:
            layer: the layer.
            index: index of the layer in the model.
            inputs: for each node type, the reader of the layer's input, or None.
            peers: this trainer's nodes, and the writers of their outputs.
            check: called between batches. It raises if another trainer has failed.

        Returns:
            Dtypes and shape of the rows of each node type. None for types without output.

        Raises:
            ValueError, TypeError: the layer returns something else than rows.
        """
        files = _LayerFiles(self.meta, index, peers, self.stored)
        for share, neighbors in peers.own:
            with (
                files.of_share(share),
                contextlib.closing(self._read_ahead(neighbors, share, inputs)) as batches,
            ):
                for batch in batches:
                    check()
                    output = self._call(layer, batch, inputs)
                    files.append(output, batch.neighborhood.seeds)
        return files.specs

    def _read_ahead(
        self, neighbors: FullNeighbors, share: Share, inputs: Sequence[LayerInput | None]
    ) -> Generator[_Batch, None, None]:
        def read(ranges: list[Range]) -> _Batch:
            neighborhood = neighbors.read(ranges)
            rows = [
                None if of_type is None else of_type.reader.gather(ids)
                for of_type, ids in zip(inputs, neighborhood.nodes, strict=True)
            ]
            return _Batch(neighborhood, rows)

        return _made_ahead(read, neighbors.batches(share.ranges, self.batch_size, self.max_edges))

    def _call(self, layer: Layer, batch: _Batch, inputs: Sequence[LayerInput | None]) -> object:
        neighborhood, device = batch.neighborhood, self.device
        x: dict[str, Tensor] = {}
        own: dict[str, Tensor] = {}
        for i, node_type in enumerate(self.meta.node_types):
            rows, of_type = batch.rows[i], inputs[i]
            if rows is None or of_type is None:
                continue
            read = to_tensor(rows, of_type.reader.dtype).to(device)
            x[node_type.name] = of_type.finish(read)
            low, high = neighborhood.seeds[i]
            own[node_type.name] = x[node_type.name][: high - low]
        edges = {
            t.name: to_tensor(ends).to(device)
            for t, ends in zip(self.meta.edge_types, neighborhood.edge_index, strict=True)
        }
        attrs = self.edge_attrs.arguments(neighborhood.edge_attrs, device)
        if self.meta.heterogeneous:
            return layer((x, own) if self.bipartite else x, edges, attrs, 0)
        (nodes,), (targets,), (edge_index,) = x.values(), own.values(), edges.values()
        pair = (nodes, targets)
        return layer(pair if self.bipartite else nodes, edge_index, attrs, len(targets))


class _LayerFiles:
    """Output files of a layer, which check its rows. They store floats as `stored`, if not None."""

    def __init__(self, meta: FolderMeta, layer: int, peers: Peers, stored: str | None) -> None:
        self._meta = meta
        self._layer = layer
        self._peers = peers
        self._stored = stored
        self._share: Share | None = None
        self._writers: dict[int, Writer] = {}
        self.specs: list[RowSpec | None] = [None] * len(meta.node_types)

    @contextlib.contextmanager
    def of_share(self, share: Share) -> Generator[None, None, None]:
        """Context in which a share's files are written. After an error, they do not exist."""
        self._share = share
        self._writers = {}
        try:
            yield
            for writer in self._writers.values():
                writer.finish()
        finally:
            for writer in self._writers.values():
                writer.abandon()

    def append(self, output: object, seeds: Sequence[Range]) -> None:
        """Check a layer's return value, `output`, and write the rows of the nodes `seeds`."""
        for node_type, rows in self._by_type(output).items():
            low, high = seeds[node_type]
            name = self._meta.node_types[node_type].name
            if not isinstance(rows, Tensor) or rows.dim() == 0 or rows.size(0) < high - low:
                raise ValueError(
                    f"layer {self._layer} must return a row for each of a batch's {high - low} "
                    f"nodes of type '{name}' (got {described(rows)})"
                )
            spec = self._check_spec(node_type, rows)
            if low < high:
                own = rows[: high - low].to("cpu", getattr(torch, spec.stored))
                self._writer(node_type, spec).append(to_array(own)[0])

    def _by_type(self, output: object) -> dict[int, object]:
        if not self._meta.heterogeneous:
            return {0: output}
        if not isinstance(output, Mapping):
            raise TypeError(
                f"layer {self._layer} of a heterogeneous graph must return a dictionary of rows by "
                f"node type (got {described(output)})"
            )
        indices = {t.name: i for i, t in enumerate(self._meta.node_types)}
        unknown = [name for name in output if name not in indices]
        if unknown:
            raise ValueError(
                f"layer {self._layer} returned rows of {unknown}, but node types are "
                f"{list(indices)}"
            )
        return {indices[name]: rows for name, rows in output.items() if rows is not None}

    def _check_spec(self, node_type: int, rows: Tensor) -> RowSpec:
        computed = str(rows.dtype).removeprefix("torch.")
        stored = self._stored if self._stored and rows.is_floating_point() else computed
        if stored not in DTYPES:
            raise TypeError(
                f"layer {self._layer} returned rows of dtype {computed}: khop stores "
                f"{', '.join(DTYPES)}"
            )
        spec = RowSpec(stored, computed, tuple(rows.shape[1:]))
        known = self.specs[node_type]
        if known is not None and known != spec:
            raise ValueError(
                f"layer {self._layer} returned rows of shape {spec.shape} ({spec.computed}) after "
                f"rows of shape {known.shape} ({known.computed})"
            )
        self.specs[node_type] = spec
        return spec

    def _writer(self, node_type: int, spec: RowSpec) -> Writer:
        if node_type not in self._writers:
            assert self._share is not None
            share = self._share
            self._writers[node_type] = self._peers.writer(self._layer, node_type, share, spec)
        return self._writers[node_type]


def _made_ahead(make: Callable[[Task], Made], tasks: Iterable[Task]) -> Generator[Made, None, None]:
    """Yield make(task) of all tasks, in order. A thread computes a few results ahead.

    Closing the generator waits for the running task: files and sockets that the thread uses can be
    closed then.
    """
    due: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="khop-reader") as executor:
        try:
            for task in tasks:
                due.append(executor.submit(make, task))
                if len(due) > _BATCHES_AHEAD:
                    yield due.popleft().result()
            while due:
                yield due.popleft().result()
        finally:
            for future in due:
                future.cancel()
