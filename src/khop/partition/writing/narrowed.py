"""Attributes that a folder stores in fewer bits: checks, and the rows as they are stored.

An attribute whose largest values matter is read once before anything is written. They make the
scales of int8, and float16 and float8 have a largest number. Then rows are narrowed whenever the
writers read them, in their threads. So the folder depends neither on blocks nor on threads. Imports
no torch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np

from khop.data import RowFormat, RowStore
from khop.data.encoding import LARGEST, Encoding, as_float32, encoding_name
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.typing import Array, EdgeType, FeatureKey, Int64Array, NodeType, Progress

AttrsByType: TypeAlias = "Mapping[Any, Mapping[str, RowStore]]"
"""{node type or edge type: {name: rows}}."""

# Bytes of float32 that are narrowed at a time: they stay in a core's cache.
_PIECE_BYTES = 1 << 18
# Bytes of float32 that a thread reads at a time for the largest values.
_CHUNK_BYTES = 16 << 20


class NarrowedRows(RowStore):
    """Rows of another store, in fewer bits.

    Args:
        rows: the other store, of floating-point rows.
        dtype: encoding, see `khop.data.encoding`, or 'float32'.
        label: name of the attribute in error messages.
        delivers_stored: whether batches have the rows as stored.

    Raises:
        TypeError: the rows are no floating-point numbers.
    """

    def __init__(self, rows: RowStore, dtype: str, label: str, delivers_stored: bool) -> None:
        if not rows.floating:
            raise TypeError(
                f"feature_dtype names {label}, which is {rows.dtype}: only floating-point "
                "attributes are stored in fewer bits"
            )
        self._rows, self._label = rows, label
        self._codec = None if dtype == "float32" else Encoding(dtype)
        self._delivers_stored = delivers_stored
        name = "float32" if self._codec is None else self._codec.dtype
        self.num_rows, self.stored = rows.num_rows, RowFormat(name, rows.row_shape)
        self.at_hand = rows.at_hand
        self.encoding = None if delivers_stored else self._codec

    def read(self, ids: Int64Array, out: Array) -> None:
        step = max(1, _PIECE_BYTES // max(1, 4 * int(np.prod(self.row_shape, dtype=np.int64))))
        for first in range(0, len(ids), step):
            piece = slice(first, first + step)
            values = self._float32(ids[piece])
            if self._codec is None:
                out[piece] = values
                continue
            _, bad = self._codec.encode(values, out[piece])
            if bad >= 0:
                self._refuse(values, bad, ids[piece])

    def _float32(self, ids: Int64Array) -> Array:
        rows = self._rows.gather(ids)
        values = as_float32(rows, self._rows.dtype, self._rows.encoding)
        if rows.dtype == np.float64:
            lost = np.isinf(values) & np.isfinite(rows)
            if lost.any():
                self._refuse(rows, int(np.argmax(lost)), ids)
        return values

    def _refuse(self, values: Array, position: int, ids: Int64Array) -> NoReturn:
        """Raise ValueError for the value at a position of the rows with these ids."""
        row, column = divmod(position, max(1, values[0].size))
        raise ValueError(
            f"{self._label} holds {values.reshape(-1)[position]} in row {ids[row]}, column "
            f"{column}, which {'float32' if self._codec is None else self._codec.name} has no "
            "number for"
        )

    def of(self, rows: RowStore) -> NarrowedRows:
        """Return other rows of the same attribute, narrowed in the same way."""
        other = copy.copy(self)
        other._rows, other.num_rows = rows, rows.num_rows
        return other

    @property
    def floating(self) -> bool:
        return True

    def numbers(self) -> Array:
        """Return the values before they are narrowed."""
        return self._rows.numbers()

    def content(self) -> tuple[Array, ...]:
        return self._rows.content()

    def release(self) -> None:
        self._rows.release()

    def fit(self, workspace: Workspace, progress: Progress) -> None:
        """Read the values, check that they can be stored, and compute the scales of int8.

        Raises:
            ValueError: a value is too large, or infinite or NaN where that cannot be stored.
        """
        if self._codec is None or self._codec.name == "bfloat16":
            return
        step = f"largest values of {self._label}"
        width = max(1, int(np.prod(self.row_shape, dtype=np.int64)))

        def extremes() -> Array:
            low, high = np.full((2, width), np.nan, np.float32)
            rows = max(1, min(_CHUNK_BYTES, workspace.resources.share()) // (8 * width))
            chunks = range(0, self.num_rows, rows)
            read = partial(self._extremes, count=rows)
            results = workspace.resources.in_order(read, chunks)
            for done, (least, largest) in enumerate(results, 1):
                np.fmin(low, least, out=low)
                np.fmax(high, largest, out=high)
                workspace.release(self)
                progress(step, done, len(chunks))
            return np.stack([low, high])

        low, high = workspace.array(step, extremes)
        low, high = np.nan_to_num(low), np.nan_to_num(high)  # columns without a number
        if self._codec.name == "int8":
            self._codec = Encoding.of_range(low, high)
            self.encoding = self._codec
            return
        largest = np.maximum(-low, high)
        _, bad = self._codec.encode(largest)
        if bad >= 0:
            raise ValueError(
                f"{self._label} holds values up to {largest[bad]:g} in column {bad}, and "
                f"{self._codec.name} ends at {LARGEST[self._codec.name]:g}: scale the attribute, "
                "or store it as bfloat16 or int8"
            )

    def _extremes(self, first: int, count: int) -> tuple[Array, Array]:
        """Return the least and the largest finite value of each column, of some rows."""
        assert self._codec is not None
        rows = np.arange(first, min(first + count, self.num_rows))
        values = self._float32(rows).reshape(len(rows), -1)
        finite = np.isfinite(values)
        if not finite.all():
            lost = ~finite if self._codec.name == "int8" else np.isinf(values)
            if self._codec.name != "float16" and lost.any():
                self._refuse(values, int(np.argmax(lost)), rows)
            values = np.where(finite, values, np.float32(np.nan))
        return np.fmin.reduce(values, axis=0), np.fmax.reduce(values, axis=0)


def with_narrowed(
    source: GraphSource, dtypes: Mapping[FeatureKey, object] | None, deliver: str
) -> GraphSource:
    """Return a graph whose attributes are narrowed as option `feature_dtype` says.

    For arguments and errors see `narrowed`.
    """
    held: dict[Any, NodeSource | EdgeSource] = {**source.nodes, **source.edges}
    attrs = narrowed({t: holder.attrs for t, holder in held.items()}, dtypes, deliver)
    if not dtypes:
        return source
    nodes = {t: replace(node, attrs=attrs[t]) for t, node in source.nodes.items()}
    edges = {t: copy.copy(edge) for t, edge in source.edges.items()}
    for edge_type, edge in edges.items():  # of a subclass, whose fields are its own
        edge.attrs = attrs[edge_type]
    return replace(source, nodes=nodes, edges=edges)


def narrowed(
    attrs: AttrsByType, dtypes: Mapping[FeatureKey, object] | None, deliver: str
) -> dict[NodeType | EdgeType, dict[str, RowStore]]:
    """Return attributes, narrowed as option `feature_dtype` says.

    Args:
        attrs: {node type or edge type: {name: rows}}.
        dtypes: {'x', 'paper.x' or ('paper', 'x'): dtype}, or None.
        deliver: 'float32' or 'stored'.

    Raises:
        TypeError: an attribute is not of floating-point numbers.
        ValueError: there is no such attribute, dtype or way to deliver.
    """
    if deliver not in ("float32", "stored"):
        raise ValueError(f"deliver must be 'float32' or 'stored' (got {deliver!r})")
    if deliver != "float32" and not dtypes:
        raise ValueError(f"deliver='{deliver}' needs feature_dtype")
    made = {t: dict(held) for t, held in attrs.items()}
    for key, dtype in (dtypes or {}).items():
        name = encoding_name(dtype)
        if deliver == "stored" and name not in ("bfloat16", "float16"):
            raise ValueError(
                f"deliver='stored' is for bfloat16 and float16 (got {name}): leave it out, and "
                "pass widen='trainer' to loaders for batches that are small up to the trainer"
            )
        named = [
            (t, attribute)
            for t, held in attrs.items()
            for attribute in held
            if key in (attribute, f"{_spelled(t)}.{attribute}", (t, attribute))
        ]
        if not named:
            known = sorted(f"{_spelled(t)}.{n}" for t, held in attrs.items() for n in held)
            raise ValueError(f"feature_dtype names {key!r}, but attributes are {known}")
        for t, attribute in named:
            label = f"attribute '{attribute}' of '{_spelled(t)}'"
            rows = NarrowedRows(attrs[t][attribute], name, label, deliver == "stored")
            made[t][attribute] = rows
    return made


def _spelled(type_name: NodeType | EdgeType) -> str:
    return type_name if isinstance(type_name, str) else " ".join(type_name)


def fit_narrowed(attrs: AttrsByType, workspace: Workspace, progress: Progress) -> None:
    """Prepare all narrowed attributes, before any is written."""
    for held in attrs.values():
        for rows in held.values():
            if isinstance(rows, NarrowedRows):
                rows.fit(workspace, progress)
