"""Modules of users' methods: other processes know a class once they import the module of it.

A trainer sends its own processes the name of the module. Graph servers import what they were
started with, and nothing that a client names: not even what is installed beside them. Imports no
torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from khop.plugins import Registry, subclass_of
from khop.sampler.methods.base import METHODS, MethodSpec, SamplingMethod

PACKAGES: Registry[type[SamplingMethod]] = Registry(
    "khop.methods", {}, subclass_of(SamplingMethod), "package of methods"
)
"""Packages of sampling methods that are installed; servers are started with their names."""


def modules_named(names: Sequence[str]) -> list[str]:
    """Return the modules that the names of a server's methods stand for; imports nothing.

    Args:
        names: names that installed packages give to their methods (group `khop.methods`), or
            modules, as whoever starts the server gave them.

    Raises:
        PluginError: several packages have a name.
    """
    return [PACKAGES.module_of(name) or name for name in names]


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
                "my_package/methods.py, or the name of an installed package's methods "
                f"({PACKAGES.names()})"
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
