"""Reader of the JSON file of a DistDGL folder: types, ranges of ids, paths. No torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from khop.data.arrays import MAX_COUNT
from khop.errors import FolderError
from khop.log import shown
from khop.storage.folder import open_inside
from khop.typing import EDGE, NODE, EdgeType, Int64Array, IntArray, NodeType

DGL_NODE, DGL_EDGE = "_N", "_N:_E:_N"
"""DGL's names of the types of a homogeneous graph."""

_MAX_JSON = 64 << 20


class TypedIds:
    """DistDGL's numbering of the nodes (or edges) of all types: part after part, then by type.

    Args:
        sizes: [num_parts, num_types] int64, the number of ids of each type in each part.
    """

    def __init__(self, sizes: Int64Array) -> None:
        self.sizes = sizes
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        """[num_parts * num_types + 1] first id of each type in each part, and the total of ids."""
        self._first = np.cumsum(sizes, axis=0) - sizes

    def of_part(self, part: int) -> tuple[int, int]:
        """Return the first id of a part, and the id after its last one."""
        types = self.sizes.shape[1]
        return int(self.starts[part * types]), int(self.starts[(part + 1) * types])

    def split(self, ids: IntArray) -> tuple[Int64Array, Int64Array]:
        """Split DistDGL ids into the index of the type and the index within the type.

        See `join`.
        """
        box = np.searchsorted(self.starts, ids, side="right") - 1
        within = ids - self.starts[box] + self._first.ravel()[box]
        return box % self.sizes.shape[1], within

    def join(self, type_index: int, within: IntArray) -> Int64Array:
        """Return the DistDGL ids of nodes (or edges) of a type by their index in the type."""
        part = np.searchsorted(self._first[:, type_index], within, side="right") - 1
        box = part * self.sizes.shape[1] + type_index
        joined: Int64Array = self.starts[box] + within - self._first[part, type_index]
        return joined


@dataclass(frozen=True)
class DistDGLConfig:
    """Content of the JSON file that describes a DistDGL folder.

    Attributes:
        root: the folder, as a path without symbolic links.
        node_types, edge_types: names of the types in khop, in DGL's order.
        nodes, edges: numbering of node ids and edge ids.
        files: for each part, {key of the JSON file, such as 'node_feats': path relative to `root`}.
    """

    root: Path
    node_types: list[NodeType]
    edge_types: list[EdgeType]
    nodes: TypedIds
    edges: TypedIds
    files: list[dict[str, str]]

    @property
    def num_parts(self) -> int:
        return len(self.files)

    @property
    def heterogeneous(self) -> bool:
        """True if types have names. False if they are DGL's types of a homogeneous graph."""
        return self.node_types != [NODE] or self.edge_types != [EDGE]

    def beside(self, part: int, name: str) -> str:
        """Return the path, relative to the root, of file `name` in the folder of a part."""
        return str(Path(self.files[part]["node_feats"]).parent / name)


def read_config(path: str | os.PathLike[str]) -> DistDGLConfig:
    """Read and check the JSON file of DistDGL. `path` is the file, or the folder that has it.

    Raises:
        FileNotFoundError: `path` does not exist.
        FolderError: the JSON file is malformed, of DGL before 1.0, or not the only one.
    """
    folder = file = Path(path).absolute()
    if not file.is_file():
        if not folder.is_dir():
            raise FileNotFoundError(f"no folder or file '{folder}'")
        files = sorted(folder.glob("*.json"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            raise FolderError(
                f"'{folder}' must have one .json file, that of DistDGL's partitions (found: "
                f"{names}); name the file, if there are several"
            )
        file = files[0]
    root = file.parent.resolve()
    with os.fdopen(open_inside(root, file.name), "rb") as opened:
        text = opened.read(_MAX_JSON + 1)
    try:
        if len(text) > _MAX_JSON:
            raise ValueError(f"more than {_MAX_JSON} bytes")
        return _parsed(root, json.loads(text))
    except KeyError as error:
        raise FolderError(f"'{file}' is no configuration of DistDGL: no {error}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FolderError(f"'{file}' is no configuration of DistDGL: {error}") from None


def _parsed(root: Path, content: Any) -> DistDGLConfig:
    if not isinstance(content, dict):
        raise ValueError("it holds no object")
    num_parts = content["num_parts"]
    if type(num_parts) is not int or not 1 <= num_parts <= len(content):
        raise ValueError(f"num_parts is {shown(num_parts)}")
    nodes, edges = _by_id(content["ntypes"], "ntypes"), _by_id(content["etypes"], "etypes")
    ids = {}
    for level, names in (("node", nodes), ("edge", edges)):
        total, key = content[f"num_{level}s"], f"{level}_map"
        ids[level] = TypedIds(_sizes(content[key], names, num_parts, key))
        if type(total) is not int or ids[level].starts[-1] != total:
            raise ValueError(f"{key} has {ids[level].starts[-1]} {level}s, num_{level}s {total}")
    single = (nodes, edges) == ([DGL_NODE], [DGL_EDGE])
    node_types = [NODE] if single else nodes
    edge_types = [EDGE] if single else [_edge_type(name, nodes) for name in edges]
    files = [_files(content[f"part-{part}"], part) for part in range(num_parts)]
    return DistDGLConfig(root, node_types, edge_types, ids["node"], ids["edge"], files)


def _by_id(types: object, key: str) -> list[str]:
    """Return the names of {name: id}, sorted by id. Raise ValueError unless ids count from 0."""
    if not isinstance(types, Mapping) or not types or not all(isinstance(t, str) for t in types):
        raise ValueError(f"{key} is no object of names")
    names = sorted(types, key=lambda name: int(types[name]))
    if [types[name] for name in names] != list(range(len(names))):
        raise ValueError(f"{key} does not number the types from 0 on")
    return names


def _edge_type(name: str, node_types: list[str]) -> EdgeType:
    ends = name.split(":")
    if len(ends) != 3 or ends[0] not in node_types or ends[2] not in node_types:
        raise ValueError(
            f"edge type '{name}' is not SOURCE:RELATION:DESTINATION of known node types; folders "
            "of DGL before 1.0 are brought up to date by its "
            "tools/change_etype_to_canonical_etype.py"
        )
    return ends[0], ends[1], ends[2]


def _sizes(ranges: object, names: list[str], num_parts: int, key: str) -> Int64Array:
    """Check {type: [first, end] id pair per part} from JSON. Return the number of ids.

    Returns:
        [num_parts, num_types] int64.

    Raises:
        ValueError, TypeError: ranges are malformed, overlap, or leave gaps.
    """
    if not isinstance(ranges, Mapping) or set(ranges) != set(names):
        raise ValueError(f"{key} does not have the ranges of each type")
    sizes = np.zeros((num_parts, len(names)), np.int64)
    end = 0
    for name in names:
        if not isinstance(ranges[name], list) or len(ranges[name]) != num_parts:
            raise ValueError(f"{key} of '{name}' has not one range for each part")
    for part in range(num_parts):
        for column, name in enumerate(names):
            pair = ranges[name][part]
            if not (isinstance(pair, list) and [type(value) for value in pair] == [int, int]):
                raise ValueError(f"{key} of '{name}' holds {shown(pair)}, not [first, end]")
            if pair[0] == pair[1]:
                continue  # earlier versions write [-1, -1]
            if not end == pair[0] < pair[1] <= MAX_COUNT:
                raise ValueError(f"{key} of '{name}' has {pair} in part {part}, after {end}")
            sizes[part, column], end = pair[1] - pair[0], pair[1]
    return sizes


def _files(files: object, part: int) -> dict[str, str]:
    if not isinstance(files, Mapping):
        raise ValueError(f"part-{part} is no object")
    keys = ("node_feats", "edge_feats", "part_graph", "part_graph_graphbolt")
    known = {key: files[key] for key in keys if key in files}
    for key, path in known.items():
        if not isinstance(path, str) or "\0" in path:
            raise ValueError(f"'{key}' of part-{part} is {shown(path)}, no path")
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ValueError(f"'{key}' of part-{part} leads out of the folder: {shown(path)}")
    known["node_feats"], known["edge_feats"] = files["node_feats"], files["edge_feats"]
    return known
