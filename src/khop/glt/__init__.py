"""GraphLearn-for-PyTorch's names over khop: `import khop.glt as glt`.

Scripts for GraphLearn-for-PyTorch (GLT) 0.2.4 run with their import changed, or unchanged after
`khop.glt.install()`, which lets `import graphlearn_torch` find this package. Modules, names,
arguments and attributes of batches are GLT's; what draws and moves data is khop. khop itself knows
nothing of this package. `docs/migrate-from-glt.md` says what behaves differently.

Names of GLT's that are not here: those of Vineyard and of tables (`TableDataset`, ...), which need
services of Alibaba's, and those of its RPC and its sampling producers, which khop replaces whole.
"""

import importlib
import sys
from typing import Any

from khop._lazy import attach

_MODULES = ("channel", "data", "distributed", "loader", "partition", "sampler", "typing", "utils")
_TYPES = (
    "EDGE_TYPE_STR_SPLIT",
    "EdgeIndexTensor",
    "EdgeType",
    "FeaturePartitionData",
    "GraphPartitionData",
    "HeteroFeaturePartitionData",
    "HeteroGraphPartitionData",
    "InputEdges",
    "InputNodes",
    "NodeIndex",
    "NodeLabel",
    "NodeType",
    "NumNeighbors",
    "Seeds",
    "Split",
    "TensorDataType",
    "as_str",
    "reverse_edge_type",
)

__getattr__, __dir__, _names = attach(
    __name__, {**{name: name for name in _MODULES}, **dict.fromkeys(_TYPES, "typing")}
)
__all__ = [*_names, "install"]  # noqa: PLE0604


def install(name: str = "graphlearn_torch") -> Any:
    """Let `import graphlearn_torch` find this package, and return it.

    Call it before the first such import; processes that a script spawns need the call, too.

    Args:
        name: the name to be found under.

    Raises:
        ImportError: another package of this name has been imported.

    Example:
        >>> glt = install()
        >>> from graphlearn_torch.data import Topology
        >>> Topology is glt.data.Topology
        True
    """
    package = sys.modules[__name__]
    if sys.modules.setdefault(name, package) is not package:
        raise ImportError(
            f"'{name}' has been imported from elsewhere: call khop.glt.install() before that"
        )
    for module in _MODULES:
        sys.modules[f"{name}.{module}"] = importlib.import_module(f"{__name__}.{module}")
    return package
