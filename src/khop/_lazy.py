"""Lazy imports: packages whose names are imported when first used. Any process.

Server and sampler processes import `khop.distributed`, `khop.sampler` and others without torch. The
names that need torch are in modules that are only imported when such a name is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def attach(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: the package's `__name__`.
        names: public name -> module that defines it, relative to the package (with a leading
            dot: to its parent package). A name that equals its module is the module itself.
    """

    def __getattr__(name: str) -> Any:
        module = names.get(name)
        if module is None:
            raise AttributeError(
                f"module '{package}' has no attribute '{name}'{_suggestion(name, names)}"
            )
        loaded = importlib.import_module(f".{module}", package)
        return loaded if name == module else getattr(loaded, name)

    def __dir__() -> list[str]:
        return sorted(names)

    return __getattr__, __dir__, list(names)


def _suggestion(name: str, names: Iterable[str]) -> str:
    """Return words on the name that was probably meant, if there is one."""
    if name.startswith("_"):  # Python and tools ask for these
        return ""
    import difflib

    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f": did you mean '{close[0]}'?" if close else ""
