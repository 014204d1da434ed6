"""Reader of DGL's chunked format: a metadata.json that names files of edges and of attributes.

    {"graph_name": "g", "node_type": ["paper", "author"], "edge_type": ["author:writes:paper"],
     "num_nodes_per_chunk": [[50, 50], [30, 31]], "num_edges_per_chunk": [[200, 100]],
     "edges": {"author:writes:paper": {"format": {"name": "csv", "delimiter": " "},
                                       "data": ["edges/0.csv", "edges/1.csv"]}},
     "node_data": {"paper": {"feat": {"format": {"name": "numpy"}, "data": ["feat.npy"]}}},
     "edge_data": {}}

Newer writers give `num_nodes_per_type` and `num_edges_per_type`, with one number per type. Edges of
a type, or an attribute, can be in any number of files. Paths are relative to the folder of
metadata.json. Formats are csv, parquet and numpy. Imports no torch.
"""

from __future__ import annotations

import json
from pathlib import Path

from khop.data import RowStore
from khop.data.arrays import check_count
from khop.data.files import check_regular, load_npy
from khop.log import shown
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import (
    attribute,
    edge_type_of,
    edges_of,
    graph_of,
    joined_attribute,
    joined_edges,
)
from khop.sources.entries import Entry
from khop.sources.scratch import Scratch
from khop.sources.tables import read_rows
from khop.typing import Array

METADATA = "metadata.json"

_MOST_BYTES = 64 << 20  # JSON takes several times as much memory
_FORMATS = ("csv", "parquet", "numpy")


class Chunked(Source):
    """Reader of DGL's chunked format: a metadata.json, or its folder."""

    paths = METADATA
    about = "a graph in DGL's chunked format (CSV, Parquet or NumPy, any number of files)"
    unpacked = "CSV, Parquet"

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is a metadata.json, or a folder that has one."""
        path = Path(spec)
        return (path.name == METADATA and path.is_file()) or (path / METADATA).exists()

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph that metadata.json describes.

        It is homogeneous if it has one node type and one edge type. Arguments are as for
        `Source.read`.
        """
        path = Path(spec)
        path = path / METADATA if path.is_dir() else path
        description = Entry.read(path, _MOST_BYTES, json.loads, ValueError)
        nodes = {
            name: NodeSource(count, _attrs(description, path, "node_data", name, scratch))
            for name, count in _counts(description, "node").items()
        }
        edges = {}
        for name, count in _counts(description, "edge").items():
            edge_type = edge_type_of(name, ":", f"'{path}'")
            edge = _edges(description, path, name, scratch)
            if edge.num_edges != count:
                raise ValueError(
                    f"'{path}': files of '{name}' hold {edge.num_edges} edges, not {count}"
                )
            edge.attrs = _attrs(description, path, "edge_data", name, scratch)
            edges[edge_type] = edge
        return graph_of(nodes, edges)


def _counts(description: Entry, of: str) -> dict[str, int]:
    """Return {type: number of nodes or edges}, in the order of metadata.json.

    `of` is 'node' or 'edge'.
    """
    content, source = description.content, description.name
    names = content.get(f"{of}_type")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{source} has no list of names '{of}_type' (got {shown(names)})")
    chunks = content.get(f"num_{of}s_per_chunk", content.get(f"num_{of}s_per_type"))
    if not isinstance(chunks, list) or len(chunks) != len(names) or len({*names}) < len(names):
        raise ValueError(
            f"{source} must have 'num_{of}s_per_chunk' or 'num_{of}s_per_type' for each of "
            f"{len(names)} types"
        )
    counts = {}
    for name, chunk in zip(names, chunks, strict=True):
        title = f"number of {of}s of '{name}' in {source}"
        listed = chunk if isinstance(chunk, list) else [chunk]
        counts[name] = check_count(sum(check_count(count, title) for count in listed), title)
    return counts


def _edges(description: Entry, path: Path, name: str, scratch: Scratch) -> EdgeSource:
    table = description.entry("edges", optional=True).entry(name)
    arrays = _arrays(table, path, scratch)
    if table.entry("format").content["name"] == "numpy":
        return joined_edges(arrays)
    ((title, rows),) = arrays.items()
    return edges_of(rows, title, by_rows=True)


def _attrs(
    description: Entry, path: Path, key: str, name: str, scratch: Scratch
) -> dict[str, RowStore]:
    tables = description.entry(key, optional=True).entry(name, optional=True)
    attrs = {}
    for attr in tables.content:
        table = tables.entry(attr)
        arrays = _arrays(table, path, scratch)
        if table.entry("format").content["name"] == "numpy":
            attrs[attr] = joined_attribute(arrays)
        else:
            ((title, rows),) = arrays.items()
            attrs[attr] = attribute(rows[:, 0] if rows.shape[1:] == (1,) else rows, title)
    return attrs


def _arrays(table: Entry, path: Path, scratch: Scratch) -> dict[str, Array]:
    """Return the arrays of an entry of metadata.json that has 'format' and 'data'.

    They are named for error messages. Each NumPy file is an array. CSV or Parquet files together
    are one array of rows. Paths are relative to the folder of `path`.
    """
    names, form = table.content.get("data"), table.entry("format").content
    name, delimiter = form.get("name"), form.get("delimiter", ",")
    if name not in _FORMATS:
        raise ValueError(f"{table.name} has format '{name}': khop reads {', '.join(_FORMATS)}")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{table.of('data')} must name files (got {shown(names)})")
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise ValueError(
            f"'delimiter' of {table.name} must be one character (got {shown(delimiter)})"
        )
    files = [check_regular(path.parent / file) for file in names]
    if len({file.resolve() for file in files}) < len(files):
        raise ValueError(f"{table.of('data')} names a file twice")
    if name == "numpy":
        return {f"'{file}'": load_npy(file, "r") for file in files}
    return {f"'{files[0]}'": read_rows(files, scratch, delimiter, parquet=name == "parquet")}
