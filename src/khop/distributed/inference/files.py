"""Files of layer-wise outputs: what each trainer computes, the writer and the reader of rows.

`khop.distributed.tensors.row_files` has the layout of the folder. Files are written under a
temporary name, from first row to last, and renamed: they are complete or absent. Trainers without a
common file system each have some of the files. They request rows of the other files from partition
servers. Runs in trainers. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from khop.data import Feature
from khop.data.arrays import storage_dtype
from khop.data.files import load_npy
from khop.data.tickets import Ticket
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.protocol import OutputRows
from khop.distributed.tensors.row_files import output_file
from khop.sampler.rows.row_fetcher import RowFetcher
from khop.storage.folder import AttrMeta
from khop.typing import Array, Int64Array, NodeType

PROBE = ".khop-probe-"
"""Prefix of the files by which trainers detect that they share the folder."""


@dataclass(frozen=True)
class Share:
    """Nodes of one part that one trainer computes in layer-wise inference.

    They are share `index` of `of` even shares of the part. `ranges` has the first new id, and the
    last plus one, for each node type.
    """

    rank: int
    part: int
    index: int
    of: int
    ranges: list[tuple[int, int]]

    @property
    def file_name(self) -> str:
        """Name of the .npy file with the outputs of this share's nodes."""
        share = "" if self.of == 1 else f"-share-{self.index}"
        return f"part-{self.part}{share}.npy"

    def num_rows(self, node_type: int) -> int:
        low, high = self.ranges[node_type]
        return high - low


@dataclass(frozen=True)
class RowSpec:
    """Shape and dtypes of a row of a layer's output, for one node type.

    `stored` is the dtype on disk, `computed` the dtype of this output and the next layer's input.
    """

    stored: str
    computed: str
    shape: tuple[int, ...]


def clear_folder(root: Path, overwrite: bool, probes: Collection[str]) -> None:
    """Check that a folder holds no outputs, or remove them.

    Trainers write small files to detect a common folder. Files in `probes` stay, others go.

    Raises:
        FileExistsError: `root` holds outputs and `overwrite` is False, or it holds other files.
    """
    entries = []
    for entry in root.iterdir():
        if not entry.name.startswith(PROBE):
            entries.append(entry)
        elif entry.name not in probes:
            entry.unlink(missing_ok=True)
    if entries and not overwrite:
        raise FileExistsError(
            f"'{root}' is not empty: choose another output_dir or pass overwrite=True"
        )
    strange = [p.name for p in entries if not re.fullmatch(r"layer-\d+", p.name)]
    if strange:
        raise FileExistsError(
            f"'{root}' holds more than layer-wise outputs ({sorted(strange)[:3]}): it will not be "
            "overwritten"
        )
    for entry in entries:
        shutil.rmtree(entry)


def remove_outputs(root: Path, layer: int, shares: Sequence[Share]) -> None:
    """Remove a layer's output files of a trainer's `shares` in `root`, and folders then empty."""
    layer_folder = root / f"layer-{layer}"
    # A folder without files of this trainer may be removed by another at any moment.
    folders: list[Path] = []
    with contextlib.suppress(FileNotFoundError):
        folders = sorted(layer_folder.iterdir())
    for folder in folders:
        for share in shares:
            (folder / share.file_name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()
    with contextlib.suppress(OSError):
        layer_folder.rmdir()


class RowWriter:
    """Writer of an .npy file of `num_rows` rows, which `spec` describes, batch by batch."""

    def __init__(self, file: Path, spec: RowSpec, num_rows: int) -> None:
        self.spec = spec
        self._file = file
        self._temporary = file.with_name(f".{file.name}.tmp")
        self._missing = num_rows
        file.parent.mkdir(parents=True, exist_ok=True)
        self._temporary.unlink(missing_ok=True)
        self._opened = self._temporary.open("xb")  # never through a link, as "wb" would
        header: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(storage_dtype(spec.stored)),
            "fortran_order": False,
            "shape": (num_rows, *spec.shape),
        }
        np.lib.format.write_array_header_1_0(self._opened, header)

    def append(self, rows: Array) -> None:
        """Write the next rows, [n, ...], which have the dtype of the file."""
        self._missing -= len(rows)
        # No memory map: a full disk would kill the process with SIGBUS, here it is an OSError.
        self._opened.write(np.ascontiguousarray(rows).data.cast("B") if rows.size else b"")

    def finish(self) -> None:
        """Sync the file to disk and rename it to its final name.

        Raises:
            ValueError: another number of rows than `num_rows` was written.
        """
        if self._missing:
            raise ValueError(f"'{self._file}' lacks {self._missing} of its rows")
        self._opened.flush()
        os.fsync(self._opened.fileno())
        self._opened.close()
        self._temporary.rename(self._file)

    def abandon(self) -> None:
        """Remove the temporary file. No effect after `finish`."""
        self._opened.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


class ShareRows(RowFetcher):
    """Reader of a layer's outputs for one node type, from files or from other trainers.

    A share is the contiguous range of nodes whose output one trainer computed. Shares are ordered
    by first id. `node_type` is (index, name), and `spec` has dtype and shape of the rows. Files of
    the trainers `visible` (ranks) are in this trainer's folder, `root`. Other rows come from the
    servers of their parts, over `client`. If None, all files are here.
    """

    def __init__(
        self,
        root: Path,
        shares: Sequence[Share],
        layer: int,
        node_type: tuple[int, NodeType],
        spec: RowSpec,
        visible: Sequence[int],
        client: PartitionClient | None,
    ) -> None:
        self._type_index, self._type_name = node_type
        ranges = [share.ranges[self._type_index] for share in shares]
        bounds = [low for low, _ in ranges] + [ranges[-1][1]]
        attr = AttrMeta.of(spec.stored, spec.shape)
        super().__init__(bounds, {f"output of layer {layer}": attr})
        self._root = root
        self._shares = shares
        self._layer = layer
        self._dtype = spec.stored
        self._visible = visible
        self._opened: dict[int, Feature] = {}
        self._client = client

    def local_tables(self, index: int) -> list[Feature] | None:
        share = self._shares[index]
        if share.rank not in self._visible:
            return None
        if index not in self._opened:
            file = output_file(self._root, self._layer, self._type_name, share.file_name)
            self._opened[index] = Feature(load_npy(file, "r"), self._dtype)
        return [self._opened[index]]

    def request(self, index: int, ids: Int64Array) -> Ticket:
        assert self._client is not None
        share = self._shares[index]
        rows = ids - self.bounds[index]
        request = OutputRows(self._layer, self._type_index, share.file_name)
        return self._client.read(share.part, request, [rows])

    def owner(self, index: int) -> str:
        return f"trainer {self._shares[index].rank}"


def check_shares(shares: Sequence[Share], counts: Sequence[int]) -> None:
    """Raise ValueError unless the trainers' shares, in this order, hold every node exactly once.

    `counts` is the number of nodes of each type.
    """
    for node_type, count in enumerate(counts):
        ranges = [share.ranges[node_type] for share in shares]
        ends = [0, *(high for _, high in ranges)]
        if [low for low, _ in ranges] != ends[:-1] or ends[-1] != count:
            raise ValueError(
                f"trainers do not divide the {count} nodes of type {node_type} evenly: {ranges}. "
                "Have they loaded the same partition folder?"
            )
