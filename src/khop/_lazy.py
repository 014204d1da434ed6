"""Packages whose names are imported when first used.

Server and sampler processes import `khop.distributed`, `khop.sampler` and others without torch; the
names that need torch are in modules which only load when such a name is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attach(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` for a package.

    Args:
        package: the package's `__name__`.
        names: public name -> module that defines it, relative to the package (one more dot in
            front: to the package around it). A name that equals its module is the module itself.
    """

    def __getattr__(name: str) -> Any:
        module = names.get(name)
        if module is None:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        loaded = importlib.import_module(f".{module}", package)
        return loaded if name == module else getattr(loaded, name)

    def __dir__() -> list[str]:
        return sorted(names)

    return __getattr__, __dir__, list(names)
