"""Packing of a loader's next epochs: `pack_epochs`. Runs in trainers and in `khop pack`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from khop import _native
from khop.data import RowStore
from khop.data.direct_reads import NARROW_BYTES
from khop.data.direct_rows import MAX_ROW_BYTES, DiskOptions
from khop.data.hot_rows import parse_bytes
from khop.data.joined import TakenFeature
from khop.data.steps import run
from khop.data.waiter import TIMEOUT
from khop.distributed.dataset import DistDataset
from khop.distributed.loaders.base import DistLoader
from khop.distributed.loaders.cluster_loader import DistClusterLoader
from khop.distributed.loaders.link_neighbor_loader import DistLinkNeighborLoader
from khop.distributed.loaders.neighbor_loader import DistNeighborLoader
from khop.distributed.loaders.opened_pack import packable
from khop.distributed.sampling.control_messages import Epoch
from khop.distributed.sampling.pipeline import Pipeline
from khop.loader.iteration.resume import EpochProgress
from khop.storage.folder import PartitionFolder
from khop.storage.pack import PackedTable, PackMeta, is_pack
from khop.storage.pack_writer import (
    PackWriter,
    RecordedRows,
    TableCounts,
    TableKey,
    choose_hot,
)
from khop.storage.part import Part
from khop.tables import human_bytes
from khop.typing import Int64Array, Progress


@dataclass(frozen=True)
class PackSummary:
    """Contents of a pack.

    Attributes:
        path: path of the pack.
        epochs: number of epochs.
        batches: number of batches.
        rows: rows that the batches ask for.
        hot_rows: distinct rows that stay in memory.
        packed_rows: rows that are read in sequence.
        hot_bytes: bytes of the rows that stay in memory.
        nbytes: bytes of the pack.

    Example:
        >>> khop.distributed.loaders.packing.PackSummary("p", 1, 2, 10, 3, 4, 24, 56).packed_rows
        4
    """

    path: str
    epochs: int
    batches: int
    rows: int
    hot_rows: int
    packed_rows: int
    hot_bytes: int
    nbytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as a dictionary of plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return two lines for people."""
        return (
            f"pack            {self.path}: {self.epochs} epochs, {self.batches:,} batches, "
            f"{human_bytes(self.nbytes)}\n"
            f"rows            {self.rows:,} asked for, {self.packed_rows:,} read in sequence, the "
            f"others from {self.hot_rows:,} rows in memory ({human_bytes(self.hot_bytes)})"
        )


def pack_epochs(
    loader: DistNeighborLoader | DistLinkNeighborLoader | DistClusterLoader,
    path: str | os.PathLike[str],
    epochs: int = 1,
    *,
    attributes: Sequence[str] | None = None,
    hot_memory: int | str = "256MB",
    memory: int | str = "1GB",
    max_bytes: int | str | None = None,
    overwrite: bool = False,
    plan: bool = False,
    progress: Progress | None = None,
) -> PackSummary:
    """Write the rows of a loader's next epochs to disk, in the order in which they will be read.

    A loader with the same arguments and `packed=path` reads them in sequence. Its batches are the
    same. All batches are drawn twice, and rows are read in sweeps of the folder's files.

    Args:
        loader: a loader with a `seed`. Its next epoch is the first one that is packed.
        path: folder to write. It appears when it is complete.
        epochs: number of epochs.
        attributes: names of attributes of nodes and edges. If None, all with rows of 64 bytes or
            more.
        hot_memory: bytes of rows that are read often. They are packed once, and stay in memory: all
            samplers of a machine share these pages. A number, or a text such as '2GB'.
        memory: bytes of rows that are collected before the folder is read. More memory needs fewer
            sweeps. Counts of all rows take 5 bytes each beside.
        max_bytes: most bytes of the pack. If None, only the disk bounds it.
        overwrite: replace a pack at this path.
        plan: draw the batches and compute the size, and write nothing.
        progress: called as progress(step, done, total). If None, progress is not reported.

    Returns:
        The contents of the pack.

    Raises:
        ValueError: the epochs are not known in advance, there is no such attribute, or the pack
            would have more than `max_bytes`.
        FileExistsError: the path exists, and is no pack or must not be replaced.
        RuntimeError: a method draws other batches the second time.
        OSError: the disk is full.

    Example:
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> loader = DistNeighborLoader(dataset, [2], batch_size=3, seed=1)
        >>> pack = khop.distributed.pack_epochs(loader, path / "pack", attributes=["x"])
        >>> loader = DistNeighborLoader(dataset, [2], batch_size=3, seed=1, packed=path / "pack")
        >>> len(list(loader)), loader.stats().disk["packed"] == pack.rows
        (2, True)
    """
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs must be an integer of 1 or more (got {epochs!r})")
    target = Path(path).absolute()
    _check_target(target, overwrite)
    dataset, fingerprint = packable(loader.data, loader._identities())
    packing = _Packing(loader, dataset, _names(dataset, attributes), epochs, progress)
    tables = packing.count()
    if not tables:
        raise ValueError(
            "the loader's batches have no attribute to pack: name some with rows of less than 64 "
            "bytes, or see collect_features and with_edge"
        )
    counts = list(tables.values())
    choose_hot(counts, parse_bytes(hot_memory))
    summary = PackSummary(
        str(target),
        epochs,
        epochs * len(loader),
        sum(int(table.uses.sum(dtype=int)) for table in counts),
        sum(table.num_hot for table in counts),
        sum(table.num_packed for table in counts),
        sum(table.num_hot * table.row_bytes for table in counts),
        sum(table.nbytes for table in counts),
    )
    if max_bytes is not None and summary.nbytes > parse_bytes(max_bytes):
        raise ValueError(
            f"the pack would have {human_bytes(summary.nbytes)}, more than max_bytes={max_bytes}: "
            "pack fewer epochs or attributes, or let more hot rows stay in memory (hot_memory)"
        )
    if plan:
        return summary
    sources = packing.sources(tables)
    described = [
        PackedTable(*key, *_format(sources[key]), len(t.keys), t.num_packed, t.num_hot)
        for key, t in tables.items()
    ]
    meta = PackMeta(
        dataset.opened.fingerprint, fingerprint, packing.first, packing.run_keys, described
    )
    with PackWriter(target, tables, sources, parse_bytes(memory)) as writer:
        for key, ids in packing.reads("writing"):
            writer.add(key, ids)
        writer.finish(meta, overwrite)
    return summary


def _check_target(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not is_pack(target):
        raise FileExistsError(f"'{target}' exists and is no pack: choose another path")
    if not overwrite:
        raise FileExistsError(
            f"'{target}' exists: choose another path, or pass overwrite=True (--overwrite)"
        )


def _names(dataset: DistDataset, attributes: Sequence[str] | None) -> set[str]:
    """Return the names of the attributes to pack."""
    types = [t for level in ("node", "edge") for t in dataset.opened.meta.types(level)]
    widths = [(name, attr.row_bytes) for t in types for name, attr in t.attrs.items()]
    if attributes is None:
        return {name for name, width in widths if NARROW_BYTES <= width <= MAX_ROW_BYTES}
    known = {name for name, width in widths if 0 < width <= MAX_ROW_BYTES}
    if not attributes or not known.issuperset(attributes):
        raise ValueError(
            f"attributes must be names of attributes with rows of 1 byte to 1 MiB (got "
            f"{list(attributes)}): there are {sorted(known)}"
        )
    return set(attributes)


def _format(rows: RowStore) -> tuple[str, list[int]]:
    return rows.stored.dtype, list(rows.stored.shape)


class _Packing:
    """Draws of a loader's epochs, with the reads of their rows.

    Args:
        loader: the loader.
        dataset: its graph.
        names: names of the attributes that are packed.
        epochs: number of epochs.
        progress: see `pack_epochs`.

    Attributes:
        first: number of the first epoch.
        run_keys: key of each epoch.
    """

    def __init__(
        self,
        loader: DistLoader,
        dataset: DistDataset,
        names: set[str],
        epochs: int,
        progress: Progress | None,
    ) -> None:
        self._loader, self._dataset, self._names = loader, dataset, names
        self._progress = progress or (lambda step, done, total: None)
        keys = loader._keys
        assert keys.seed is not None
        self.first = keys.epoch
        numbers = range(self.first, self.first + epochs)
        self.run_keys = [_native.run_key(keys.seed, epoch, keys.stream) for epoch in numbers]
        self._recorded: dict[TableKey, RecordedRows] = {}

    def count(self) -> dict[TableKey, TableCounts]:
        """Draw all batches, and count the reads of each table."""
        tables: dict[TableKey, TableCounts] = {}
        for key, ids in self.reads("counting"):
            if key not in tables:
                rows = self._recorded[key]
                tables[key] = TableCounts(rows.num_rows, rows.stored.nbytes)
            tables[key].add(ids)
        return tables

    def sources(self, tables: Iterable[TableKey]) -> dict[TableKey, RowStore]:
        """Return the rows of each table, read past the page cache without a cache."""
        disk = DiskOptions(tuple(self._names), 0)
        folder = PartitionFolder(self._dataset.opened.root).attach((), disk)
        parts: dict[int, Part] = {}
        rows = {}
        for key in tables:
            part = parts.setdefault(key.part, Part(folder, key.part))
            rows[key] = part.feature(key.level, key.type_index, key.attribute).as_stored
        return rows

    def reads(self, step: str) -> Iterator[tuple[TableKey, Int64Array]]:
        """Draw all batches. Yield the reads of their rows: the table, and row numbers."""
        loader, dataset = self._loader, self._dataset
        client = dataset.service().client(TIMEOUT)
        pipeline = Pipeline(
            dataset.connected_part(), loader._spec, client, loader._weights, opened=self._opened
        )
        total, done = len(self.run_keys) * len(loader), 0
        try:
            for run_key in self.run_keys:
                plan, order = loader._epoch_plan(EpochProgress(run_key))
                columns = loader._columns if order is None else loader._columns[:, order]
                epoch = Epoch(run_key, plan, columns)
                for batch in range(plan.num_batches):
                    steps = pipeline.draw(epoch.seeds_of(batch), *epoch.key_of(batch))
                    drawn = run(steps, client)
                    pipeline.announce(drawn)
                    pipeline.release(drawn)
                    for key, rows in self._recorded.items():
                        while rows.expected:
                            yield key, rows.expected.pop(0)
                    done += 1
                    self._progress(f"{step} rows of batches", done, total)
        finally:
            if client is not None:
                client.close()

    def _opened(self, part: Part, level: str, type_index: int, name: str) -> RowStore:
        """Return the rows of an attribute, which are recorded if they are packed."""
        rows = part.feature(level, type_index, name)
        attr = part.meta.types(level)[type_index].attrs.get(name)
        if name not in self._names or attr is None or isinstance(rows, TakenFeature):
            return rows  # also those of a user's store
        key = TableKey(level, type_index, name, part.part)
        recorded = self._recorded.setdefault(key, RecordedRows(rows.as_stored))
        return attr.delivering(recorded)
