"""Reader of graphs in folders of arrays and tables, or in one .npz file.

Edges are in one or several files: .npy, CSV or Parquet. Attributes are .npy files, or columns of
tables.
"""

from __future__ import annotations

from pathlib import Path

from khop.data import RowStore
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
from khop.typing import EDGE, NODE

_EDGES, _NODES = "edges", "nodes"
_ENDINGS = (".npy", *TABLES)
# Files that writers of data sets leave beside the parts: _SUCCESS, .part-0.parquet.crc.
_NO_PARTS = ("_", ".")


class Directory(Source):
    """Reader of a folder of arrays and tables: edges, and attributes of nodes and edges."""

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
        """Return True if `spec` is a folder, an .npy file or a table. Only folders are read."""
        path = Path(spec)
        return path.is_dir() or (path.is_file() and path.name.endswith(_ENDINGS))

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read a homogeneous graph, with arrays mapped and tables unpacked.

        The number of nodes is the number of rows of the node attributes. Without attributes it is
        the largest id + 1. Symbolic links in the folder are followed.
        """
        folder = Path(spec)
        if not folder.is_dir():
            raise ValueError(
                f"'{spec}' is a file of a graph, not the graph: name the folder that it is in, "
                "where edges are called edge_index.npy, edges.csv or edges.parquet"
            )
        edges = _read_edges(folder, scratch)
        node_attrs: dict[str, RowStore] = {}
        nodes = _parts(folder, _NODES)
        if nodes:
            columns = read_columns(nodes, scratch, unnamed="node_attr_")
            title = f"of '{nodes[0]}'"
            node_attrs = {n: attribute(c, f"column '{n}' {title}") for n, c in columns.items()}
        for name, files in _arrays(folder).items():
            attrs = edges.attrs if name.startswith("edge_") else node_attrs
            if name in attrs:
                raise ValueError(f"'{files[0].name}' and a column of a table have the same name")
            attrs[name] = joined_attribute({f"'{file}'": load_npy(file, "r") for file in files})
        count = _likely_count(edges, node_attrs)
        return GraphSource({NODE: NodeSource(count, node_attrs)}, {EDGE: edges})


class NpzFile(Source):
    """Reader of one file of `numpy.savez` that holds a graph's arrays."""

    paths = "FILE.npz"
    about = "arrays as in a DIRECTORY, and `num_nodes`"
    unpacked = "what is deflated; stored arrays are mapped within the file"

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is an .npz file."""
        return Path(spec).suffix == ".npz" and Path(spec).is_file()

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read a homogeneous graph of an .npz file: `edge_index`, `num_nodes` and attributes.

        `num_nodes` is optional. Arguments are as for `Source.read`.
        """
        path = Path(spec)
        arrays = Npz(path, scratch)
        if "edge_index" not in arrays:
            raise ValueError(f"'{path}' holds no array 'edge_index' (got {sorted(arrays)[:10]})")
        edges = edges_of(arrays["edge_index"], f"'edge_index' of '{path}'")
        node_attrs: dict[str, RowStore] = {}
        for name in sorted(set(arrays) - {"edge_index", "num_nodes"}):
            attrs = edges.attrs if name.startswith("edge_") else node_attrs
            attrs[name] = attribute(arrays[name], f"'{name}' of '{path}'")
        if "num_nodes" in arrays:
            count = int(ids_of(arrays["num_nodes"], "num_nodes").item())
        else:
            count = _likely_count(edges, node_attrs)
        return GraphSource({NODE: NodeSource(count, node_attrs)}, {EDGE: edges})


def _likely_count(edges: EdgeSource, attrs: dict[str, RowStore]) -> int:
    """Guess the number of nodes, which the file does not have.

    It is the most common length of attributes, among lengths above all ids of the edges. Later
    checks refuse attributes of another length.
    """
    rows = [attr.num_rows for attr in attrs.values()]
    if not rows:
        return count_nodes(edges)
    if len({*rows}) == 1:
        return rows[0]
    least = count_nodes(edges)
    return max({*rows}, key=lambda n: (n >= least, rows.count(n), -n))


def _read_edges(folder: Path, scratch: Scratch) -> EdgeSource:
    array = folder / "edge_index.npy"
    files = _parts(folder, _EDGES)
    if array.is_file() and files:
        raise ValueError(f"'{folder}' holds {array.name} and {files[0].name}: keep one of them")
    if not array.is_file() and not files:
        raise FileNotFoundError(
            f"'{folder}' holds none of edge_index.npy, edges{', edges'.join(_ENDINGS)}, a folder "
            "edges of such files, or edges-00000-of-... of them"
        )
    files = files or [array]
    if files[0].suffix == ".npy":
        return joined_edges({f"'{file}'": load_npy(file, "r") for file in files})
    columns, file = read_columns(files, scratch), files[0]
    if len(columns) < 2:
        raise ValueError(f"'{file}' must have two columns or more (got {list(columns)})")
    ends = ("src", "dst") if {"src", "dst"} <= set(columns) else tuple(columns)[:2]
    src, dst = (ids_of(columns.pop(end), f"'{file}'") for end in ends)
    attrs = {name: attribute(c, f"column '{name}' of '{file}'") for name, c in columns.items()}
    return EdgeSource(src, dst, attrs)


def _parts(folder: Path, stem: str) -> list[Path]:
    """Return the files of the table `stem` ('edges' or 'nodes') in order. There may be none.

    They are one file with this name, a series of files, or all files of a folder.

    Raises:
        ValueError: there are several such tables, or the folder holds other things.
    """
    lists: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        ending = _ending(path)
        if path.is_dir() and path.name in (stem, f"{stem}.parquet"):
            inside = [p for p in sorted(path.iterdir()) if not p.name.startswith(_NO_PARTS)]
            for part in inside:
                if part.is_dir() or not _ending(part):
                    raise ValueError(f"'{part}' is not one of {', '.join(_ENDINGS)}")
                lists.setdefault(f"{path.name}/*{_ending(part)}", []).append(part)
        elif ending and path.name == stem + ending and ending != ".npy":
            lists[path.name] = [path]
        elif ending and path.name.startswith(f"{stem}-") and "-of-" in path.name:
            lists.setdefault(f"{stem}-*{ending}", []).append(path)
    if len(lists) > 1:
        raise ValueError(f"'{folder}' holds {' and '.join(lists)}: keep one of them")
    return [file for files in lists.values() for file in shards(files)]


def _arrays(folder: Path) -> dict[str, list[Path]]:
    """Return {attribute: its .npy files} of a folder. An attribute can be in several files."""
    arrays: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.npy")):
        name = file.stem.split("-")[0] if "-of-" in file.stem else file.stem
        if name not in ("edge_index", _EDGES, _NODES):
            arrays.setdefault(name, []).append(file)
    return {name: shards(files) for name, files in arrays.items()}


def _ending(path: Path) -> str:
    """Return the ending of a file's name that `_ENDINGS` lists, such as '.csv.gz', or ''."""
    return next((ending for ending in _ENDINGS if path.name.endswith(ending)), "")
