"""Public names: stubs that agree with the modules, and types that users can import."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import khop

ROOT = Path(khop.__file__).parent
STUBS = sorted(ROOT.rglob("__init__.pyi"))
PUBLIC = [
    *("data", "datasets", "distributed", "errors", "lightning", "loader", "metrics"),
    *("nn", "numa", "optim", "partition", "plot", "sampler", "sources", "stats", "trace", "typing"),
]
"""Packages and modules that `docs/reference` documents, without `khop.log`, whose one public name
is a function of plain types."""

RECEIVED = {
    *("ClientContext", "EpochIterator", "FolderMeta", "GraphTensor", "NodeOutputs", "Pull"),
    *("Push", "ReadOnlyTensor", "ServerContext", "TrainerContext", "WorkerContext"),
}
"""Classes whose instances users get from khop and never construct."""

# Annotations name bounds and units that are checked (`khop.codec`), which are no types.
_BOUNDS = ("khop.codec", "khop._native")


def package_of(stub: Path) -> ModuleType:
    """The package that a stub is of."""
    return importlib.import_module(".".join(stub.parent.relative_to(ROOT.parent).parts))


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_every_name_of_a_stub_is_where_the_stub_says(stub: Path) -> None:
    package = package_of(stub)
    for statement in ast.parse(stub.read_text()).body:
        assert isinstance(statement, ast.ImportFrom), f"line {statement.lineno} is no import"
        for name in statement.names:
            # Without 'as' a type checker takes the name for a private one.
            assert name.asname == name.name
            assert name.name in package.__all__
            assert getattr(package, name.name) is not None
            assert statement.level == 0


def test_packages_without_torch_have_stubs() -> None:
    lazy = {p.parent for p in ROOT.rglob("__init__.py") if "attach(__name__" in p.read_text()}
    assert lazy == {stub.parent for stub in STUBS}


def names_of(module: ModuleType) -> list[str]:
    """Public names of a package, or of a module that has no `__all__`."""
    own = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", module.__name__) == module.__name__
        or module.__name__ == "khop.typing"
    ]
    return [name for name in getattr(module, "__all__", own) if not name.startswith("_")]


@functools.cache
def bindings(module: str) -> dict[str, tuple[str, str]]:
    """{name: (module, name) that it was imported from, or itself} of a module of khop's."""
    path = Path(inspect.getfile(importlib.import_module(module)))
    stub = path.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else path).read_text())
    found = {
        imported.asname or imported.name: (str(node.module), imported.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for imported in node.names
    }
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {t.id: (module, t.id) for t in targets if isinstance(t, ast.Name)}
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found[node.name] = (module, node.name)
    return found


def origin(module: str, name: str) -> tuple[str, str]:
    """Where a name of a module was defined."""
    if not module.startswith("khop"):
        return module, name
    source = bindings(module).get(name, (module, name))
    return source if source == (module, name) else origin(*source)


def signatures() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(name, function) of all functions and methods that the reference documents.

    A method whose docstring has `:meta private:` is for khop's other packages, and the reference
    leaves it out.
    """
    for package in PUBLIC:
        module = importlib.import_module(f"khop.{package}")
        for name in names_of(module):
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{package}.{name}", value
            elif inspect.isclass(value):
                for member, function in methods(value):
                    yield f"{package}.{name}.{member}", function


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public methods and properties of a class and of its bases in khop."""
    for member in dir(cls):
        if member.startswith("_") and member not in ("__init__", "__iter__", "__getitem__"):
            continue
        if member == "__init__" and cls.__name__ in RECEIVED:
            continue
        value = inspect.getattr_static(cls, member)
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not inspect.isfunction(function) or not function.__module__.startswith("khop."):
            continue
        if ":meta private:" not in (function.__doc__ or ""):
            yield member, function


def test_types_of_public_signatures_can_be_imported() -> None:
    public = {
        origin(f"khop.{package}", name)
        for package in PUBLIC
        for name in names_of(importlib.import_module(f"khop.{package}"))
    }
    missing: dict[str, set[str]] = {}
    for where, function in signatures():
        known = bindings(function.__module__)
        for annotation in getattr(function, "__annotations__", {}).values():
            parsed = ast.walk(ast.parse(annotation, mode="eval")) if annotation else ()
            for node in parsed:
                if not isinstance(node, ast.Name) or node.id not in known:
                    continue
                module, name = origin(*known[node.id])
                if isinstance(getattr(importlib.import_module(module), name, None), TypeVar):
                    continue
                if not module.startswith("khop") or module in _BOUNDS or name.isupper():
                    continue
                if (module, name) not in public and not name.startswith("_"):
                    missing.setdefault(f"{module}.{name}", set()).add(where)
    assert missing == {}, "\n".join(f"{k}: {sorted(v)[:4]}" for k, v in sorted(missing.items()))
