"""khop: a distributed neighbour loader for PyTorch Geometric.

Partition a graph into folders once, load one folder per machine, and train with loaders that return
PyG `Data` batches through shared memory. `khop.loader.NeighborLoader` replaces PyG's in memory;
`khop.distributed.DistNeighborLoader` does the same over many machines.

Importing khop imports no torch: names are imported when first used.
"""

from khop._lazy import attach
from khop._version import __version__

__getattr__, __dir__, _names = attach(
    __name__,
    {
        name: name
        for name in (
            "channel",
            "data",
            "datasets",
            "distributed",
            "errors",
            "lightning",
            "loader",
            "log",
            "metrics",
            "partition",
            "plot",
            "storage",
            "sampler",
            "stats",
            "trace",
            "typing",
        )
    },
)
__all__ = [*_names, "__version__"]  # noqa: PLE0604
