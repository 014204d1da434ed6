"""Reader of graphs in folders of arrays: edges of .npy, CSV or Parquet, attributes of .npy."""

from __future__ import annotations

import csv
import importlib
import warnings
from pathlib import Path
from typing import Any

from khop.data import Feature
from khop.data.files import check_regular, load_npy
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.typing import EDGE, NODE, Array, IntArray

_EDGE_FILES = ("edge_index.npy", "edges.parquet", "edges.csv")


def read_directory(folder: Path) -> GraphSource:
    """Read a homogeneous graph; arrays are memory-mapped.

    The number of nodes is that of the rows of the node attributes; without any, the largest id + 1.

    Args:
        folder: holds one of edge_index.npy ([2, E] or [E, 2]), edges.csv and edges.parquet (columns
            'src' and 'dst', or the first two; further columns become edge attributes), and further
            .npy files: edge_*.npy are edge attributes, all others node attributes. Symbolic
            links in it are followed.

    Raises:
        FileNotFoundError: none of the edge files is there.
        ValueError, TypeError: a file has wrong content; the message names it.
        ModuleNotFoundError: CSV or Parquet without pandas or pyarrow.
    """
    present = [name for name in _EDGE_FILES if (folder / name).is_file()]
    if not present:
        raise FileNotFoundError(f"'{folder}' holds none of {', '.join(_EDGE_FILES)}")
    if len(present) > 1:
        raise ValueError(f"'{folder}' holds {' and '.join(present)}: keep one of them")
    src, dst, edge_attrs = _read_edges(folder / present[0])
    node_attrs: dict[str, Feature] = {}
    for file in sorted(folder.glob("*.npy")):
        if file.name == "edge_index.npy":
            continue
        attrs = edge_attrs if file.stem.startswith("edge_") else node_attrs
        if file.stem in attrs:
            raise ValueError(f"'{file.name}' and a column of '{present[0]}' have the same name")
        attrs[file.stem] = _feature(load_npy(file, "r"), file)
    count = _count_nodes(node_attrs, src, dst)
    return GraphSource(
        {NODE: NodeSource(count, node_attrs)}, {EDGE: EdgeSource(src, dst, edge_attrs)}
    )


def _count_nodes(attrs: dict[str, Feature], src: IntArray, dst: IntArray) -> int:
    if not attrs:
        return 1 + max(int(ids.max()) for ids in (src, dst)) if len(src) else 0
    for name in ("x", "y"):  # if attributes differ in length, these count
        if name in attrs:
            return attrs[name].num_rows
    return next(iter(attrs.values())).num_rows


def _read_edges(file: Path) -> tuple[IntArray, IntArray, dict[str, Feature]]:
    if file.suffix == ".npy":
        pair = load_npy(file, "r")
        if pair.ndim != 2 or 2 not in pair.shape:
            raise ValueError(f"'{file}' must have shape [2, E] or [E, 2] (got {list(pair.shape)})")
        if pair.shape[0] != 2:
            pair = pair.T
        return _ids(pair[0], file), _ids(pair[1], file), {}
    columns = _read_parquet(file) if file.suffix == ".parquet" else _read_csv(file)
    if len(columns) < 2:
        raise ValueError(f"'{file}' must have two columns or more (got {list(columns)})")
    ends = ("src", "dst") if {"src", "dst"} <= set(columns) else tuple(columns)[:2]
    src, dst = (_ids(columns.pop(end), file) for end in ends)
    return src, dst, {name: _feature(values, file, name) for name, values in columns.items()}


def _read_csv(file: Path) -> dict[str, Array]:
    pandas = _import("pandas", file)
    try:
        named = _has_names(file)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # columns would be dropped
            table = pandas.read_csv(
                file,
                header=0 if named else None,
                index_col=False,
                skipinitialspace=True,
                encoding="utf-8-sig",
                low_memory=False,  # one dtype a column
            )
    except pandas.errors.EmptyDataError:
        raise ValueError(f"'{file}' is empty") from None
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, csv.Error) as error:
        raise ValueError(f"'{file}' is not a CSV file: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"'{file}' is not a CSV file in UTF-8: {error}") from None
    return {
        str(name) if named else f"edge_attr_{name}": table[name].to_numpy()
        for name in table.columns
    }


def _has_names(file: Path) -> bool:
    """Return True if the first line that is not blank names the columns, False if it is an edge.

    Raises:
        ValueError: it is neither.
    """
    with check_regular(file).open(newline="", encoding="utf-8-sig") as opened:
        lines = csv.reader(opened, skipinitialspace=True)
        first = [name.strip() for name in next((line for line in lines if any(line)), [])]
    are_ids = [_is_number(field) for field in first[:2]]
    if {"src", "dst"} <= set(first) or not any(are_ids):
        return True
    if not all(are_ids):
        raise ValueError(
            f"'{file}' begins with a line that neither names columns nor is an edge: {first[:5]}"
        )
    return False


def _read_parquet(file: Path) -> dict[str, Array]:
    _import("pyarrow", file)
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(file)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"'{file}' is not a Parquet file: {error}") from None
    return {name: table[name].to_numpy() for name in table.column_names}


def _import(package: str, file: Path) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"'{file.name}' needs package {package}: pip install 'khop[files]'"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _ids(values: Array, file: Path) -> IntArray:
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"'{file}' must hold integer node ids (got dtype '{values.dtype}'): ids run from 0, "
            "and none may be missing"
        )
    return values


def _feature(values: Array, file: Path, column: str | None = None) -> Feature:
    what = f"'{file}'" if column is None else f"column '{column}' of '{file}'"
    try:
        return Feature(values)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} cannot be an attribute: {error}") from None
