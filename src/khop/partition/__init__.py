"""Partitioners: tools that cut a graph, once, into the folders of `khop.storage`.

`khop partition` or a user's script runs them before training. Imports no torch.
`khop.partition_graph(data, "parts", num_parts=2)` cuts a graph in one call.

`base` has the steps that all partitioners share. `cut` and `recut` have the functions that users
call. `source` describes the input graph. `methods` assigns nodes to parts, and `writing` writes the
parts. `out_of_core` bounds the memory and disk of both. `report` counts remote rows and verifies
folders. `formats` converts folders of other systems.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from khop._lazy import attach

if TYPE_CHECKING:
    from khop.partition.summary import FolderSummary

__getattr__, __dir__, __all__ = attach(__name__, __file__)


class _Package(ModuleType):
    """Type of the module `khop.partition`, so that the module can be called.

    A call is a deprecated spelling of `khop.partition_graph`.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> "FolderSummary":
        """Call `partition_graph`, with a warning that this spelling is deprecated."""
        from khop.partition.cut import partition_graph
        from khop.renames import warn_of_old_name

        warn_of_old_name("khop.partition(...) is called khop.partition_graph(...) now")
        return partition_graph(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
