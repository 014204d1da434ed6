"""Lazy imports: packages whose names are imported when first used. Any process.

Servers and samplers import `khop.distributed`, `khop.sampler` and other packages without torch. A
name that needs torch is in a module that is imported when the name is first used.

Each of these packages has a stub, `__init__.pyi`, which imports every public name from the module
that defines it. `attach`, type checkers and editors read the stub.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def attach(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package that imports names lazily.

    Args:
        package: the package's `__name__`.
        file: the package's `__file__`, beside its stub `__init__.pyi`, which consists of lines
            `from MODULE import NAME as NAME`. If MODULE is the package itself, NAME is a module.
    """
    modules = _imports_of(Path(file).with_name("__init__.pyi"))

    def __getattr__(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            raise AttributeError(
                f"module '{package}' has no attribute '{name}'{_suggestion(name, modules)}"
            )
        if module == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(module), name)

    def __dir__() -> list[str]:
        return sorted(modules)

    return __getattr__, __dir__, list(modules)


def _imports_of(stub: Path) -> dict[str, str]:
    """Return {public name: module that defines it} from a package's stub file."""
    return {
        imported.asname or imported.name: str(statement.module)
        for statement in ast.parse(stub.read_text("utf-8")).body
        if isinstance(statement, ast.ImportFrom)
        for imported in statement.names
    }


def _suggestion(name: str, names: Iterable[str]) -> str:
    """Return ": did you mean ...?" with the most similar of `names`, or '' if none is similar."""
    if name.startswith("_"):  # Python and tools test for such names
        return ""
    import difflib

    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f": did you mean '{close[0]}'?" if close else ""
