"""Content of a partition folder's `meta.json`, checked when it is read.

Used by any process. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from khop._version import __version__
from khop.data import RowStore
from khop.data.arrays import MAX_COUNT, storage_dtype
from khop.log import shown
from khop.storage.book import RangeBook
from khop.storage.folder.paths import (
    RESERVED_NAMES,
    cache_attr_path,
    cache_path,
    edge_attr_path,
    edge_path,
    map_path,
    node_attr_path,
    node_path,
    split_path,
    time_path,
)
from khop.typing import EdgeDir, EdgeType, NodeType

FORMAT = "khop-partition"
VERSIONS = (1, 2)
"""Versions that are read; 2 is that of folders whose rows are not in the order of original ids."""
ORDERS = ("original", "hotness", "cluster", "degree")
"""Orders of rows within a part: original ids, or where rows lie that are read together."""
META_FILE = "meta.json"

# Paths made of what `safe_name` returns: no dots, so none leads out of the folder.
_PATH = re.compile(r"(?:[A-Za-z0-9_~%-]+/)*[A-Za-z0-9_~%-]+\.npy")
# Limit of counts and bytes, so that int64 also holds them multiplied by a row's size.
_MOST = MAX_COUNT + 1
_MAX_AXES = 15


@dataclass(frozen=True)
class AttrMeta:
    """Node or edge attribute: name of its dtype and shape of one row.

    Example:
        >>> PartitionFolder(folder).meta.node_type("node").attrs["x"]
        AttrMeta(dtype='float32', shape=(4,))
    """

    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return math.prod(self.shape) * storage_dtype(self.dtype).itemsize


def attr_metas(attrs: Mapping[str, RowStore]) -> dict[str, AttrMeta]:
    """Return the descriptions of attributes for meta.json."""
    return {name: AttrMeta(f.dtype, tuple(f.row_shape)) for name, f in attrs.items()}


@dataclass(frozen=True)
class TimeMeta:
    """Attribute that times come from.

    Attributes:
        name: name of the attribute.
        level: 'node' if nodes have times (the neighbour's time counts), 'edge' if edges have.
        floating: True if keys are those of floating-point times.

    Example:
        >>> TimeMeta("year", "node").level
        'node'
    """

    name: str
    level: Literal["node", "edge"]
    floating: bool = False


@dataclass(frozen=True)
class NodeTypeMeta:
    """Node type: bounds of the parts' ranges, attributes, splits, cached rows by part, if timed.

    Example:
        >>> PartitionFolder(folder).meta.node_type("node").bounds
        [0, 6]
    """

    name: NodeType
    bounds: list[int]
    attrs: dict[str, AttrMeta] = field(default_factory=dict)
    splits: list[str] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    timed: bool = False

    @property
    def count(self) -> int:
        """Number of nodes."""
        return self.bounds[-1]

    @property
    def book(self) -> RangeBook:
        """Map from ids to the parts that own them."""
        return RangeBook(self.bounds)


@dataclass(frozen=True)
class EdgeTypeMeta:
    """Edge type: bounds of the parts' edge ranges, order within a row, attributes, if weighted.

    Rows are sorted by 'edge_id', or by 'time': then each edge has a time. With `neighbor_ids` the
    neighbours' original ids are there, too.

    Example:
        >>> meta = PartitionFolder(folder).meta
        >>> meta.edge_types[0].count, meta.edge_types[0].weighted
        (12, False)
    """

    name: EdgeType
    bounds: list[int]
    sorted_by: str = "edge_id"
    attrs: dict[str, AttrMeta] = field(default_factory=dict)
    weighted: bool = False
    neighbor_ids: bool = False

    @property
    def count(self) -> int:
        """Number of edges."""
        return self.bounds[-1]

    @property
    def timed(self) -> bool:
        """True if each edge has a time."""
        return self.sorted_by == "time"


@dataclass(frozen=True)
class FolderMeta:
    """Content of `meta.json` without the list of files.

    Example:
        >>> meta = PartitionFolder(folder).meta
        >>> meta.num_parts, meta.edge_dir
        (1, 'in')
    """

    num_parts: int
    edge_dir: EdgeDir
    heterogeneous: bool
    node_types: list[NodeTypeMeta]
    edge_types: list[EdgeTypeMeta]
    method: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    khop_version: str = __version__
    time_attr: TimeMeta | None = None
    weight_attr: str | None = None
    order: str = "original"

    @property
    def renumbered(self) -> bool:
        """False if new ids are the original ones: a single part in their order."""
        return self.num_parts > 1 or self.order != "original"

    @property
    def knows_neighbors(self) -> bool:
        """True if original ids of neighbours are known."""
        return not self.renumbered or all(t.neighbor_ids for t in self.edge_types)

    @property
    def left_out(self) -> dict[str, str]:
        """Attributes that the graph had and the folder does not have -> why."""
        found = self.summary.get("left_out")
        known = found if isinstance(found, dict) else {}
        return {str(name): str(why) for name, why in known.items()}

    def types(self, kind: str) -> Sequence[NodeTypeMeta | EdgeTypeMeta]:
        """Return the node types (kind 'node') or the edge types ('edge')."""
        return self.node_types if kind == "node" else self.edge_types

    def node_type(self, name: NodeType) -> NodeTypeMeta:
        """Return a node type by name. Raise KeyError, with the known types, if there is none."""
        for node_type in self.node_types:
            if node_type.name == name:
                return node_type
        raise KeyError(f"no node type '{name}': there are {[t.name for t in self.node_types]}")

    def neighbor_type(self, edge_type: EdgeTypeMeta) -> NodeTypeMeta:
        """Return the node type of the neighbours of an edge type."""
        return self.node_type(edge_type.name[0 if self.edge_dir == "in" else 2])

    def row_type(self, edge_type: EdgeTypeMeta) -> NodeTypeMeta:
        """Return the node type of the rows of an edge type, whose neighbours are drawn."""
        return self.node_type(edge_type.name[2 if self.edge_dir == "in" else 0])

    def files(self) -> set[str]:
        """Return the paths of all files of the folder but meta.json."""
        paths: set[str] = set()
        for node_type in self.node_types:
            paths.update(_node_files(node_type, self.num_parts))
        for edge_type in self.edge_types:
            paths.update(_edge_files(edge_type, self.num_parts))
        return paths


def _node_files(node_type: NodeTypeMeta, num_parts: int) -> set[str]:
    name, attrs = node_type.name, node_type.attrs
    paths = {map_path(name), *(split_path(name, mask) for mask in node_type.splits)}
    if node_type.timed:
        paths.add(time_path(name))
    for part in range(num_parts):
        paths.add(node_path(part, name, "id"))
        paths.update(node_attr_path(part, name, attr) for attr in attrs)
        if node_type.cached and node_type.cached[part : part + 1] != [0]:
            paths.update(cache_path(part, name, array) for array in ("id", "new_id"))
            paths.update(cache_attr_path(part, name, attr) for attr in attrs)
    return paths


def _edge_files(edge_type: EdgeTypeMeta, num_parts: int) -> set[str]:
    arrays = ["indptr", "indices", "edge_id"]
    arrays += ["time"] if edge_type.timed else []
    arrays += ["weight_sum", "weight_guide"] if edge_type.weighted else []
    arrays += ["neighbor_id"] if edge_type.neighbor_ids else []
    paths: set[str] = set()
    for part in range(num_parts):
        paths.update(edge_path(part, edge_type.name, array) for array in arrays)
        paths.update(edge_attr_path(part, edge_type.name, attr) for attr in edge_type.attrs)
    return paths


def content_of(meta: FolderMeta, files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of meta.json without its checksum."""
    version = VERSIONS[meta.order != ORDERS[0]]
    return {"format": FORMAT, "version": version, **asdict(meta), "files": files}


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of meta.json: the content, and a checksum of it."""
    seal = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    return json.dumps({**content, "seal": seal}, indent=1).encode()


def lists_files(files: object) -> bool:
    """Return True if `files` is a well-formed list of files, all of them in the folder."""
    return isinstance(files, dict) and all(
        isinstance(known, dict)
        and type(known.get("bytes")) is int
        and 0 <= known["bytes"] < _MOST
        and isinstance(known.get("sha256"), str)
        and _PATH.fullmatch(path) is not None
        for path, known in files.items()
    )


def meta_of(content: Mapping[str, Any]) -> FolderMeta:
    """Parse the content of meta.json, the inverse of `content_of`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the content is malformed.
    """
    meta = FolderMeta(
        num_parts=int(content["num_parts"]),
        edge_dir=content["edge_dir"],
        heterogeneous=bool(content["heterogeneous"]),
        node_types=[_node_type_from_json(t) for t in content["node_types"]],
        edge_types=[_edge_type_from_json(t) for t in content["edge_types"]],
        method=dict(content["method"]),
        summary=dict(content["summary"]),
        khop_version=str(content["khop_version"]),
        # Missing in folders written by versions without times and weights.
        time_attr=_time_from_json(content.get("time_attr")),
        weight_attr=content.get("weight_attr"),
        order=content.get("order", ORDERS[0]),
    )
    _check_meta(meta)
    return meta


def _time_from_json(content: Mapping[str, Any] | None) -> TimeMeta | None:
    if content is None:
        return None
    return TimeMeta(str(content["name"]), content["level"], bool(content["floating"]))


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
        timed=bool(content.get("timed", False)),
    )


def _edge_type_from_json(content: Mapping[str, Any]) -> EdgeTypeMeta:
    source, relation, destination = content["name"]
    return EdgeTypeMeta(
        name=(source, relation, destination),
        bounds=[int(b) for b in content["bounds"]],
        sorted_by=content["sorted_by"],
        attrs=_attrs_from_json(content["attrs"]),
        weighted=bool(content.get("weighted", False)),
        neighbor_ids=bool(content.get("neighbor_ids", False)),
    )


def _check_meta(meta: FolderMeta) -> None:
    if meta.num_parts < 1 or meta.edge_dir not in ("in", "out"):
        raise ValueError("num_parts or edge_dir is out of range")
    if meta.order not in ORDERS:
        raise ValueError(f"rows are in an unknown order, {shown(meta.order)}")
    names = {t.name for t in meta.node_types}
    edge_names = {t.name for t in meta.edge_types}
    if len(names) < len(meta.node_types) or len(edge_names) < len(meta.edge_types):
        raise ValueError("a type is described twice")
    if not meta.heterogeneous and (len(names), len(edge_names)) != (1, 1):
        raise ValueError("a homogeneous graph has one node type and one edge type")
    for node_type in meta.node_types:
        _check_name(node_type.name)
        _check_kind(meta, node_type)
        _check_node_type(meta, node_type)
    for edge_type in meta.edge_types:
        for name in edge_type.name:
            _check_name(name)
        _check_kind(meta, edge_type)
        if edge_type.name[0] not in names or edge_type.name[2] not in names:
            raise ValueError(f"edge type {edge_type.name} joins node types that do not exist")
        _check_draws(meta, edge_type)


def _check_kind(meta: FolderMeta, kind: NodeTypeMeta | EdgeTypeMeta) -> None:
    if len(RangeBook(kind.bounds).bounds) != meta.num_parts + 1 or kind.count >= _MOST:
        raise ValueError(f"the bounds of {kind.name} do not match {meta.num_parts} parts")
    for name, attr in kind.attrs.items():
        _check_name(name)
        if name in RESERVED_NAMES:
            raise ValueError(f"an attribute of {kind.name} has the reserved name '{name}'")
        itemsize = storage_dtype(attr.dtype).itemsize
        width = itemsize * math.prod(max(n, 1) for n in attr.shape)
        if any(n < 0 for n in attr.shape) or len(attr.shape) > _MAX_AXES or width >= _MOST:
            raise ValueError(f"an attribute of {kind.name} is malformed")


def _check_node_type(meta: FolderMeta, node_type: NodeTypeMeta) -> None:
    for split in node_type.splits:
        _check_name(split)
    if len(set(node_type.splits)) < len(node_type.splits):
        raise ValueError(f"a split of {node_type.name} is listed twice")
    if len(node_type.cached) not in (0, meta.num_parts) or any(n < 0 for n in node_type.cached):
        raise ValueError(f"the copies of {node_type.name} are not those of each part")
    if node_type.timed != _has_times(meta.time_attr, "node", node_type.attrs):
        raise ValueError(f"the times of node type {node_type.name} are not those of time_attr")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a name is no text but {type(name).__name__}")
    name.encode()  # ValueError if a path cannot hold it


def _check_draws(meta: FolderMeta, edge_type: EdgeTypeMeta) -> None:
    """Check that times and weights exist if and only if the attributes that they come from do."""
    timed = _has_times(meta.time_attr, "edge", edge_type.attrs) or _has_times(
        meta.time_attr, "node", meta.neighbor_type(edge_type).attrs
    )
    if edge_type.sorted_by != ("time" if timed else "edge_id"):
        raise ValueError(f"rows of edge type {edge_type.name} are sorted by {edge_type.sorted_by}")
    if edge_type.weighted != (meta.weight_attr in edge_type.attrs):
        raise ValueError(f"the weights of edge type {edge_type.name} are not those of weight_attr")


def _has_times(time: TimeMeta | None, level: str, attrs: Mapping[str, AttrMeta]) -> bool:
    if time is not None and time.level not in ("node", "edge"):
        raise ValueError(f"times are of level {time.level}")
    return time is not None and time.level == level and time.name in attrs
