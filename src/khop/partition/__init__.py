"""Partitioners: tools that cut a graph, once, into the folders of `khop.storage`.

`khop partition` or a user's script runs them before training. Imports no torch.
`khop.partition_graph(data, "parts", num_parts=2)` cuts a graph in one call.

`base` has the steps that all partitioners share, `cut` and `recut` the functions that users call,
`source` their input. `methods` assigns nodes to parts, `writing` writes the parts, `out_of_core`
keeps both within memory and disk. `report` counts and verifies. `formats` converts other systems'
folders.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from khop._lazy import attach

if TYPE_CHECKING:
    from khop.partition.summary import FolderSummary

__getattr__, __dir__, __all__ = attach(__name__, __file__)


class _Package(ModuleType):
    """Module that can be called, a deprecated spelling of `khop.partition_graph`."""

    def __call__(self, *args: Any, **kwargs: Any) -> "FolderSummary":
        """Cut a graph, as `partition_graph`."""
        from khop.partition.cut import partition_graph
        from khop.renames import warn_of_old_name

        warn_of_old_name("khop.partition(...) is called khop.partition_graph(...) now")
        return partition_graph(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
