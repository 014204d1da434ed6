"""Random partitioning: balanced, independent of the graph's structure."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from khop import _native
from khop.partition.base import MethodPartitioner
from khop.typing import IntArray, NodeType

# Nodes that are assigned at a time: bounds the extra memory.
_STEP = 1 << 20


class RandomPartitioner(MethodPartitioner):
    """Partitioner that assigns nodes at random, in parts whose sizes differ by at most one.

    The cut depends on `seed` and the numbers of nodes alone. Arguments: see `PartitionerBase`.

    Example:
        >>> RandomPartitioner.from_data(data, path / "parts", num_parts=2).partition().num_parts
        2
    """

    def assign_nodes(self, node_type: NodeType) -> IntArray:
        """Return the part of each node: [num_nodes] int32, balanced and at random."""
        count = self.source.nodes[node_type].count
        return random_owners(node_type, count, self.num_parts, self.seed)

    def identity(self) -> dict[str, Any]:
        return self.describe()


def random_owners(node_type: NodeType, count: int, num_parts: int, seed: int) -> IntArray:
    """Return [count] int32 part of each node: balanced, and random by `seed` and node type."""
    key = _native.run_key(seed, 0, zlib.crc32(node_type.encode()))
    order = _native.permutation(count, key)
    owners = np.empty(count, np.int32)
    for first in range(0, count, _STEP):
        step = order[first : first + _STEP]
        owners[step] = np.arange(first, first + len(step)) % num_parts
    return owners
