"""Modules of users' methods: other processes know a class once they import its module.

A trainer sends its own processes the name of the module. Graph servers import the modules that they
were started with, and none that a client names, even if it is installed. Imports no torch.
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
"""Packages of sampling methods that are installed. Servers are started with their names."""


def modules_named(names: Sequence[str]) -> list[str]:
    """Return the modules that names of methods stand for, without importing them.

    Args:
        names: modules, or names that installed packages register for their methods (group
            `khop.methods`).

    Raises:
        PluginError: several packages register the same name.
    """
    return [PACKAGES.module_of(name) or name for name in names]


def modules_of(spec: MethodSpec) -> list[str]:
    """Return the modules that another process must import for a method, none for khop's own.

    Raises:
        ValueError: the class is defined in the script that runs, in a notebook or in a function,
            where no other process finds it.
    """
    method = METHODS[spec.name]
    module = method.__module__
    if module.startswith("khop."):
        return []
    is_script = module in ("__main__", "__mp_main__")
    defined: object = sys.modules.get(module)
    for name in method.__qualname__.split("."):
        defined = getattr(defined, name, None)
    if is_script or defined is not method:
        where = "the script or notebook that runs" if is_script else f"no module: '{module}'"
        raise ValueError(
            f"the class {method.__qualname__} is defined in {where}, where sampler processes "
            "cannot import it: put it into a module, at the top level of a .py file, and import it "
            "from there"
        )
    return [module]


def import_methods(modules: Sequence[str]) -> None:
    """Import modules, so that the methods that they register are known here.

    Raises:
        ValueError: a text that is no name of a module, or a module without methods.
        ImportError: a module, or one of its imports, is not found.
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
