"""`install`: import of `khop.glt` by the name of GLT's package. Imports no torch by itself."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


def install(name: str = "graphlearn_torch") -> ModuleType:
    """Let `import graphlearn_torch` find this package, and return it.

    Call it before the first such import. Processes that a script spawns need the call, too.

    Args:
        name: name by which scripts import the package.

    Raises:
        ImportError: another package of this name has been imported.

    Example:
        >>> glt = install()
        >>> from graphlearn_torch.data import Topology
        >>> Topology is glt.data.Topology
        True
    """
    package = importlib.import_module("khop.glt")
    if sys.modules.setdefault(name, package) is not package:
        raise ImportError(
            f"'{name}' has been imported from elsewhere: call khop.glt.install() before that"
        )
    for module in package.__all__:
        if isinstance(getattr(package, module), ModuleType):
            sys.modules[f"{name}.{module}"] = getattr(package, module)
    return package
