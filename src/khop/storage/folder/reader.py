"""Reader of partition folders. Runs in samplers, servers, trainers and command-line tools."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from khop.data import Feature, RowStore
from khop.data.arrays import narrowest_int, storage_dtype
from khop.data.direct_rows import DiskOptions
from khop.errors import FolderError, ProtocolError
from khop.storage.folder import paths
from khop.storage.folder.checksums import RANGES_FILE, Written, num_ranges
from khop.storage.folder.content import (
    FORMAT,
    META_FILE,
    VERSION_RANGES,
    FileMeta,
    Listing,
    UnreadableError,
    parse_content,
    sealed,
)
from khop.storage.folder.meta import AttrMeta, EdgeTypeMeta, FolderMeta, NodeTypeMeta
from khop.storage.folder.npy import npy_header, open_inside, open_npy
from khop.storage.named_stores import NamedStore, StoreKey
from khop.typing import Array, EdgeType, Int64Array, IntArray, NodeType

INTS = ("int32", "int64")
"""Dtypes of ids, row pointers and positions."""

_MAX_META = 64 << 20
# Number of ids to invert at a time: other threads may run in between.
_IDS_AT_ONCE = 1 << 18
_ADVICE = "make one with `khop partition` or khop.partition_graph()"


def check_is_folder(root: str | os.PathLike[str]) -> None:
    """Check that `root` is a partition folder, whole or damaged. If not, raise FolderError."""
    root = Path(root).absolute()
    if not root.is_dir():
        raise FolderError(f"no partition folder at '{root}': {_ADVICE}")
    if not os.path.lexists(root / META_FILE):
        raise FolderError(
            f"'{root}' is not a partition folder: it has no {META_FILE}. {_ADVICE.capitalize()}"
        )


class PartitionFolder:
    """Reader of a partition folder. Opening is fast for any size: arrays are mapped on request.

    Args:
        root: the folder that a partitioner wrote.

    Raises:
        FolderError: there is no folder, it is not a partition folder, it has another format
            version, or its meta.json is damaged.

    Example:
        >>> PartitionFolder(folder).num_parts
        1
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._resolved = self.root.resolve()
        check_is_folder(self.root)
        with os.fdopen(open_inside(self._resolved, META_FILE), "rb") as file:
            if os.fstat(file.fileno()).st_size > _MAX_META:
                raise FolderError(f"'{self.root / META_FILE}' has more than {_MAX_META} bytes")
            text = file.read(_MAX_META)
        version, meta, listing = self._parse(text)
        self.version: int = version
        """Format version."""
        self.meta: FolderMeta = meta
        """Description of the folder."""
        self.files: Mapping[str, FileMeta] = listing.files
        """Path -> length and checksum of every file but meta.json and the digests of ranges."""
        self.fingerprint = listing.identity or hashlib.sha256(text).hexdigest()[:16]
        """Identifier of a partitioning: all trainers of a job must have the same."""
        self._original: dict[NodeType, IntArray] = {}
        self.stores: dict[StoreKey, NamedStore] = {}
        """Stores of this user with the rows of attributes that have no files, see `attach`."""
        self.disk: DiskOptions | None = None
        """Attributes whose rows are read past the page cache. If None, all are mapped."""

    def __repr__(self) -> str:
        """Return text for Python's prompt: the folder's path and the graph's size."""
        nodes = sum(node_type.count for node_type in self.meta.node_types)
        edges = sum(edge_type.count for edge_type in self.meta.edge_types)
        size = f"{self.num_parts} parts, {nodes:,} nodes, {edges:,} edges"
        return f"PartitionFolder('{self.root}', {size})"

    def _parse(self, text: bytes) -> tuple[int, FolderMeta, Listing]:
        file = self.root / META_FILE
        try:
            content = json.loads(text)
            seal = content.pop("seal", None) if isinstance(content, dict) else None
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise FolderError(f"'{file}' does not describe a khop partition folder")
            # A later version may compute `seal` otherwise: the error must be about the version.
            is_whole = seal is not None and text == sealed(content)
            parsed = parse_content(content)
        except UnreadableError as error:
            raise FolderError(f"'{self.root}' {error}") from None
        except (ProtocolError, ValueError, RecursionError) as error:
            raise FolderError(f"'{file}' is damaged: {error}") from None
        if not is_whole:
            raise FolderError(f"'{file}' is damaged: its checksum differs")
        return parsed

    def attach(
        self, stores: Iterable[NamedStore], disk: DiskOptions | None = None
    ) -> PartitionFolder:
        """Add attributes whose rows are not in the folder, but in stores that this user opens.

        Return the folder itself.

        Args:
            stores: the stores.
            disk: attributes of the folder whose rows are read past the page cache.

        Raises:
            ValueError: the folder has an attribute of this name itself.

        :meta private:
        """
        for store in stores:
            key, attr = store.key, AttrMeta.of(*store.delivered)
            types = [*self.meta.types(key.level)]
            index = [t.name for t in types].index(key.type_name)
            if key.attribute in {"id", "edge_id", *types[index].attrs}:
                raise ValueError(
                    f"'{self.root}' has {key} itself: name the store's attribute otherwise, or "
                    "partition the graph without it"
                )
            attrs = {**types[index].attrs, key.attribute: attr}
            types[index] = replace(types[index], attrs=attrs)
            replaced: dict[str, Any] = {f"{key.level}_types": types}
            self.meta = replace(self.meta, **replaced)
            self.stores[key] = store
            described = f"{self.fingerprint} {key} {attr}"
            self.fingerprint = hashlib.sha256(described.encode()).hexdigest()[:16]
        self.disk = disk
        return self

    @property
    def num_parts(self) -> int:
        """Number of parts of the folder."""
        return self.meta.num_parts

    def has(self, path: str) -> bool:
        """Return True if `path` is a file of the folder. It may be on another machine."""
        return path in self.files

    def has_part(self, part: int) -> bool:
        """Return True if the part's files are on this machine."""
        return (self.root / f"part-{part}").is_dir()

    def can_read_part(self, part: int) -> bool:
        """Return True if this process may read all files of the part."""
        files = [self.root / path for path in self.files if path.startswith(f"part-{part}/")]
        return self.has_part(part) and all(os.access(file, os.R_OK) for file in files)

    def open(self, path: str) -> Array:
        """Map the array in file `path` of the folder, read-only.

        Raises:
            FolderError: the file is missing, or its length differs from meta.json.
        """
        return open_npy(self._resolved, path, self._bytes_of(path))

    def _bytes_of(self, path: str) -> int:
        if path not in self.files:
            raise FolderError(f"'{self.root}' has no array '{path}'")
        return self.files[path].bytes

    def open_file(self, path: str) -> int:
        """Open a file of the folder for reading and return its descriptor, which the caller closes.

        Raises:
            FolderError: the file is missing, no regular file, or outside the folder.
        """
        return open_inside(self._resolved, path)

    def written(self) -> dict[str, Written]:
        """Return {path: length and checksums} of every file, as recorded in the folder.

        Raises:
            FolderError: the folder is of an earlier version, without digests, or is damaged.

        :meta private:
        """
        if self.version < VERSION_RANGES:
            raise FolderError(
                f"'{self.root}' has format version {self.version}, without checksums of ranges: "
                f"convert it first, with khop convert {self.root} --in-place"
            )
        counts = {path: num_ranges(known.bytes) for path, known in self.files.items()}
        total = sum(count for count in counts.values() if count != 1)
        digests = np.empty((0, 32), np.uint8)
        if total:
            nbytes = len(npy_header(digests.dtype, (total, 32))) + 32 * total
            # It has further rows if an addition of files was ended before meta.json was replaced.
            with os.fdopen(open_inside(self._resolved, RANGES_FILE)) as opened:
                nbytes = max(nbytes, os.fstat(opened.fileno()).st_size)
            digests = open_npy(self._resolved, RANGES_FILE, nbytes)
        written, first = {}, 0
        for path, known in self.files.items():
            ranges = [known.sha256]
            if (count := counts[path]) != 1:
                ranges = [digest.tobytes().hex() for digest in digests[first : first + count]]
                first += count
            written[path] = Written(known.bytes, ranges)
            if written[path].sha256 != known.sha256:
                raise FolderError(
                    f"'{self.root / RANGES_FILE}' is damaged: its digests of '{path}' are not "
                    "those of meta.json"
                )
        return written

    def open_as(self, path: str, shape: tuple[int, ...], *dtypes: str) -> Array:
        """Map an array with known shape and dtype.

        Args:
            path: path of the file.
            shape: shape of the array.
            dtypes: names of the dtypes that it may have.

        Raises:
            FolderError: as for `open`, or the array has another shape or dtype.
        """
        return open_npy(self._resolved, path, self._bytes_of(path), shape, *dtypes)

    def check_part(self, part: int) -> int:
        """Return `part` as an int if its files are on this machine, else raise an error.

        Raises:
            TypeError: `part` is not an integer.
            IndexError: there is no such part.
            FolderError: the part's files are not on this machine.
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

    def original_ids(self, node_type: NodeType) -> IntArray:
        """Return the original id of each new id of a node type: [num_nodes] integers.

        The first call computes them.

        Raises:
            FolderError: the map from original to new ids does not contain every new id.
        """
        known = self._original.get(node_type)
        if known is None:
            id_map = self.id_map(node_type)
            known = np.full(len(id_map), -1, id_map.dtype)
            with self.complete(known, f"map of '{node_type}'"):
                for first in range(0, len(id_map), _IDS_AT_ONCE):
                    piece = id_map[first : first + _IDS_AT_ONCE]
                    known[piece] = np.arange(first, first + len(piece), dtype=id_map.dtype)
            # Threads that compute it at the same time get equal arrays.
            self._original[node_type] = known
        return known

    @contextmanager
    def complete(self, table: IntArray, label: str) -> Iterator[None]:
        """Context whose block must replace each -1 of `table` by an id from the folder's files.

        `label` names the table in messages.

        Raises:
            FolderError: an id was out of range, or an entry was not written.
        """
        try:
            yield
            is_complete = table.min(initial=0) >= 0
        except IndexError:
            is_complete = False
        if not is_complete:
            raise FolderError(
                f"'{self.root}' is damaged: the {label} does not hold each id once; "
                f"'khop verify {self.root}' reports what else is wrong"
            )

    def node_feature(self, part: int, node_type: NodeType, name: str) -> RowStore:
        """Map a node attribute's rows in a part. Row i belongs to the i-th node of the part."""
        described = self.meta.node_type(node_type)
        path = paths.node_attr_path(part, node_type, name)
        return self.open_attr(path, described.attrs[name], described.book.size(part))

    def open_attr(self, path: str, attr: AttrMeta, num_rows: int) -> RowStore:
        """Map the rows of an attribute from file `path`.

        Encoded rows are widened when they are read. Their `as_stored` has them as they are.

        Raises:
            FolderError: the file differs from its description, `attr` and `num_rows`.
        """
        dtype, shape = attr.stored
        array = self.open_as(path, (num_rows, *shape), storage_dtype(dtype).name)
        return attr.delivering(Feature(array, dtype))

    def node_times(self, node_type: NodeType) -> Int64Array | None:
        """Return [num_nodes] int64 keys of nodes' times, by new id, or None without times."""
        described = self.meta.node_type(node_type)
        if not described.timed:
            return None
        return self.open_as(paths.time_path(node_type), (described.count,), "int64")

    def node_ids(self, part: int, node_type: NodeType) -> IntArray:
        """Return the original ids of the nodes of a part: [n] integers."""
        count = self.meta.node_type(node_type).book.size(part)
        return self.open_as(paths.node_path(part, node_type, "id"), (count,), *INTS)

    def id_map(self, node_type: NodeType) -> IntArray:
        """Return the new id of each original id of a node type: [num_nodes] integers."""
        count = self.meta.node_type(node_type).count
        return self.open_as(paths.map_path(node_type), (count,), *INTS)

    def split(self, node_type: NodeType, mask: str) -> IntArray:
        """Return the new ids of the nodes whose boolean attribute `mask` is True: [n], ascending.

        Raises:
            KeyError: there is no such attribute.
        """
        described = self.meta.node_type(node_type)
        if mask not in described.splits:
            raise KeyError(_no_split(self.meta, described, mask))
        path = paths.split_path(node_type, mask)
        return self.open_as(path, self.open(path).shape[:1], *INTS)


def _no_split(meta: FolderMeta, node_type: NodeTypeMeta, name: str) -> str:
    """Return an error message: `name` is no boolean attribute of a node type. It lists them."""
    masks = ", ".join(map(repr, node_type.splits)) or "none"
    message = f"'{node_type.name}' has no boolean attribute '{name}' (there are: {masks}): "
    left_out = meta.left_out.get(name) or meta.left_out.get(f"{name} of {node_type.name}")
    if left_out is not None:
        return (
            f"{message}partitioning left it out, as it {left_out}. Of ids make a mask, "
            f"mask = torch.zeros(num_nodes, dtype=torch.bool); mask[data.{name}] = True, and "
            "partition again, or pass the ids themselves to a loader"
        )
    if name in node_type.attrs:
        attr = node_type.attrs[name]
        return (
            f"{message}it is {attr.dtype} of shape {[node_type.count, *attr.shape]}. Partition a "
            "graph with a mask, data.train_mask.bool() for example, or pass ids to a loader"
        )
    return f"{message}add one, True for the nodes of the split, and partition again"


# Dtypes of the arrays of edges that are not ids or positions.
_EDGE_DTYPES = {"time": "int64", "weight_sum": "uint64", "weight_guide": "uint32"}


def edge_array(folder: PartitionFolder, part: int, edge_type: EdgeType, name: str) -> Array:
    """Map the array `name` of a part's edges: 'indptr', 'indices', 'edge_id', 'time', ...

    If the folder has no original ids of edges, 'edge_id' is their positions in the folder.

    Raises:
        FolderError: the array has not one entry for each edge (`indptr`: for each row, plus one).
    """
    meta = next(t for t in folder.meta.edge_types if t.name == edge_type)
    if name == "edge_id" and not meta.edge_ids:
        return np.arange(*meta.bounds[part : part + 2], dtype=narrowest_int(meta.count))
    if name == "indptr":
        count = folder.meta.row_type(meta).book.size(part) + 1
    else:
        count = meta.bounds[part + 1] - meta.bounds[part]
    dtypes = (_EDGE_DTYPES[name],) if name in _EDGE_DTYPES else INTS
    return folder.open_as(paths.edge_path(part, edge_type, name), (count,), *dtypes)


def edge_rows(folder: PartitionFolder, part: int, edge_type: EdgeTypeMeta, name: str) -> RowStore:
    """Map an edge attribute's rows in a part, in the order of the part's edges."""
    first, end = edge_type.bounds[part : part + 2]
    path = paths.edge_attr_path(part, edge_type.name, name)
    return folder.open_attr(path, edge_type.attrs[name], end - first)
