"""The arrays of the bundled snapshot of Debian 12, as `scripts/make_debian_packages.py` wrote them.

Lists of different lengths, such as the packages that each package names, are stored as an array of
lengths and an array of all values in a row: `count` and `values` below. Names are bytes with line
feeds between. This module uses NumPy alone. `DebianDataset` makes tensors of its arrays.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from khop.typing import Array, Int64Array


def arrays(*keys: str) -> list[Array]:
    """Read arrays of the snapshot, by their names in the file."""
    snapshot = importlib.resources.files("khop.datasets") / "snapshot" / "debian-12.npz"
    with snapshot.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return [archive[key] for key in keys]


def names(key: str) -> list[str]:
    """Read a list of names."""
    return arrays(key)[0].tobytes().decode("ascii").split("\n")


def rows(count: Array) -> Int64Array:
    """Return the row of each value, int64 [count.sum()], for rows of `count` values."""
    return np.repeat(np.arange(len(count), dtype=np.int64), count)


def relations() -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the relations between packages as edges, in order of source and destination.

    Returns:
        Declaring package, named package and code of the relation, each int64 [316108].
    """
    count, destination, code = arrays("edge_count", "edge_destination", "edge_kind")
    return rows(count), destination.astype(np.int64), code.astype(np.int64)


def splits() -> npt.NDArray[np.uint8]:
    """Return the split of each package, uint8 [63666]: 0 train, 1 validation, 2 test."""
    source, source_split = arrays("source", "source_split")
    split: npt.NDArray[np.uint8] = source_split[source]
    return split


def features() -> npt.NDArray[np.float32]:
    """Compute rows of TF-IDF times the singular vectors, float32 [63666, 128].

    Every operation works on one element at a time, in a fixed order: sums that NumPy or BLAS would
    reorder to suit the processor could differ in the last bit from one machine to the next.
    """
    count, term, idf, vector = arrays("term_count", "term", "term_idf", "term_vector")
    x = np.zeros((len(count), vector.shape[1]), np.float32)
    square = np.zeros(len(count), np.float32)
    for reached, terms in _by_position(count, term):
        x[reached] += idf[terms, None] * vector[terms].astype(np.float32)
        square[reached] += idf[terms] * idf[terms]
    norm = np.sqrt(square)
    norm[norm == 0] = 1
    x /= norm[:, None]
    return x


def _by_position(count: Array, values: Array) -> Iterator[tuple[npt.NDArray[np.intp], Array]]:
    """Yield for position 0, 1, ... the lists that reach it and what each has there."""
    start = np.cumsum(count, dtype=np.int64) - count
    for position in range(int(count.max())):
        reached = np.flatnonzero(count > position)
        yield reached, values[start[reached] + position]
