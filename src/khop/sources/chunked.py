"""Reader of DGL's chunked format: a metadata.json that names files of edges and of attributes.

    {"graph_name": "g", "node_type": ["paper", "author"], "edge_type": ["author:writes:paper"],
     "num_nodes_per_chunk": [[50, 50], [30, 31]], "num_edges_per_chunk": [[200, 100]],
     "edges": {"author:writes:paper": {"format": {"name": "csv", "delimiter": " "},
                                       "data": ["edges/0.csv", "edges/1.csv"]}},
     "node_data": {"paper": {"feat": {"format": {"name": "numpy"}, "data": ["feat.npy"]}}},
     "edge_data": {}}

Newer writers give `num_nodes_per_type` and `num_edges_per_type`, one number each. How many files
there are of anything does not matter. Paths are relative to the folder of metadata.json. Formats
are csv, parquet and numpy. Any process; imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from khop.data import Feature
from khop.data.arrays import check_count
from khop.data.files import check_regular, load_npy
from khop.log import shown
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import attribute, edge_type_of, edges_of, joined_attribute, joined_edges
from khop.sources.scratch import Scratch
from khop.sources.tables import read_rows
from khop.typing import EDGE, NODE

METADATA = "metadata.json"

# No description of a graph is longer; JSON takes several times as much memory.
_MOST_BYTES = 64 << 20
_FORMATS = ("csv", "parquet", "numpy")


class Chunked(Source):
    """DGL's chunked format: a metadata.json, or its folder."""

    paths = METADATA
    about = "a graph in DGL's chunked format (CSV, Parquet or NumPy, any number of files)"
    unpacked = "CSV, Parquet"

    def matches(self, spec: str) -> bool:
        """Return True for a file of this name, and for a folder that has one."""
        path = Path(spec)
        return (path.name == METADATA and path.is_file()) or (path / METADATA).exists()

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """See `read_chunked`."""
        path = Path(spec)
        return read_chunked(path / METADATA if path.is_dir() else path, scratch)


def read_chunked(path: Path, scratch: Scratch) -> GraphSource:
    """Read a graph in DGL's chunked format.

    A graph with one node type and one edge type is homogeneous.

    Args:
        path: the metadata.json.
        scratch: where text and Parquet are unpacked.

    Raises:
        ValueError, TypeError: the description or a file has wrong content; the message names it.
    """
    description = _Description(path)
    nodes: dict[str, NodeSource] = {
        name: NodeSource(count, _attrs(description, "node_data", name, scratch))
        for name, count in description.counts("node").items()
    }
    edges = {}
    for name, count in description.counts("edge").items():
        edge_type = edge_type_of(name, ":", f"'{path}'")
        edge = _edges(description, name, scratch)
        if edge.num_edges != count:
            raise ValueError(
                f"'{path}': files of '{name}' hold {edge.num_edges} edges, not {count}"
            )
        edge.attrs = _attrs(description, "edge_data", name, scratch)
        edges[edge_type] = edge
    if len(nodes) == len(edges) == 1:
        nodes, edges = {NODE: next(iter(nodes.values()))}, {EDGE: next(iter(edges.values()))}
        return GraphSource(nodes, edges)
    return GraphSource(nodes, edges, heterogeneous=True)


class _Description:
    """Content of a metadata.json, each entry checked when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = check_regular(path)
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ValueError(f"'{path}' has {size:,} bytes: no metadata.json has so many")
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"'{path}' is no JSON: {error}") from None
        self._content: Mapping[str, Any] = _mapping(content, f"'{path}'")

    def counts(self, of: str) -> dict[str, int]:
        """Return the number of nodes or edges of each type, in the order of the types."""
        names = self._content.get(f"{of}_type")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"'{self.path}' has no list of names '{of}_type' (got {shown(names)})")
        per_type = self._content.get(f"num_{of}s_per_type")
        chunks = self._content.get(f"num_{of}s_per_chunk", per_type)
        if not isinstance(chunks, list) or len(chunks) != len(names) or len({*names}) < len(names):
            raise ValueError(
                f"'{self.path}' must have 'num_{of}s_per_chunk' or 'num_{of}s_per_type' for each "
                f"of {len(names)} types"
            )
        found = {}
        for name, numbers in zip(names, chunks, strict=True):
            listed = numbers if isinstance(numbers, list) else [numbers]
            what = f"number of {of}s of '{name}' in '{self.path}'"
            found[name] = check_count(sum(check_count(number, what) for number in listed), what)
        return found

    def tables(self, kind: str, name: str) -> dict[str, Any]:
        """Return what `kind` says of a type."""
        tables = _mapping(self._content.get(kind) or {}, f"'{kind}' of '{self.path}'")
        return _mapping(tables.get(name) or {}, f"'{kind}' of '{name}' in '{self.path}'")

    def files(self, table: Any, what: str) -> tuple[str, str, list[Path]]:
        """Return format, delimiter and files of an entry with 'format' and 'data'."""
        what = f"{what} in '{self.path}'"
        entry = _mapping(table, what)
        form = _mapping(entry.get("format"), f"'format' of {what}")
        names, name, delimiter = entry.get("data"), form.get("name"), form.get("delimiter", ",")
        if name not in _FORMATS:
            raise ValueError(f"{what} has format '{name}': khop reads {', '.join(_FORMATS)}")
        if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
            raise ValueError(f"'data' of {what} must name files (got {shown(names)})")
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise ValueError(
                f"'delimiter' of {what} must be one character (got {shown(delimiter)})"
            )
        files = [check_regular(self.path.parent / file) for file in names]
        if len({file.resolve() for file in files}) < len(files):
            raise ValueError(f"'data' of {what} names a file twice")
        return name, delimiter, files


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object of JSON (got '{type(value).__name__}')")
    return value


def _edges(description: _Description, name: str, scratch: Scratch) -> EdgeSource:
    entry = description.tables("edges", name)
    form, delimiter, files = description.files(entry, f"'edges' of '{name}'")
    if form == "numpy":
        return joined_edges({f"'{file}'": load_npy(file, "r") for file in files})
    rows = _rows(form, files, delimiter, scratch)
    return edges_of(rows, f"'{files[0]}'", by_rows=True)


def _attrs(description: _Description, kind: str, name: str, scratch: Scratch) -> dict[str, Feature]:
    found = {}
    for attr, table in description.tables(kind, name).items():
        form, delimiter, files = description.files(table, f"'{attr}' of '{name}'")
        if form == "numpy":
            found[attr] = joined_attribute({f"'{file}'": load_npy(file, "r") for file in files})
            continue
        rows = _rows(form, files, delimiter, scratch)
        found[attr] = attribute(rows[:, 0] if rows.shape[1:] == (1,) else rows, f"'{files[0]}'")
    return found


def _rows(form: str, files: Sequence[Path], delimiter: str, scratch: Scratch) -> Any:
    """Read the rows of files whose names need not say what they are."""
    return read_rows(files, scratch, delimiter, parquet=form == "parquet")
