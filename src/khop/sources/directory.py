"""Reader of graphs in folders of arrays, or in one .npz file: what khop's own layout is.

Edges are .npy, CSV or Parquet, in one file or in several; attributes .npy, or columns of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from khop.data import Feature
from khop.data.files import load_npy
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.sources.base import Source
from khop.sources.columns import (
    attribute,
    count_nodes,
    edges_of,
    ids_of,
    joined_attribute,
    joined_edges,
    shards,
)
from khop.sources.npz import Npz
from khop.sources.scratch import Scratch
from khop.sources.tables import TABLES, read_columns
from khop.typing import EDGE, NODE, Array

_EDGES, _NODES = "edges", "nodes"
_KINDS = (".npy", *TABLES)
# What writers of data sets leave beside the parts, such as _SUCCESS and .part-0.parquet.crc.
_NO_PARTS = ("_", ".")


class Directory(Source):
    """A folder of arrays and tables."""

    paths = "DIRECTORY"
    about = (
        "one of the above, or `edge_index.npy` ([2, E] or [E, 2]), `edges.csv`, `.csv.gz` or "
        "`.parquet` (columns `src` and `dst`, or the first two; further columns become edge "
        "attributes), or several such files in a folder `edges`; `nodes.csv` and so on hold node "
        "attributes. Of `.npy` files `edge_*.npy` are edge attributes, all others (`x.npy`, "
        "`y.npy`, `train_mask.npy`) node attributes, also in shards (`x-00000-of-00002.npy`). "
        "Mapped, not read, so that it may be larger than memory"
    )
    unpacked = "tables"

    def matches(self, spec: str) -> bool:
        """Return True for any folder, and for a file of one, which `read` refuses with advice."""
        path = Path(spec)
        return path.is_dir() or (path.is_file() and path.name.endswith(_KINDS))

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """See `read_directory`."""
        if not Path(spec).is_dir():
            raise ValueError(
                f"'{spec}' is a file of a graph, not the graph: name the folder that it is in, "
                "where edges are called edge_index.npy, edges.csv or edges.parquet"
            )
        return read_directory(Path(spec), scratch)


class NpzFile(Source):
    """Arrays in a file of `numpy.savez`."""

    paths = "FILE.npz"
    about = "arrays as in a DIRECTORY, and `num_nodes`"
    unpacked = "what is deflated; stored arrays are mapped within the file"

    def matches(self, spec: str) -> bool:
        """Return True for a file of this suffix."""
        return Path(spec).suffix == ".npz" and Path(spec).is_file()

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """See `read_npz`."""
        return read_npz(Path(spec), scratch)


def read_directory(folder: Path, scratch: Scratch) -> GraphSource:
    """Read a homogeneous graph; arrays are memory-mapped, tables unpacked.

    The number of nodes is that of the rows of the node attributes; without any, the largest id + 1.
    Nodes are homogeneous: tables of several types are read from Python, as a `GraphSource`.

    Args:
        folder: holds the edges in one of: edge_index.npy ([2, E] or [E, 2]); edges.csv,
            edges.csv.gz or edges.parquet (columns 'src' and 'dst', or the first two; further ones
            become edge attributes); several such files, in a folder edges (also named
            edges.parquet) or called edges-00000-of-00004.npy and so on. nodes.csv, nodes.parquet
            and so on are tables of node attributes. Of further .npy files (also shards, such as
            x-00000-of-00002.npy) edge_*.npy are edge attributes, all others node attributes.
            Symbolic links in it are followed.
        scratch: where tables are unpacked.

    Raises:
        FileNotFoundError: none of the edge files is there.
        ValueError, TypeError: a file has wrong content; the message names it.
        ModuleNotFoundError: CSV or Parquet without pandas or pyarrow.
    """
    edges = _read_edges(folder, scratch)
    node_attrs: dict[str, Feature] = {}
    nodes = _parts(folder, _NODES)
    if nodes:
        columns = read_columns(nodes, scratch, unnamed="node_attr_")
        node_attrs = {n: attribute(c, f"column '{n}' of '{nodes[0]}'") for n, c in columns.items()}
    for name, files in _arrays(folder).items():
        attrs = edges.attrs if name.startswith("edge_") else node_attrs
        if name in attrs:
            raise ValueError(f"'{files[0].name}' and a column of a table have the same name")
        attrs[name] = joined_attribute({f"'{file}'": load_npy(file, "r") for file in files})
    return _source(edges, node_attrs, None)


def read_npz(path: Path, scratch: Scratch) -> GraphSource:
    """Read a homogeneous graph of an .npz file: `edge_index`, and attributes as in a folder.

    Args:
        path: the file; 'edge_*' are edge attributes, 'num_nodes' is the number of nodes, all
            others are node attributes.
        scratch: where deflated arrays are unpacked.
    """
    arrays = Npz(path, scratch)
    if "edge_index" not in arrays:
        raise ValueError(f"'{path}' holds no array 'edge_index' (got {sorted(arrays)[:10]})")
    edges = edges_of(arrays["edge_index"], f"'edge_index' of '{path}'")
    count = int(ids_of(arrays["num_nodes"], "num_nodes").item()) if "num_nodes" in arrays else None
    node_attrs: dict[str, Feature] = {}
    for name in sorted(set(arrays) - {"edge_index", "num_nodes"}):
        attrs = edges.attrs if name.startswith("edge_") else node_attrs
        attrs[name] = attribute(arrays[name], f"'{name}' of '{path}'")
    return _source(edges, node_attrs, count)


def _source(edges: EdgeSource, attrs: dict[str, Feature], count: int | None) -> GraphSource:
    if count is None:
        count = _likely_count(edges, attrs)
    return GraphSource({NODE: NodeSource(count, attrs)}, {EDGE: edges})


def _likely_count(edges: EdgeSource, attrs: dict[str, Feature]) -> int:
    """Return the number of nodes: that of the rows of most attributes, and no fewer than edges say.

    If attributes differ in length, errors shall name those that are wrong.
    """
    rows = [attr.num_rows for attr in attrs.values()]
    if not rows:
        return count_nodes(edges)
    if len({*rows}) == 1:
        return rows[0]
    named = count_nodes(edges)
    return max({*rows}, key=lambda n: (n >= named, rows.count(n), -n))


def _read_edges(folder: Path, scratch: Scratch) -> EdgeSource:
    array = folder / "edge_index.npy"
    files = _parts(folder, _EDGES)
    if array.is_file() and files:
        raise ValueError(f"'{folder}' holds {array.name} and {files[0].name}: keep one of them")
    if not array.is_file() and not files:
        raise FileNotFoundError(
            f"'{folder}' holds none of edge_index.npy, edges{', edges'.join(_KINDS)}, a folder "
            "edges of such files, or edges-00000-of-... of them"
        )
    files = files or [array]
    if files[0].suffix == ".npy":
        return joined_edges({f"'{file}'": load_npy(file, "r") for file in files})
    return edges_of_table(read_columns(files, scratch), files[0])


def edges_of_table(columns: Mapping[str, Array], file: Path) -> EdgeSource:
    """Return the edges of a table: columns 'src' and 'dst', or the first two.

    Args:
        columns: name -> values, in their order.
        file: named in errors.
    """
    if len(columns) < 2:
        raise ValueError(f"'{file}' must have two columns or more (got {list(columns)})")
    left = dict(columns)
    ends = ("src", "dst") if {"src", "dst"} <= set(left) else tuple(left)[:2]
    src, dst = (ids_of(left.pop(end), f"'{file}'") for end in ends)
    attrs = {name: attribute(c, f"column '{name}' of '{file}'") for name, c in left.items()}
    return EdgeSource(src, dst, attrs)


def _parts(folder: Path, stem: str) -> list[Path]:
    """Return the files of a table or list of edges, in their order: one, several, or none.

    Raises:
        ValueError: there are files of several kinds, or a folder of parts has folders in it.
    """
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        kind = _kind(path)
        if path.is_dir() and path.name in (stem, f"{stem}.parquet"):
            inside = [p for p in sorted(path.iterdir()) if not p.name.startswith(_NO_PARTS)]
            for part in inside:
                if part.is_dir() or not _kind(part):
                    raise ValueError(f"'{part}' is not one of {', '.join(_KINDS)}")
                found.setdefault(f"{path.name}/*{_kind(part)}", []).append(part)
        elif kind and path.name == stem + kind and kind != ".npy":
            found[path.name] = [path]
        elif kind and _is_shard(path, stem):
            found.setdefault(f"{stem}-*{kind}", []).append(path)
    if len(found) > 1:
        raise ValueError(f"'{folder}' holds {' and '.join(found)}: keep one of them")
    return [file for files in found.values() for file in shards(files)]


def _arrays(folder: Path) -> dict[str, list[Path]]:
    """Return the .npy files of attributes by name, those of several shards in their order."""
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.npy")):
        name = file.stem.split("-")[0] if "-of-" in file.stem else file.stem
        if name not in ("edge_index", _EDGES, _NODES):
            found.setdefault(name, []).append(file)
    return {name: shards(files) for name, files in found.items()}


def _kind(path: Path) -> str:
    """Return how the name of a file ends that has edges or columns; '' of others."""
    return next((kind for kind in _KINDS if path.name.endswith(kind)), "")


def _is_shard(path: Path, stem: str) -> bool:
    return path.name.startswith(f"{stem}-") and "-of-" in path.name
