"""Reader of TFRecord files with tf.train.Examples, some rows at a time.

    file: records, one after the other, gzipped as a whole if its name ends in .gz
    record: uint64 length, uint32 checksum, `length` bytes, uint32 checksum
    Example: message of protobuf, field 1: features
    features: field 1 of each entry: name, field 2: values
    values: field 1: texts, or field 2: floats, or field 3: integers

Lengths are checked, checksums are not: Python's library has no CRC-32C. The speed is some 20,000
records per second. Imports no torch.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from khop.data.files import check_regular
from khop.sources.scratch import ColumnChangedError, Scratch, identity
from khop.typing import Array

_HEADER, _CHECKSUM = struct.Struct("<Q4x"), 4
# Bound of a record, which has the attributes of one node or edge.
_MOST_BYTES = 1 << 24
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TEXTS, _FLOATS, _INTEGERS = 1, 2, 3

Columns = Mapping[str, Sequence[str]]
"""{column: names of the Example's features that are joined to this column}."""


def read_examples(files: Sequence[Path], columns: Columns, scratch: Scratch) -> dict[str, Array]:
    """Read columns of TFRecord files of tf.train.Examples, each Example a row.

    Args:
        files: the files, in their order.
        columns: columns to read. Columns of integers only are int64, all others float32.
        scratch: temporary storage of the columns.

    Returns:
        {column: [num_rows] if each row has one value, else [num_rows, width]}.

    Raises:
        ValueError: a file is damaged, or lacks values. The message names the file.
    """
    key = ["examples", {name: list(of) for name, of in columns.items()}]

    def pieces() -> Iterator[dict[str, Array]]:
        for file in files:
            yield from _pieces(file, columns, scratch.piece_bytes)

    try:
        return scratch.table([key, [identity(file) for file in files]], pieces)
    except ColumnChangedError as changed:
        raise ValueError(
            f"values of '{changed.column}' in '{files[0]}', and files beside it, are integers in "
            "some rows and fractions in others"
        ) from None


def _pieces(file: Path, columns: Columns, piece_bytes: int) -> Iterator[dict[str, Array]]:
    """Yield {column: rows} of a file, some rows at a time."""
    rows: dict[str, list[Array]] = {name: [] for name in columns}
    size = 0
    opener: Any = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(check_regular(file), "rb") as stream:
            for record in _records(stream):
                example = _example(record)
                for name, of in columns.items():
                    rows[name].append(_joined(example, of))
                size += 4 * len(record) + 200 * len(columns)
                if size >= piece_bytes:
                    yield _arrays(rows)
                    rows, size = {name: [] for name in columns}, 0
        if size:
            yield _arrays(rows)
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"'{file}' is damaged, or no file of Examples: {error}") from None


def _arrays(rows: Mapping[str, Sequence[Array]]) -> dict[str, Array]:
    arrays = {}
    for name, of_column in rows.items():
        widths = {len(row) for row in of_column}
        if len(widths) > 1:
            raise ValueError(f"rows of '{name}' have {min(widths)} to {max(widths)} values")
        if len({row.dtype for row in of_column}) > 1:
            raise ValueError(
                f"values of '{name}' are integers in some rows and fractions in others"
            )
        values = np.concatenate(of_column)
        arrays[name] = values if widths == {1} else values.reshape(len(of_column), *widths)
    return arrays


def _joined(example: Mapping[str, Array], names: Sequence[str]) -> Array:
    missing = [name for name in names if name not in example]
    if missing:
        raise ValueError(f"an Example lacks {missing}: it has {sorted(example)[:20]}")
    values = [example[name] for name in names]
    if len({array.dtype for array in values}) > 1:
        values = [array.astype(np.float32) for array in values]
    return values[0] if len(values) == 1 else np.concatenate(values)


def _records(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of each record of a TFRecord file, without its length and checksums."""
    while head := stream.read(_HEADER.size):
        if len(head) < _HEADER.size:
            raise ValueError("it ends within a record")
        (length,) = _HEADER.unpack(head)
        if length > _MOST_BYTES:
            raise ValueError(f"a record of {length:,} bytes")
        content = stream.read(length + _CHECKSUM)
        if len(content) < length + _CHECKSUM:
            raise ValueError("it ends within a record")
        yield content[:length]


# Protobuf.


def _example(record: bytes) -> dict[str, Array]:
    """Return the numbers of a tf.train.Example by feature name. Features of texts are left out."""
    numbers: dict[str, Array] = {}
    for field, features in _fields(record):
        if field != 1:
            continue
        for _, entry in _fields(_bytes(features)):
            parts = dict(_fields(_bytes(entry)))
            name = _bytes(parts.get(1, b"")).decode()
            values = _values(_bytes(parts.get(2, b"")))
            if values is not None:
                numbers[name] = values
    return numbers


def _values(feature: bytes) -> Array | None:
    """Return the numbers of a feature of an Example, or None if it holds texts."""
    for form, listed in _fields(feature):
        if form == _TEXTS:
            return None
        content = [value for field, value in _fields(_bytes(listed)) if field == 1]
        if form == _FLOATS:
            return np.concatenate([_EMPTY, *map(_floats, content)])
        if form == _INTEGERS:
            return np.array([each for value in content for each in _integers(value)], np.int64)
    return _EMPTY


_EMPTY = np.empty(0, np.float32)


def _floats(value: bytes | int) -> Array:
    """Decode a list of floats, a field of protobuf: packed bytes, or a single value."""
    if isinstance(value, int) or len(value) % 4:
        raise ValueError("a list of floats is damaged")
    return np.frombuffer(value, "<f4").astype(np.float32, copy=False)


def _integers(value: bytes | int) -> Iterator[int]:
    """Decode a list of signed integers, a field of protobuf: packed bytes, or a single value."""
    packed = b"" if isinstance(value, int) else value
    at, integers = 0, [value] if isinstance(value, int) else []
    while at < len(packed):
        integer, at = _varint(packed, at)
        integers.append(integer)
    for integer in integers:
        yield integer - (1 << 64) if integer >> 63 else integer


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("a message of protobuf is damaged")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field of a protobuf message. Values are integers or bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(message, at)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"a field of protobuf of wire type {wire_type}")
        if size > len(message) - at:
            raise ValueError("a field of protobuf is longer than its message")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Decode the protobuf varint at offset `at`. Return it and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
    raise ValueError("an integer of protobuf is longer than 10 bytes, or than its message")
