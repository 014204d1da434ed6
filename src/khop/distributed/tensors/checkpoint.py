"""Checkpoints of a store's tensors: folders of .npy files, by original id. Runs in trainers.

| File | Content |
|---|---|
| checkpoint.json | the tensors, the number of completed steps, sizes and checksums of files |
| t<i>/ids-<p>.npy | original ids of rows of tensor i, those of partition p when it was written |
| t<i>/rows-<p>.npy | the rows |

Rows have their ids, so that another number of partitions and trainers can read them. A checkpoint
is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import numpy as np

from khop import codec
from khop.codec import AtMost
from khop.data.arrays import check_range, storage_dtype
from khop.data.files import load_npy
from khop.distributed.tensors.checkpoint_files import SavedFile, read_ranges, write_array
from khop.distributed.tensors.graph_tensor import GraphTensor, Push
from khop.distributed.tensors.store_client import StoreClient
from khop.distributed.tensors.tensor_requests import Count, Dtype, TensorName, TensorSpec
from khop.errors import FolderError, ProtocolError
from khop.log import shown
from khop.private_folders import PrivateFolder
from khop.storage.folder.checksums import RANGE_BYTES
from khop.storage.folder.writer import temporary_of
from khop.typing import Array, Int64Array

CHECKPOINT_FILE = "checkpoint.json"
_PATH = re.compile(r"t\d{1,4}/(ids|rows)-\d{1,4}\.npy", re.ASCII)
_MAX_FILES = 1 << 20
_MAX_BYTES = 256 << 20  # of checkpoint.json
_BYTES_AT_ONCE = 32 << 20
_SHARED = "all machines must share the storage of a checkpoint, under one path"


@dataclass(frozen=True)
class SavedTensor:
    """Description of a tensor. `group` has the node type, or the names of the edge type."""

    name: TensorName
    group: Annotated[list[Annotated[str, AtMost(512)]], AtMost(3)]
    dtype: Dtype
    shape: Annotated[list[Count], AtMost(8)]

    @property
    def is_of_edges(self) -> bool:
        return len(self.group) == 3

    @property
    def type_name(self) -> Any:
        """The node type or the edge type."""
        return tuple(self.group) if self.is_of_edges else "".join(self.group)


@dataclass(frozen=True)
class Checkpoint:
    """Content of checkpoint.json.

    Attributes:
        version: number of completed steps.
        tensors: the tensors, in the order of their creation.
        num_parts: number of pieces of each tensor.
        files: sizes and checksums, by path.
    """

    version: Count
    tensors: Annotated[list[SavedTensor], AtMost(4096)]
    num_parts: Annotated[int, codec.Between(1, 4096)]
    files: Annotated[dict[str, SavedFile], AtMost(_MAX_FILES)]


def save(client: StoreClient, tensors: Sequence[GraphTensor], version: int, folder: str) -> None:
    """Write a checkpoint. All trainers call it together.

    Raises:
        FileExistsError: the folder exists.
        OSError: the disk is full.
    """
    root = Path(folder).absolute()
    made = _begin(root) if client.rank == 0 else ""
    try:
        _save(client, tensors, version, root, made)
    except BaseException:
        if made:
            shutil.rmtree(made, ignore_errors=True)
        raise


def _save(
    client: StoreClient, tensors: Sequence[GraphTensor], version: int, root: Path, made: str
) -> None:
    """Write a checkpoint in the temporary folder that trainer 0 has made, and name it `root`."""
    temporary = Path(client.meet(made)[0])
    files: dict[str, Any] = {}
    for of_trainer in client.meet(_write_own_parts(client, tensors, temporary)):
        files |= of_trainer
    if client.rank == 0:
        described = [
            SavedTensor(t.name, _names(t.group), t.spec.dtype, list(t.spec.shape)) for t in tensors
        ]
        content = {
            "version": version,
            "tensors": [dataclasses.asdict(tensor) for tensor in described],
            "num_parts": client.meta.num_parts,
            "files": files,
        }
        _finish(root, temporary, content)


def _begin(root: Path) -> str:
    """Make the temporary folder of a checkpoint, and return its path."""
    check_is_new(root)
    with PrivateFolder.make(temporary_of(root, token_hex(8)), exist_ok=False) as made:
        return str(made.path)


def check_is_new(folder: str | os.PathLike[str]) -> None:
    """Raise FileExistsError if there is something at the path of a new checkpoint."""
    if os.path.lexists(folder):
        raise FileExistsError(f"'{folder}' exists: choose another folder for the checkpoint")


def _write_own_parts(
    client: StoreClient, tensors: Sequence[GraphTensor], temporary: Path
) -> dict[str, Any]:
    """Write the rows at this trainer's servers. Return sizes and checksums by path."""
    written: dict[str, SavedFile] = {}
    try:
        opened = PrivateFolder.open(temporary)
    except FileNotFoundError:
        raise FolderError(f"this machine does not see '{temporary}': {_SHARED}") from None
    with opened as folder:
        for index, tensor in enumerate(tensors):
            spec = tensor.spec
            folder.make_folder(f"t{index}")
            for part in client.own_parts:
                low, high = client.bounds_of(spec)[part : part + 2]
                ids = client.original_ids(spec, part, np.arange(low, high))
                path = f"t{index}/ids-{part}.npy"
                written[path] = write_array(folder, path, ids.dtype, ids.shape, [ids])
                path, shape = f"t{index}/rows-{part}.npy", (high - low, *spec.shape)
                rows = tensor.rows_of_part(part, _BYTES_AT_ONCE)
                written[path] = write_array(folder, path, storage_dtype(spec.dtype), shape, rows)
    return {path: dataclasses.asdict(file) for path, file in written.items()}


def _finish(root: Path, temporary: Path, content: dict[str, Any]) -> None:
    """Write checkpoint.json, and give the folder its name."""
    with PrivateFolder.open(temporary) as opened:
        for path, written in content["files"].items():
            if opened.size(path) != written["bytes"]:
                raise FolderError(f"'{path}' is not in '{temporary}' as it was written: {_SHARED}")
        with opened.create(CHECKPOINT_FILE) as file:
            file.write(json.dumps(content, indent=1).encode())
            file.flush()
            os.fsync(file.fileno())
        opened.sync()
        opened.publish()
    temporary.rename(root)
    descriptor = os.open(root.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(
    client: StoreClient,
    tensors: Sequence[GraphTensor],
    saved: Checkpoint,
    folder: str | os.PathLike[str],
) -> None:
    """Send servers the rows of a checkpoint. All trainers call it together, and share the files.

    A damaged range of rows is noticed before these rows are sent. Others may have been sent then.

    Raises:
        FolderError: a file is missing or damaged, or does not fit its tensor.
    """
    share = slice(client.rank, None, client.num_trainers)
    _check_ids(folder, saved, share)
    client.meet(None)  # rows of wrong ids are written nowhere
    pushes: deque[Push] = deque()
    for index, tensor in enumerate(tensors):
        for ids, rows in _read_rows(folder, saved, index, tensor, share):
            check_range(ids, len(tensor), f"ids of '{tensor.name}' in '{folder}'")
            pushes.append(tensor.write(ids, rows))
            if len(pushes) > 1:  # the next rows are read while servers have these
                pushes.popleft().wait()
    for push in pushes:
        push.wait()


def check_fits(folder: str | os.PathLike[str], described: SavedTensor, tensor: GraphTensor) -> None:
    """Raise FolderError if a tensor of a checkpoint is not like the tensor of this name."""
    own = tensor.group, tensor.spec.dtype, list(tensor.spec.shape)
    if own != (described.type_name, described.dtype, list(described.shape)):
        raise FolderError(f"'{described.name}' of checkpoint '{folder}' is not like {tensor}")


def read_checkpoint(folder: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint's description.

    Raises:
        FolderError: it is none, or damaged.
    """
    path = Path(folder) / CHECKPOINT_FILE
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("is too long")
        saved = codec.from_json(Checkpoint, json.loads(path.read_bytes()), "a checkpoint")
        if strange := [name for name in saved.files if not _PATH.fullmatch(name)]:
            raise ValueError(f"lists {shown(strange[0])}")
        return saved
    except (OSError, ValueError, RecursionError, ProtocolError) as error:
        raise FolderError(f"'{folder}' is not a checkpoint of a GraphStore: {error}") from None


def _read_rows(
    folder: str | os.PathLike[str],
    checkpoint: Checkpoint,
    index: int,
    tensor: GraphTensor,
    share: slice,
) -> Iterator[tuple[Int64Array, Array]]:
    """Yield ids and rows of a share of the ranges of a tensor's files.

    A row belongs to the range in which it begins.

    Raises:
        FolderError: a file is missing, damaged, or does not fit the tensor.
    """
    spec, count, tasks = tensor.spec, 0, []
    dtype, shape, row_bytes = storage_dtype(spec.dtype), tuple(spec.shape), spec.rows.nbytes
    ids_of: dict[str, tuple[Int64Array, int]] = {}
    for part in range(checkpoint.num_parts):
        ids = _mapped(folder, checkpoint, f"t{index}/ids-{part}.npy", np.dtype(np.int64), ())
        path = f"t{index}/rows-{part}.npy"
        rows = _mapped(folder, checkpoint, path, dtype, shape)
        if len(ids) != len(rows):
            raise FolderError(f"'{folder}' has {len(rows)} rows for {len(ids)} ids of one tensor")
        count += len(ids)
        known = checkpoint.files[path]
        ids_of[path] = ids, known.bytes - rows.nbytes
        tasks += [(path, known, i) for i in range(len(known.ranges))]
    if count != len(tensor):
        raise FolderError(
            f"'{folder}' has {count} rows of '{tensor.name}', and the graph {len(tensor)}"
        )
    for path, first, content in read_ranges(Path(folder), tasks[share], row_bytes):
        ids, begin = ids_of[path]
        size = min(len(content), RANGE_BYTES)
        low, high = (
            min(max(-(-(at - begin) // max(row_bytes, 1)), 0), len(ids))
            for at in (first, first + size)
        )
        at = begin + low * row_bytes - first
        for piece in _pieces(high - low, spec):
            rows = content[at + piece.start * row_bytes : at + piece.stop * row_bytes].view(dtype)
            of_rows = np.array(ids[low + piece.start : low + piece.stop])
            yield of_rows, rows.reshape(len(of_rows), *shape)


def _check_ids(folder: str | os.PathLike[str], checkpoint: Checkpoint, share: slice) -> None:
    """Compare checksums of a share of the ranges of the files of ids.

    Raises:
        FolderError: a file is missing or damaged.
    """
    tasks = [
        (path, known, i)
        for path, known in sorted(checkpoint.files.items())
        if "/ids-" in path
        for i in range(len(known.ranges))
    ]
    for _ in read_ranges(Path(folder), tasks[share], 0):
        pass


def _mapped(
    folder: str | os.PathLike[str],
    checkpoint: Checkpoint,
    path: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
) -> Array:
    if path not in checkpoint.files:
        raise FolderError(f"checkpoint '{folder}' does not list '{path}'")
    try:
        array: Array = load_npy(Path(folder) / path, "r")
    except (OSError, ValueError) as error:
        raise FolderError(f"'{path}' of checkpoint '{folder}': {error}") from None
    if checkpoint.files[path].bytes != (Path(folder) / path).stat().st_size:
        raise FolderError(f"'{path}' of checkpoint '{folder}' is damaged: its size has changed")
    if array.dtype != dtype or array.shape[1:] != shape or array.ndim != 1 + len(shape):
        raise FolderError(f"'{path}' of checkpoint '{folder}' has another dtype or shape")
    return array


def _pieces(count: int, spec: TensorSpec) -> Iterator[slice]:
    rows = max(_BYTES_AT_ONCE // max(spec.rows.nbytes, 8), 1)
    return (slice(first, min(first + rows, count)) for first in range(0, count, rows))


def _names(group: Any) -> list[str]:
    return [group] if isinstance(group, str) else list(group)
