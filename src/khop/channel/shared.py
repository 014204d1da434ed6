"""Read-only arrays shared by several processes: written once into a memfd, mapped by each.

Used by trainers, samplers, receivers and graph servers. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from khop.channel.arena import create_memory, map_memory
from khop.channel.message import ArraySpec, Block, read_block
from khop.typing import Array


def share(arrays: Mapping[str, Array]) -> int:
    """Copy arrays into new memory and return its descriptor, to be passed on and closed."""
    specs = [ArraySpec(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    block = Block(specs)
    memory = create_memory(block.nbytes, "khop-shared")
    written = block.write(memoryview(map_memory(memory))[: block.nbytes])
    for name, array in arrays.items():
        np.copyto(written[name], array)
    return memory


def read_shared(descriptor: int) -> dict[str, Array]:
    """Map arrays that `share` wrote. The mapping outlives the descriptor."""
    raw = np.frombuffer(map_memory(descriptor), np.uint8)
    arrays, _ = read_block(raw)
    return {name: array for name, (array, _) in arrays.items()}
