"""Description of a partition folder: types, attributes, and which arrays there are.

The annotations of `FolderMeta`, and of the classes in it, are the schema (`khop.codec`) of
meta.json and of replies of graph servers. Used by any process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from khop import _native
from khop._version import __version__
from khop.codec import Between, Distinct, Id
from khop.data import Feature, RowFormat, RowStore
from khop.data.arrays import MAX_COUNT, storage_dtype
from khop.data.encoding import Encoding
from khop.data.feature import DecodedFeature, DecodedRows
from khop.log import shown
from khop.storage.book import RangeBook
from khop.storage.folder import paths
from khop.typing import Array, EdgeDir, EdgeType, Int64Array, NodeType

ORDERS = ("original", "hotness", "cluster", "degree")
"""Orders of a part's rows: by original id, or in groups of rows that are read together."""
_MAX_AXES = 15


@dataclass(frozen=True)
class AttrMeta:
    """Attribute of nodes or edges in meta.json: how its rows are stored, and how batches have them.

    Attributes:
        stored: dtype and shape of a row in files, and between partitions.
        delivered: dtype and shape of a row in batches: as `stored`, or float32 of encoded rows.
        encoding: name of the encoding of stored rows, see `khop.data.encoding`. If None, they are
            not encoded.
        parameters: parameters of the encoding.

    Example:
        >>> PartitionFolder(folder).meta.node_type("node").attrs["x"].stored
        RowFormat(dtype='float32', shape=(4,))
    """

    stored: RowFormat
    delivered: RowFormat
    encoding: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, dtype: str, shape: Sequence[int] = ()) -> AttrMeta:
        """Describe an attribute with rows of this dtype and shape, both in files and in batches."""
        row = RowFormat(dtype, tuple(shape))
        return cls(row, row)

    @classmethod
    def of_rows(cls, rows: RowStore) -> AttrMeta:
        """Return the description of an attribute whose files have the rows of a store.

        :meta private:
        """
        if rows.encoding is None:
            return cls.of(rows.dtype, rows.row_shape)
        delivered = RowFormat("float32", rows.row_shape)
        name, parameters = rows.encoding.name, rows.encoding.parameters
        return cls(RowFormat(rows.dtype, rows.row_shape), delivered, name, parameters)

    def __post_init__(self) -> None:
        dtype, shape = self.stored
        try:
            itemsize = storage_dtype(dtype).itemsize
        except TypeError as error:
            raise ValueError(str(error)) from None
        is_row = len(shape) <= _MAX_AXES and min(shape, default=0) >= 0
        # Below 2^56, so that int64 also holds bytes multiplied by counts that fit in a file.
        if not is_row or itemsize * math.prod(max(n, 1) for n in shape) > MAX_COUNT:
            raise ValueError(f"has rows of {dtype} of an impossible shape")
        if self.delivered != (RowFormat("float32", shape) if self.encoding else self.stored):
            raise ValueError(f"has rows of {dtype} that become {shown(self.delivered)}")
        if self.codec is None and self.parameters:
            raise ValueError("has parameters of no encoding")

    @cached_property
    def codec(self) -> Encoding | None:
        """Encoding of the stored rows, or None.

        :meta private:
        """
        if self.encoding is None:
            return None
        dtype, shape = self.stored
        return Encoding.read(self.encoding, dtype, self.parameters, math.prod(shape))

    def delivering(self, rows: RowStore) -> RowStore:
        """Return a store that delivers stored rows in the format of batches.

        :meta private:
        """
        if self.codec is None:
            return rows
        if isinstance(rows, Feature):
            return DecodedFeature(rows, self.codec)
        return DecodedRows(rows, self.codec)

    def scatter(self, rows: Array, out: Array, positions: Int64Array | None) -> None:
        """Copy stored rows to positions of an array of the delivered format.

        Args:
            rows: [n, *shape] stored rows.
            out: the array. Without positions it has n rows.
            positions: [n] int64. If None, rows are in order.

        :meta private:
        """
        if self.codec is None:
            _native.gather(rows, None, out, positions)
        else:
            self.codec.gather(rows, None, out, positions)

    def decode(self, rows: Array) -> Array:
        """Return stored rows in the delivered format, without a copy if they are not encoded.

        :meta private:
        """
        return rows if self.codec is None else self.codec.decode(rows)

    @property
    def as_stored(self) -> AttrMeta:
        """Description of an attribute whose rows in batches are as stored.

        :meta private:
        """
        return self if self.encoding is None else AttrMeta.of(*self.stored)

    @cached_property
    def dtype(self) -> str:
        """Name of the dtype that the attribute has in batches."""
        return self.delivered.dtype

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row of the attribute in batches."""
        return self.delivered.shape

    @property
    def row_bytes(self) -> int:
        """Size in bytes of a row of the attribute as it is stored."""
        return self.stored.nbytes


def attr_metas(attrs: Mapping[str, RowStore]) -> dict[str, AttrMeta]:
    """Return {name: description for meta.json} of attributes."""
    return {name: AttrMeta.of_rows(rows) for name, rows in attrs.items()}


@dataclass(frozen=True)
class TimeMeta:
    """Attribute that holds the times of nodes or edges, for temporal sampling. Part of meta.json.

    Attributes:
        name: name of the attribute.
        level: 'node' if nodes have times (the neighbour's time counts), 'edge' if edges have.
        floating: True if the times are floating-point numbers.

    Example:
        >>> TimeMeta("year", "node").level
        'node'
    """

    name: str
    level: Literal["node", "edge"]
    floating: bool = False


@dataclass(frozen=True)
class NodeTypeMeta:
    """Node type of a partition folder, as meta.json describes it.

    Attributes:
        name: name of the type.
        bounds: [num_parts + 1] part p has new ids bounds[p] .. bounds[p + 1] - 1.
        attrs: {name: description} of the attributes.
        splits: names of the boolean attributes.
        cached: for each part, the number of other parts' nodes that it has copies of. Empty if no
            part has copies.
        timed: True if the nodes have times.

    Example:
        >>> PartitionFolder(folder).meta.node_type("node").bounds
        [0, 6]
    """

    name: NodeType
    bounds: list[Id]
    attrs: dict[str, AttrMeta] = field(default_factory=dict)
    splits: Annotated[list[str], Distinct()] = field(default_factory=list)
    cached: list[Id] = field(default_factory=list)
    timed: bool = False

    def __post_init__(self) -> None:
        _check_type(self.bounds, self.attrs, [self.name, *self.splits])

    @property
    def count(self) -> int:
        """Number of nodes of this type in all parts."""
        return self.bounds[-1]

    @property
    def book(self) -> RangeBook:
        """Map from new ids to the parts that own them."""
        return RangeBook(self.bounds)


@dataclass(frozen=True)
class EdgeTypeMeta:
    """Edge type of a partition folder, as meta.json describes it.

    Attributes:
        name: (source node type, relation, destination node type).
        bounds: [num_parts + 1] part p has edges bounds[p] .. bounds[p + 1] - 1.
        sorted_by: order of a node's edges: 'edge_id' (of the edge list) or 'time', if edges have
            times.
        attrs: {name: description} of the attributes.
        weighted: True if the edges have weights.
        neighbor_ids: True if the folder has the neighbours' original ids.
        edge_ids: True if the folder has original ids of edges. If False, an edge's id is its
            position in the folder.

    Example:
        >>> meta = PartitionFolder(folder).meta
        >>> meta.edge_types[0].count, meta.edge_types[0].weighted
        (12, False)
    """

    name: EdgeType
    bounds: list[Id]
    sorted_by: Literal["edge_id", "time"] = "edge_id"
    attrs: dict[str, AttrMeta] = field(default_factory=dict)
    weighted: bool = False
    neighbor_ids: bool = False
    edge_ids: bool = True

    def __post_init__(self) -> None:
        _check_type(self.bounds, self.attrs, self.name)

    @property
    def count(self) -> int:
        """Number of edges of this type in all parts."""
        return self.bounds[-1]

    @property
    def timed(self) -> bool:
        """True if each edge has a time."""
        return self.sorted_by == "time"

    @property
    def columns(self) -> list[str]:
        """Names of the arrays with an entry per edge, beside its attributes."""
        names = {
            "indices": True,
            "edge_id": self.edge_ids,
            "time": self.timed,
            "weight_sum": self.weighted,
            "weight_guide": self.weighted,
            "neighbor_id": self.neighbor_ids,
        }
        return [name for name, exists in names.items() if exists]


@dataclass(frozen=True)
class FolderMeta:
    """Description of a partition folder: the content of `meta.json` without the list of files.

    Raises:
        ValueError: fields do not fit one another.

    Example:
        >>> meta = PartitionFolder(folder).meta
        >>> meta.num_parts, meta.edge_dir
        (1, 'in')
    """

    num_parts: Annotated[int, Between(1, MAX_COUNT)]
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

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"rows are in an unknown order, {shown(self.order)}")
        names = {t.name for t in self.node_types}
        edge_names = {t.name for t in self.edge_types}
        if len(names) < len(self.node_types) or len(edge_names) < len(self.edge_types):
            raise ValueError("a type is described twice")
        if not self.heterogeneous and (len(names), len(edge_names)) != (1, 1):
            raise ValueError("a homogeneous graph has one node type and one edge type")
        for described in (*self.types("node"), *self.types("edge")):
            if len(described.bounds) != self.num_parts + 1:
                raise ValueError(f"bounds of {described.name} do not match {self.num_parts} parts")
        for node_type in self.node_types:
            if len(node_type.cached) not in (0, self.num_parts):
                raise ValueError(f"the copies of {node_type.name} are not those of each part")
            if node_type.timed != _has_times(self.time_attr, "node", node_type.attrs):
                raise ValueError(f"times of node type {node_type.name} are not those of time_attr")
        for edge_type in self.edge_types:
            if edge_type.name[0] not in names or edge_type.name[2] not in names:
                raise ValueError(f"edge type {edge_type.name} joins node types that do not exist")
            _check_draws(self, edge_type)

    @property
    def renumbered(self) -> bool:
        """False if new ids equal the user's original ids: one part, in original order."""
        return self.num_parts > 1 or self.order != "original"

    @property
    def knows_neighbors(self) -> bool:
        """True if the original ids of neighbours are in the folder, or equal their new ids."""
        return not self.renumbered or all(t.neighbor_ids for t in self.edge_types)

    @property
    def encoded(self) -> dict[str, AttrMeta]:
        """{'NAME of TYPE': description} of the attributes that are encoded."""
        types = [
            *((t.name, t.attrs) for t in self.node_types),
            *((" ".join(t.name), t.attrs) for t in self.edge_types),
        ]
        return {
            f"{name} of {type_name}": attr
            for type_name, attrs in types
            for name, attr in attrs.items()
            if attr.encoding is not None
        }

    @property
    def left_out(self) -> dict[str, str]:
        """{attribute of the graph that the folder does not hold: reason}."""
        left_out = self.summary.get("left_out")
        known = left_out if isinstance(left_out, dict) else {}
        return {str(name): str(reason) for name, reason in known.items()}

    def types(self, level: str) -> Sequence[NodeTypeMeta | EdgeTypeMeta]:
        """Return the node types (`level` 'node') or the edge types ('edge')."""
        return self.node_types if level == "node" else self.edge_types

    def node_type(self, name: NodeType) -> NodeTypeMeta:
        """Return the description of the node type `name`.

        Raises:
            KeyError: there is none. The message names all types.
        """
        for node_type in self.node_types:
            if node_type.name == name:
                return node_type
        raise KeyError(f"no node type '{name}': there are {[t.name for t in self.node_types]}")

    def neighbor_type(self, edge_type: EdgeTypeMeta) -> NodeTypeMeta:
        """Return the node type of the neighbours that are drawn along an edge type."""
        return self.node_type(edge_type.name[0 if self.edge_dir == "in" else 2])

    def row_type(self, edge_type: EdgeTypeMeta) -> NodeTypeMeta:
        """Return the node type whose neighbours are drawn along an edge type."""
        return self.node_type(edge_type.name[2 if self.edge_dir == "in" else 0])

    def files(self) -> set[str]:
        """Return the paths of all files of the folder, except meta.json."""
        nodes = (_node_files(node_type, self.num_parts) for node_type in self.node_types)
        edges = (_edge_files(edge_type, self.num_parts) for edge_type in self.edge_types)
        return set().union(*nodes, *edges)


def _node_files(node_type: NodeTypeMeta, num_parts: int) -> set[str]:
    name, attrs = node_type.name, node_type.attrs
    files = {paths.map_path(name), *(paths.split_path(name, mask) for mask in node_type.splits)}
    if node_type.timed:
        files.add(paths.time_path(name))
    for part in range(num_parts):
        files.add(paths.node_path(part, name, "id"))
        files.update(paths.node_attr_path(part, name, attr) for attr in attrs)
        if node_type.cached and node_type.cached[part : part + 1] != [0]:
            files.update(paths.cache_path(part, name, array) for array in ("id", "new_id"))
            files.update(paths.cache_attr_path(part, name, attr) for attr in attrs)
    return files


def _edge_files(edge_type: EdgeTypeMeta, num_parts: int) -> set[str]:
    arrays = ["indptr", *edge_type.columns]
    files: set[str] = set()
    for part in range(num_parts):
        files.update(paths.edge_path(part, edge_type.name, array) for array in arrays)
        files.update(paths.edge_attr_path(part, edge_type.name, attr) for attr in edge_type.attrs)
    return files


def _check_type(bounds: list[int], attrs: Mapping[str, AttrMeta], names: Sequence[str]) -> None:
    if len(RangeBook(bounds).bounds) > 1 and bounds[-1] > MAX_COUNT:
        raise ValueError(f"has {bounds[-1]} rows, more than {MAX_COUNT}")
    for name in (*names, *attrs):
        name.encode()  # ValueError if a path cannot hold it
    for name in paths.RESERVED_NAMES:
        if name in attrs:
            raise ValueError(f"has an attribute with the reserved name '{name}'")


def _check_draws(meta: FolderMeta, edge_type: EdgeTypeMeta) -> None:
    """Raise ValueError if an edge type's times and weights do not fit the folder's attributes."""
    timed = _has_times(meta.time_attr, "edge", edge_type.attrs) or _has_times(
        meta.time_attr, "node", meta.neighbor_type(edge_type).attrs
    )
    if edge_type.sorted_by != ("time" if timed else "edge_id"):
        raise ValueError(f"rows of edge type {edge_type.name} are sorted by {edge_type.sorted_by}")
    if edge_type.weighted != (meta.weight_attr in edge_type.attrs):
        raise ValueError(f"the weights of edge type {edge_type.name} are not those of weight_attr")


def _has_times(time: TimeMeta | None, level: str, attrs: Mapping[str, AttrMeta]) -> bool:
    return time is not None and time.level == level and time.name in attrs
