"""Reads a partition folder."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from khop._version import __version__
from khop.data import Feature
from khop.errors import FolderError
from khop.partition.folder.meta import FORMAT, META_FILE, VERSION, lists_files, meta_of, sealed
from khop.partition.folder.paths import map_path, node_attr_path, node_path, split_path, time_path
from khop.typing import Array, Int64Array, IntArray, NodeType


class PartitionFolder:
    """Reads a folder. Opening costs the same whatever its size: arrays are mapped when asked for.

    Args:
        root: the folder that a partitioner wrote.

    Raises:
        FolderError: no folder, not a partition folder, another format version, damaged meta.json.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        text = self._read_meta()
        self.fingerprint = hashlib.sha256(text).hexdigest()[:16]
        """Tells one partitioning from another: all trainers of a job must have the same."""
        content = self._parse(text)
        self._files: Mapping[str, Mapping[str, Any]] = content["files"]
        try:
            self.meta = meta_of(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FolderError(f"'{self.root / META_FILE}' is damaged: {error!r}") from None

    def _read_meta(self) -> bytes:
        if not self.root.is_dir():
            raise FolderError(f"no partition folder at '{self.root}'")
        try:
            return (self.root / META_FILE).read_bytes()
        except FileNotFoundError:
            raise FolderError(
                f"'{self.root}' is not a partition folder: it has no {META_FILE}. Make one with "
                "`khop partition` or a khop.partition partitioner."
            ) from None

    def _parse(self, text: bytes) -> dict[str, Any]:
        file = self.root / META_FILE
        try:
            content = json.loads(text)
        except ValueError as error:
            raise FolderError(f"'{file}' is damaged: {error}") from None
        seal = content.pop("seal", None) if isinstance(content, dict) else None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise FolderError(f"'{file}' does not describe a khop partition folder")
        if content.get("version") != VERSION:
            raise FolderError(
                f"'{self.root}' has format version {content.get('version')}, but this khop "
                f"({__version__}) reads version {VERSION}: partition the graph again, or install "
                "the khop that wrote it"
            )
        if seal is None or text != sealed(content):
            raise FolderError(f"'{file}' is damaged: its checksum differs")
        if not lists_files(content.get("files")):
            raise FolderError(f"'{file}' is damaged: its list of files is malformed")
        return content

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.meta.num_parts

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]]:
        """Path -> {'bytes', 'sha256'} of every file but meta.json."""
        return self._files

    def has(self, path: str) -> bool:
        """Whether the folder has such a file, on this machine or another."""
        return path in self._files

    def has_part(self, part: int) -> bool:
        """Whether the part's files are on this machine."""
        return (self.root / f"part-{part}").is_dir()

    def open(self, path: str) -> Array:
        """Maps an array read-only.

        Raises:
            FolderError: the file is missing or not as long as meta.json says.
        """
        known = self._files.get(path)
        if known is None:
            raise FolderError(f"'{self.root}' has no array '{path}'")
        file = self.root / path
        try:
            size = file.stat().st_size
        except OSError as error:
            raise FolderError(
                f"'{file}' cannot be read ({error.strerror}): copy the part's whole folder to this "
                "machine"
            ) from None
        if size != known["bytes"]:
            raise FolderError(
                f"'{file}' has {size} bytes instead of {known['bytes']}: it is damaged; `khop "
                "verify` checks the whole folder"
            )
        try:
            return _open_npy(file)
        except ValueError as error:
            raise FolderError(f"'{file}' is damaged: {error}") from None

    def check_part(self, part: int) -> int:
        """Returns `part` if the folder has it on this machine, else raises a clear error.

        Raises:
            TypeError: not an integer.
            IndexError: no such part.
            FolderError: the part's files are on another machine.
        """
        if isinstance(part, bool) or not isinstance(part, (int, np.integer)):
            raise TypeError(f"partition_idx must be an integer (got '{type(part).__name__}')")
        if not 0 <= part < self.num_parts:
            raise IndexError(
                f"partition_idx={part}, but '{self.root}' has {self.num_parts} partitions "
                f"(0 to {self.num_parts - 1})"
            )
        if not self.has_part(int(part)):
            raise FolderError(
                f"'{self.root}' has {self.num_parts} partitions, but part-{part} is not on this "
                f"machine: copy '{self.root}/part-{part}' here or load another partition_idx"
            )
        return int(part)

    def node_feature(self, part: int, node_type: NodeType, name: str) -> Feature:
        """A node attribute of a part; row i belongs to the i-th node of its range."""
        dtype = self.meta.node_type(node_type).attrs[name].dtype
        return Feature(self.open(node_attr_path(part, node_type, name)), dtype)

    def node_times(self, node_type: NodeType) -> Int64Array | None:
        """[num_nodes] key of each node's time, by new id; None if the type has no times."""
        if not self.meta.node_type(node_type).timed:
            return None
        return self.open(time_path(node_type))

    def node_ids(self, part: int, node_type: NodeType) -> IntArray:
        """[n] original ids of a part's nodes."""
        return self.open(node_path(part, node_type, "id"))

    def id_map(self, node_type: NodeType) -> IntArray:
        """[num_nodes] new id of each original id."""
        return self.open(map_path(node_type))

    def split(self, node_type: NodeType, mask: str) -> IntArray:
        """[n] new ids, ascending, for which the boolean attribute `mask` holds."""
        splits = self.meta.node_type(node_type).splits
        if mask not in splits:
            raise KeyError(f"'{node_type}' has no boolean attribute '{mask}': there are {splits}")
        return self.open(split_path(node_type, mask))


# NumPy reads headers with `ast`, which several threads, a server's for example, cannot use at the
# same time before Python 3.13: now and then one gets a SystemError (python/cpython#106905).
_reading_header = threading.Lock()


def _open_npy(file: Path) -> Array:
    with _reading_header:
        array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    # An ordinary view: np.memmap's own indexing costs microseconds a call.
    return array.view(np.ndarray)
