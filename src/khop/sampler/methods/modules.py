"""Modules of users' methods: other processes know a class once they import the module of it.

A trainer sends its own processes the name of the module. Graph servers import what they were
started with, and nothing that a client names. Imports no torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from khop.sampler.methods.base import METHODS, MethodSpec, SamplingMethod


def modules_of(spec: MethodSpec) -> list[str]:
    """Return the modules that another process has to import to know a method; khop's own: none.

    Raises:
        ValueError: the class is defined in the script that runs, in a notebook or in a function,
            where no other process finds it.
    """
    kind = METHODS[spec.name]
    module = kind.__module__
    if module.startswith("khop."):
        return []
    is_script = module in ("__main__", "__mp_main__")
    if is_script or _attribute(module, kind.__qualname__) is not kind:
        where = "the script or notebook that runs" if is_script else f"no module: '{module}'"
        raise ValueError(
            f"the class {kind.__qualname__} is defined in {where}, where sampler processes cannot "
            "import it: put it into a module, at the top level of a .py file, and import it from "
            "there"
        )
    return [module]


def _attribute(module: str, path: str) -> type[SamplingMethod] | None:
    """Return what is at a path of names in a module; None if nothing is."""
    found = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found  # type: ignore[return-value]


def import_methods(modules: Sequence[str]) -> None:
    """Import modules, so that the methods that they register are known here.

    Raises:
        ValueError: a name that is not one of a module, or a module without methods.
        ImportError: a module, or what it imports, is not found.
    """
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(
                f"methods: '{module}' is no name of a module: write my_package.methods for "
                "my_package/methods.py"
            )
        before = len(METHODS)
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ImportError(
                f"methods: cannot import '{module}': {error}. Install it where this process runs, "
                "or name the folder that it is in: PYTHONPATH=/absolute/folder"
            ) from error
        own = [k for k in METHODS.values() if f"{k.__module__}.".startswith(f"{module}.")]
        if not own and len(METHODS) == before:
            raise ValueError(
                f"methods: the module '{module}' registers no sampling method: decorate its "
                "classes with @khop.sampler.register"
            )
