"""khop: a distributed neighbour loader for PyTorch Geometric.

Partition a graph into folders once, load one folder per machine, and train with loaders that return
PyG `Data` batches through shared memory. `khop.loader.NeighborLoader` replaces PyG's loader for a
graph in memory. `khop.distributed.DistNeighborLoader` does the same over many machines.

Importing khop imports no torch: names are imported when first used.
"""

from typing import Any

from khop._lazy import attach
from khop._version import __version__ as __version__

_attribute, __dir__, __all__ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a public module when it is first used.

    Raises:
        AttributeError: there is none. For a class, the message names the module that has it.
    """
    try:
        return _attribute(name)
    except AttributeError as error:
        # Only for classes: Python also calls this for submodules, before it imports them.
        for module in ("loader", "distributed", "sampler", "data") if name[:1].isupper() else ():
            if name in _attribute(module).__all__:
                raise AttributeError(f"{error}: it is khop.{module}.{name}") from None
        raise
