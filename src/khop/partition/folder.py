"""The partition folder, format version 1: the only module that knows what lies where on disk.

    root/meta.json                        what the folder holds; sizes and SHA-256 of every file
    root/map/<type>.npy                   original id -> new id
    root/split/<type>/<mask>.npy          new ids for which a boolean node attribute holds
    root/part-<p>/edge/<edge type>/       indptr.npy indices.npy edge_id.npy and edge attributes
    root/part-<p>/node/<type>/            id.npy (original ids) and node attributes
    root/part-<p>/cache/<type>/           new_id.npy id.npy and node attributes of hot remote nodes

Node ids are renumbered so that a part owns a contiguous range per node type; row i of a part's
files is the i-th node of its range. Edges belong to the owner of the node whose neighbours they
are, are numbered in the order of parts and rows, and keep the order of the edge list within a row.
Everything is a plain .npy file read by mmap, and nothing is ever unpickled.

A machine needs meta.json, map, split and the folders of the parts that it loads.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np

from khop._version import __version__
from khop.data import Feature
from khop.data.arrays import DTYPES, storage_dtype
from khop.errors import FolderError
from khop.partition.book import RangeBook
from khop.typing import Array, EdgeDir, EdgeType, IntArray, NodeType

FORMAT = "khop-partition"
VERSION = 1
_META = "meta.json"


@dataclass(frozen=True)
class AttrMeta:
    """A node or edge attribute: name of its dtype and shape of one row."""

    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeTypeMeta:
    """A node type: range bounds of the parts, attributes, cached rows of each part."""

    name: NodeType
    bounds: list[int]
    attrs: dict[str, AttrMeta] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.bounds[-1]

    @property
    def book(self) -> RangeBook:
        """Who owns which node."""
        return RangeBook(self.bounds)


@dataclass(frozen=True)
class EdgeTypeMeta:
    """An edge type: range bounds of the parts' edges, attributes, order within a row."""

    name: EdgeType
    bounds: list[int]
    sorted_by: str = "edge_id"
    attrs: dict[str, AttrMeta] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of edges."""
        return self.bounds[-1]


@dataclass(frozen=True)
class FolderMeta:
    """What `meta.json` says, beside the list of files."""

    num_parts: int
    edge_dir: EdgeDir
    heterogeneous: bool
    node_types: list[NodeTypeMeta]
    edge_types: list[EdgeTypeMeta]
    method: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    khop_version: str = __version__

    def node_type(self, name: NodeType) -> NodeTypeMeta:
        """Raises KeyError that lists the node types if there is no such one."""
        for node_type in self.node_types:
            if node_type.name == name:
                return node_type
        raise KeyError(f"no node type '{name}': there are {[t.name for t in self.node_types]}")


def safe_name(name: str) -> str:
    """A name as part of a path: whatever users call a type or attribute stays in its folder."""
    return quote(name, safe="").replace(".", "%2E") or "%"


def edge_folder(edge_type: EdgeType) -> str:
    """Folder name of an edge type; no two have the same."""
    # "__" separates: within a name, underscores at its ends and in a row are escaped.
    names = (safe_name(part) for part in edge_type)
    return "__".join(re.sub("^_|_$|_(?=_)|(?<=_)_", "%5F", name) for name in names)


def node_path(part: int, node_type: NodeType, name: str) -> str:
    """Path of a node array of a part."""
    return f"part-{part}/node/{safe_name(node_type)}/{safe_name(name)}.npy"


def cache_path(part: int, node_type: NodeType, name: str) -> str:
    """Path of an array of the nodes that a part caches."""
    return f"part-{part}/cache/{safe_name(node_type)}/{safe_name(name)}.npy"


def edge_path(part: int, edge_type: EdgeType, name: str) -> str:
    """Path of an edge array of a part."""
    return f"part-{part}/edge/{edge_folder(edge_type)}/{safe_name(name)}.npy"


def map_path(node_type: NodeType) -> str:
    """Path of the map from original to new ids."""
    return f"map/{safe_name(node_type)}.npy"


def split_path(node_type: NodeType, mask: str) -> str:
    """Path of the new ids for which a boolean attribute holds."""
    return f"split/{safe_name(node_type)}/{safe_name(mask)}.npy"


class FolderWriter:
    """Writes a folder into a temporary sibling and renames it: it is complete or absent.

    Use as a context manager; `finish` makes the folder appear. On an exception nothing is left.

    Args:
        root: where the folder shall be.
        overwrite: replace a folder that exists.

    Raises:
        FileExistsError: `root` exists and `overwrite` is False.
    """

    def __init__(self, root: str | os.PathLike[str], overwrite: bool = False) -> None:
        self.root = Path(root).absolute()
        self._overwrite = overwrite
        check_output(self.root, overwrite)
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = Path(
            tempfile.mkdtemp(prefix=f".{self.root.name}.", suffix=".tmp", dir=self.root.parent)
        )
        self._temporary.chmod(0o755)
        self._paths: list[str] = []

    def __enter__(self) -> FolderWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def create(self, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Creates an array to be filled piece by piece."""
        file = self._new_file(path)
        if 0 in shape:  # nothing to map
            np.save(file, np.empty(shape, dtype))
            return np.empty(shape, dtype)
        mapped: Array = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
        return mapped

    def save(self, path: str, array: Array) -> None:
        """Writes an array that is in memory."""
        np.save(self._new_file(path), np.ascontiguousarray(array), allow_pickle=False)

    def _new_file(self, path: str) -> Path:
        file = self._temporary / path
        file.parent.mkdir(parents=True, exist_ok=True)
        self._paths.append(path)
        return file

    def finish(self, meta: FolderMeta) -> None:
        """Writes meta.json, makes everything durable, and puts the folder in its place."""
        files = {}
        for path in self._paths:
            file = self._temporary / path
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
            files[path] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
        content = {"format": FORMAT, "version": VERSION, **asdict(meta), "files": files}
        with (self._temporary / _META).open("wb") as opened_meta:
            opened_meta.write(_sealed(content))
            opened_meta.flush()
            os.fsync(opened_meta.fileno())
        for folder, _, _ in os.walk(self._temporary):
            _sync_folder(Path(folder))
        self._replace()

    def _replace(self) -> None:
        if self._overwrite and self.root.exists():
            aside = Path(tempfile.mkdtemp(prefix=f".{self.root.name}.", dir=self.root.parent))
            self.root.rename(aside / "old")
            self._temporary.rename(self.root)
            shutil.rmtree(aside)
        else:
            self._temporary.rename(self.root)
        _sync_folder(self.root.parent)


def check_output(root: str | os.PathLike[str], overwrite: bool) -> None:
    """Raises FileExistsError if a folder must not be written there."""
    root = Path(root).absolute()
    if not os.path.lexists(root):
        return
    if not overwrite:
        raise FileExistsError(
            f"'{root}' exists: choose another output folder or pass overwrite=True "
            "(--overwrite on the command line)"
        )
    if not _may_be_replaced(root):
        raise FileExistsError(f"'{root}' is not a partition folder: it will not be overwritten")


def _may_be_replaced(root: Path) -> bool:
    """Whether it is an empty directory or a partition folder, of any version, whole or damaged."""
    if root.is_symlink() or not root.is_dir():
        return False
    meta = root / _META
    if not meta.is_file():
        return not any(root.iterdir())
    with meta.open("rb") as opened:
        return FORMAT.encode() in opened.read(256)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


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
        self.meta = _meta_from_json(content, self.root)

    def _read_meta(self) -> bytes:
        if not self.root.is_dir():
            raise FolderError(f"no partition folder at '{self.root}'")
        try:
            return (self.root / _META).read_bytes()
        except FileNotFoundError:
            raise FolderError(
                f"'{self.root}' is not a partition folder: it has no {_META}. Make one with "
                "`khop partition` or a khop.partition partitioner."
            ) from None

    def _parse(self, text: bytes) -> dict[str, Any]:
        try:
            content = json.loads(text)
        except ValueError as error:
            raise FolderError(f"'{self.root / _META}' is damaged: {error}") from None
        seal = content.pop("seal", None) if isinstance(content, dict) else None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise FolderError(f"'{self.root / _META}' does not describe a khop partition folder")
        if content.get("version") != VERSION:
            raise FolderError(
                f"'{self.root}' has format version {content.get('version')}, but this khop "
                f"({__version__}) reads version {VERSION}: partition the graph again, or install "
                "the khop that wrote it"
            )
        if seal is None or text != _sealed(content):
            raise FolderError(f"'{self.root / _META}' is damaged: its checksum differs")
        if not _lists_files(content.get("files")):
            raise FolderError(f"'{self.root / _META}' is damaged: its list of files is malformed")
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
        return Feature(self.open(node_path(part, node_type, name)), dtype)

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


def _sealed(content: Mapping[str, Any]) -> bytes:
    """meta.json's bytes, with a checksum of its own."""
    seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "seal": seal}, indent=1).encode()


def _lists_files(files: object) -> bool:
    return isinstance(files, dict) and all(
        isinstance(known, dict)
        and isinstance(known.get("bytes"), int)
        and isinstance(known.get("sha256"), str)
        for known in files.values()
    )


def _open_npy(file: Path) -> Array:
    array: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    # An ordinary view: np.memmap's own indexing costs microseconds a call.
    return array.view(np.ndarray)


def _meta_from_json(content: Mapping[str, Any], root: Path) -> FolderMeta:
    try:
        meta = FolderMeta(
            num_parts=int(content["num_parts"]),
            edge_dir=content["edge_dir"],
            heterogeneous=bool(content["heterogeneous"]),
            node_types=[_node_type_from_json(t) for t in content["node_types"]],
            edge_types=[_edge_type_from_json(t) for t in content["edge_types"]],
            method=dict(content["method"]),
            summary=dict(content["summary"]),
            khop_version=str(content["khop_version"]),
        )
        _check_meta(meta)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FolderError(f"'{root / _META}' is damaged: {error!r}") from None
    return meta


def _attrs_from_json(content: Mapping[str, Any]) -> dict[str, AttrMeta]:
    return {
        name: AttrMeta(a["dtype"], tuple(int(n) for n in a["shape"])) for name, a in content.items()
    }


def _node_type_from_json(content: Mapping[str, Any]) -> NodeTypeMeta:
    return NodeTypeMeta(
        name=content["name"],
        bounds=[int(b) for b in content["bounds"]],
        attrs=_attrs_from_json(content["attrs"]),
        splits=list(content["splits"]),
        cached=[int(n) for n in content["cached"]],
    )


def _edge_type_from_json(content: Mapping[str, Any]) -> EdgeTypeMeta:
    source, relation, destination = content["name"]
    return EdgeTypeMeta(
        name=(source, relation, destination),
        bounds=[int(b) for b in content["bounds"]],
        sorted_by=content["sorted_by"],
        attrs=_attrs_from_json(content["attrs"]),
    )


def _check_meta(meta: FolderMeta) -> None:
    if meta.num_parts < 1 or meta.edge_dir not in ("in", "out"):
        raise ValueError("num_parts or edge_dir is out of range")
    names = {t.name for t in meta.node_types}
    kinds: list[NodeTypeMeta | EdgeTypeMeta] = [*meta.node_types, *meta.edge_types]
    for kind in kinds:
        if len(RangeBook(kind.bounds).bounds) != meta.num_parts + 1:
            raise ValueError(f"the bounds of {kind.name} do not match {meta.num_parts} parts")
        for attr in kind.attrs.values():
            storage_dtype(attr.dtype)
            if attr.dtype not in DTYPES or any(n < 0 for n in attr.shape):
                raise ValueError(f"an attribute of {kind.name} is malformed")
    for edge_type in meta.edge_types:
        if edge_type.name[0] not in names or edge_type.name[2] not in names:
            raise ValueError(f"edge type {edge_type.name} joins node types that do not exist")
