"""Partitioning by an assignment that the user or another tool made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from khop.data.arrays import to_array
from khop.partition.base import MethodPartitioner
from khop.typing import NODE, ArrayLike, IntArray, NodeType


class AssignedPartitioner(MethodPartitioner):
    """Partitioner that takes the part of each node from the user.

    Args:
        *args, **kwargs: see `PartitionerBase`, and:
        owners: [num_nodes] integers, the part of each node. For a heterogeneous graph, {node type:
            [num_nodes] integers}. Or a folder with a file for each node type, `<type>.npy` or
            `<type>.txt` (one integer per line, as DistDGL's partitioning writes). Files of a
            homogeneous graph are `node.npy` or `node.txt`.

    Raises:
        ValueError: `owners` holds a part out of range, or not one integer per node.
        FileNotFoundError: a node type has no file.

    Example:
        >>> owners = [0, 0, 0, 1, 1, 1]
        >>> partitioner = AssignedPartitioner.from_data(data, path / "parts", 2, owners=owners)
        >>> partitioner.partition().node_types[0].bounds
        [0, 3, 6]
    """

    def _configure(
        self,
        owners: ArrayLike | Mapping[NodeType, ArrayLike] | str | os.PathLike[str] | None = None,
    ) -> None:
        if owners is None:
            raise ValueError("owners= must say the part of each node, or name a folder that does")
        if isinstance(owners, (str, os.PathLike)):
            owners = {t: _read(Path(owners), t) for t in self.source.nodes}
        elif not isinstance(owners, Mapping):
            if self.source.heterogeneous:
                raise TypeError("owners of a heterogeneous graph must be {node type: parts}")
            owners = {NODE: owners}
        self.owners = {t: self._checked(t, owners) for t in self.source.nodes}

    def _checked(self, node_type: NodeType, owners: Mapping[NodeType, ArrayLike]) -> IntArray:
        count = self.source.nodes[node_type].count
        if node_type not in owners:
            raise ValueError(f"owners names no parts for node type '{node_type}'")
        values, _ = to_array(owners[node_type], f"owners of node type '{node_type}'")
        if values.shape != (count,) or values.dtype.kind not in "iu":
            raise ValueError(
                f"owners of node type '{node_type}' must be {count} integers (got {values.dtype} "
                f"of shape {list(values.shape)})"
            )
        if count and not 0 <= int(values.min()) <= int(values.max()) < self.num_parts:
            raise ValueError(
                f"owners of node type '{node_type}' holds {int(values.min())} to "
                f"{int(values.max())}, but the parts are 0 to {self.num_parts - 1}"
            )
        return values.astype(np.int32)

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part that the user's `owners` has for each node: [num_nodes] integers."""
        return self.owners[node_type]


def _read(folder: Path, node_type: NodeType) -> IntArray:
    """Read [num_nodes] integers, the part of each node of a type, from a file in a folder.

    The file is `<type>.npy` or `<type>.txt`, or `node.*` for a homogeneous graph.
    """
    array, text = folder / f"{node_type}.npy", folder / f"{node_type}.txt"
    if array.exists():
        owners: IntArray = np.load(array, mmap_mode="r", allow_pickle=False)
        return owners
    if not text.exists():
        raise FileNotFoundError(
            f"{folder} has neither '{array.name}' nor '{text.name}', the part of each node of type "
            f"'{node_type}'"
        )
    try:
        return np.loadtxt(text, np.int64, ndmin=1)
    except ValueError as error:
        raise ValueError(f"{text} must have one integer on each line: {error}") from None
