"""Reader of tables in CSV (also gzipped) and Parquet files, some rows at a time.

Several files together can be one table. Columns are unpacked (`khop.sources.scratch`).
Imports no torch.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from khop.data.files import check_regular
from khop.safe_versions import check_safe
from khop.sources.scratch import ColumnChangedError, Scratch, identity
from khop.typing import Array

TABLES = (".csv", ".csv.gz", ".parquet")
"""Suffixes of files that are tables."""

_FIELD_BYTES = 32  # approximate memory of a CSV field while it is read
# Most bytes that pandas reads for one piece. Open quotes and endless lines would take more.
_MOST_READ = 1 << 26
# Longest accepted first line, which is read as a whole.
_LONGEST_LINE = 1 << 24

Piece = dict[str, Array]
Dtypes = dict[str, np.dtype[Any]]


def read_columns(
    files: Sequence[Path], scratch: Scratch, unnamed: str = "edge_attr_"
) -> dict[str, Array]:
    """Read the columns of a table.

    Args:
        files: CSV files whose first line may name columns, or Parquet files.
        scratch: temporary storage of the columns.
        unnamed: prefix of the names that CSV columns without names get. Their index follows.

    Returns:
        {name: [num_rows] or [num_rows, length] for lists of Parquet}.

    Raises:
        ValueError, TypeError: a file has wrong content. The message names the file.
        ModuleNotFoundError: pandas (for CSV) or pyarrow (for Parquet) is not installed.
    """
    if files[0].suffix == ".parquet":
        return _table(files, scratch, _parquet_pieces, "columns")

    def pieces(file: Path, piece_bytes: int, dtypes: Dtypes) -> Iterator[Piece]:
        named = _has_names(file)
        for frame in _frames(file, piece_bytes, named, ",", dtypes, unnamed):
            yield {name: frame[name].to_numpy() for name in frame.columns}

    return _table(files, scratch, pieces, ["columns", unnamed])


def read_rows(
    files: Sequence[Path],
    scratch: Scratch,
    delimiter: str = ",",
    both_ways: str = "",
    narrow: bool = False,
    parquet: bool | None = None,
) -> Array:
    """Read a table of numbers as one array, [num_rows, num_columns].

    DGL writes the shape of the whole array into the metadata of Parquet files ('shape'). Each row
    then gets this shape without the first axis.

    Args:
        files: CSV files without names, or Parquet files.
        scratch: temporary storage of the rows.
        delimiter: character between fields of CSV. ' ' is any number of blanks.
        both_ways: 'rows' repeats each row. 'edges' also exchanges the columns of the repeated row.
        narrow: convert fractions to float32. If False, they stay as read, float64 from CSV.
        parquet: True if the files are Parquet. If None, the name of the first file decides.
    """
    of_parquet = files[0].suffix == ".parquet" if parquet is None else parquet
    of_file = _parquet_rows if of_parquet else _csv_rows(delimiter)

    def pieces(file: Path, piece_bytes: int, dtypes: Dtypes) -> Iterator[Piece]:
        for rows in of_file(file, piece_bytes, dtypes):
            rows = np.repeat(rows, 2, axis=0) if both_ways else rows  # noqa: PLW2901
            if both_ways == "edges":
                rows[1::2] = rows[1::2, ::-1]
            yield {"rows": rows.astype(np.float32) if narrow and rows.dtype.kind == "f" else rows}

    layout = ["rows", delimiter, both_ways, narrow, of_parquet]
    return _table(files, scratch, pieces, layout)["rows"]


def _table(
    files: Sequence[Path],
    scratch: Scratch,
    pieces: Callable[[Path, int, Dtypes], Iterator[Piece]],
    layout: object,
) -> dict[str, Array]:
    """Unpack a table. If a later piece needs a wider dtype, begin again with this dtype.

    `pieces` reads a file, {column: rows} at a time. `layout`, the options of reading, identifies
    the result in `scratch`.
    """
    # Writers of many parts leave empty ones.
    files = [file for file in files if check_regular(file).stat().st_size] or files
    key = [layout, [identity(file) for file in files]]
    dtypes: Dtypes = {}
    while True:
        try:
            return scratch.table(
                key,
                lambda: itertools.chain.from_iterable(
                    _explained(file, pieces(file, scratch.piece_bytes, dtypes)) for file in files
                ),
            )
        except ColumnChangedError as changed:
            if changed.column in dtypes and dtypes[changed.column] == changed.dtype:
                raise ValueError(
                    f"column '{changed.column}' of '{files[0]}' holds values of several kinds"
                ) from None
            dtypes[changed.column] = changed.dtype


def _explained(file: Path, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a file, and check that they hold numbers. Errors name the file."""
    for piece in pieces:
        for name, values in piece.items():
            if values.dtype.kind not in "biuf":
                raise TypeError(f"column '{name}' of '{file}' holds {_problem(values)}")
        yield piece


def _problem(values: Array) -> str:
    """Return text for an error about a column without numbers: its content, and the remedy."""
    if values.dtype.kind in "mM":
        return (
            f"times of dtype {values.dtype}: write them as numbers, in pandas "
            "column.astype('datetime64[s]').astype('int64')"
        )
    first = next((value for value in values if not isinstance(value, (int, float))), None)
    content = f"text ({str(first)[:40]!r})" if isinstance(first, str) else "values of several kinds"
    return (
        f"{content}, not numbers: give each key of a node its number from 0 on (pandas.factorize), "
        "each date its seconds, or leave the column out; the page 'What khop partition reads' "
        "shows how"
    )


# CSV.


def _csv_rows(delimiter: str) -> Callable[[Path, int, Dtypes], Iterator[Array]]:
    def rows(file: Path, piece_bytes: int, dtypes: Dtypes) -> Iterator[Array]:
        kept = (
            {str(i): dtypes["rows"] for i in range(len(_first_line(file, delimiter)))}
            if dtypes
            else {}
        )
        for frame in _frames(file, piece_bytes, False, delimiter, kept, ""):
            yield frame.to_numpy()

    return rows


def _frames(
    file: Path, piece_bytes: int, named: bool, delimiter: str, dtypes: Dtypes, unnamed: str
) -> Iterator[Any]:
    """Read a CSV file as pandas data frames of about `piece_bytes` each.

    `named` is True if the first line has names. Other columns are named by prefix `unnamed`.
    `dtypes` are known already.
    """
    pandas = package_for("pandas", "pandas", file)
    step = max(1, piece_bytes // (_FIELD_BYTES * max(1, len(_first_line(file, delimiter)))))
    by_column = {n if named else int(n.removeprefix(unnamed)): d for n, d in dtypes.items()}
    with _errors_of_csv(file, pandas), warnings.catch_warnings(), _open(file) as opened:
        warnings.simplefilter("error", pandas.errors.ParserWarning)  # columns would be dropped
        metered = _Metered(opened, _MOST_READ + 4 * piece_bytes)
        reader = pandas.read_csv(
            metered,
            header=0 if named else None,
            index_col=False,
            sep=r"\s+" if delimiter == " " else delimiter,
            dtype=by_column,
            skipinitialspace=True,
            encoding="utf-8-sig",
            low_memory=False,  # one dtype per column and piece
            chunksize=step,
        )
        with reader:
            for frame in reader:
                metered.count = 0
                frame.columns = [str(n) if named else f"{unnamed}{n}" for n in frame.columns]
                yield frame


def _open(file: Path) -> Any:
    return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")


class _Metered(io.BufferedIOBase):
    """Stream that raises ValueError after `most` bytes, to bound memory.

    The parser keeps a row until its end, and gzip expands MBs to GBs. Setting `count` to 0 begins
    anew.
    """

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._most = stream, most
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most `size` bytes. If None or negative, to the end.

        Raises:
            ValueError: more than `most` bytes were read.
        """
        content = self._stream.read(-1 if size is None else size)
        self.count += len(content)
        if self.count > self._most:
            raise ValueError(f"its rows are longer than any of numbers ({self._most:,} bytes)")
        return content

    read1 = read


@contextlib.contextmanager
def _errors_of_csv(file: Path, pandas: Any) -> Iterator[None]:
    try:
        yield
    except pandas.errors.EmptyDataError:
        raise ValueError(f"'{file}' is empty") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"'{file}' is not a CSV file in UTF-8: {error}") from None
    except (pandas.errors.ParserError, pandas.errors.ParserWarning, csv.Error) as error:
        raise ValueError(f"'{file}' is not a CSV file: {error}") from None
    except (gzip.BadGzipFile, EOFError, ValueError) as error:
        raise ValueError(f"'{file}' is not a CSV file of numbers, or damaged: {error}") from None


def _has_names(file: Path) -> bool:
    """Return True if the first line that is not blank names the columns, False if it is an edge.

    Raises:
        ValueError: the line is neither, or has another separator.
    """
    first = _first_line(file, ",")
    for other in ";\t|" if len(first) == 1 else "":
        if other in first[0]:
            raise ValueError(
                f"'{file}' separates its fields by {other!r}, not by ',': write it anew, "
                f"as in pandas.read_csv(file, sep={other!r}).to_csv(file, index=False)"
            )
    are_ids = [_is_number(field) for field in first[:2]]
    if {"src", "dst"} <= set(first) or not any(are_ids):
        return True
    if not all(are_ids):
        raise ValueError(
            f"'{file}' begins with a line that neither names columns nor is an edge: {first[:5]}"
        )
    return False


def _first_line(file: Path, delimiter: str) -> list[str]:
    """Return the fields of a CSV file's first line that is not blank."""
    with _errors_of_csv(file, package_for("pandas", "pandas", file)), _open(file) as opened:
        while line := opened.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"its first line is longer than {_LONGEST_LINE:,} bytes")
            text = line.decode("utf-8-sig").strip("\r\n")
            split = csv.reader([text], delimiter=delimiter, skipinitialspace=True)
            fields = [field.strip() for field in next(split, [])]
            if any(fields):
                return fields
    return []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# Parquet.


def _parquet_pieces(file: Path, piece_bytes: int, dtypes: Dtypes) -> Iterator[Piece]:
    pyarrow = package_for("pyarrow", "pyarrow", file)
    from pyarrow import parquet

    try:
        # Read through a small buffer, page by page: a row group may be larger than memory.
        with parquet.ParquetFile(file, buffer_size=1 << 16, pre_buffer=False) as opened:
            columns = max(1, opened.metadata.num_columns)
            width = 8 * columns * _longest_list(opened)
            for batch in opened.iter_batches(max(1, piece_bytes // width), use_threads=False):
                yield {
                    name: _values(batch.column(i), name, file, dtypes.get(name))
                    for i, name in enumerate(batch.schema.names)
                }
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"'{file}' is not a Parquet file: {error}") from None


def _longest_list(opened: Any) -> int:
    """Return the largest mean length of lists in a column of an open Parquet file, at least 1."""
    groups = (opened.metadata.row_group(i) for i in range(opened.metadata.num_row_groups))
    lengths = (
        group.column(i).num_values // max(1, group.num_rows)
        for group in groups
        for i in range(group.num_columns)
    )
    longest: int = max([1, *lengths])
    return longest


def _values(column: Any, name: str, file: Path, dtype: np.dtype[Any] | None) -> Array:
    """Return the numbers of a column of a Parquet file: [n], or [n, length] for lists.

    `name` and `file` are for errors. `dtype` is the dtype of earlier pieces, or None.
    """
    from pyarrow import types

    is_fixed = types.is_fixed_size_list(column.type)
    if is_fixed or types.is_list(column.type) or types.is_large_list(column.type):
        lengths = [column.type.list_size] if is_fixed else np.unique(column.value_lengths())
        if column.null_count or len(lengths) > 1:
            raise ValueError(f"lists of column '{name}' of '{file}' differ in length")
        length = int(lengths[0]) if len(lengths) else 0
        values: Array = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), length)
    else:
        values = column.to_numpy(zero_copy_only=False)
    return values if dtype is None else values.astype(dtype)


def _parquet_rows(file: Path, piece_bytes: int, dtypes: Dtypes) -> Iterator[Array]:
    shape = _row_shape(file)
    for piece in _parquet_pieces(file, piece_bytes, {}):
        columns = [c.reshape(len(c), -1) for c in piece.values()]
        rows = np.concatenate(columns, axis=1)
        if shape is not None:
            if np.prod(shape, dtype=np.int64) != rows.shape[1]:
                raise ValueError(
                    f"'{file}' has {rows.shape[1]} values a row, but its 'shape' says {shape}"
                )
            rows = rows.reshape(len(rows), *shape)
        yield rows.astype(dtypes["rows"]) if dtypes else rows


def _row_shape(file: Path) -> list[int] | None:
    """Return the shape of a row that DGL stores in a Parquet file's metadata, or None."""
    pyarrow = package_for("pyarrow", "pyarrow", file)
    from pyarrow import parquet

    try:
        named = (parquet.read_schema(file).metadata or {}).get(b"shape")
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"'{file}' is not a Parquet file: {error}") from None
    return None if named is None else [int(n) for n in re.findall(rb"\d{1,9}", named)[1:]]


def package_for(module: str, package: str, file: Path) -> Any:
    """Import the module that is needed to read a file.

    Raises:
        ModuleNotFoundError: the module is not installed. The message names its package.
        SecurityError: the installed version is too old to read untrusted files safely.
    """
    try:
        imported: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"'{file.name}' needs package {package}: pip install {package}"
        ) from None
    check_safe(package, imported.__version__, file)
    return imported
