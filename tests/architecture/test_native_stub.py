"""`_native.pyi` says of the extension module what the module says of itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import khop
from khop import _native

STUB = ast.parse((Path(khop.__file__).parent / "_native.pyi").read_text())
OF_CUDA = ("cuda_device", "cuda_stream")
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def of_stub(body: list[ast.stmt]) -> dict[str, set[tuple[Any, ...]]]:
    """Functions of a module or class: signatures of each name."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, set()).add(described(node))
    return found


def described(node: ast.FunctionDef) -> tuple[tuple[str, bool], ...]:
    """Names of parameters, and whether each has a default."""
    parameters = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    required = len(parameters) - len(node.args.defaults)
    return tuple((name, i >= required) for i, name in enumerate(parameters) if name != "self")


def of_module(owner: Any) -> dict[str, set[tuple[Any, ...]]]:
    """The same of nanobind's signatures; a property is a function of no parameters."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    for name, value in vars(owner).items():
        function = value.fget if isinstance(value, property) else value
        for signature, _, _ in getattr(function, "__nb_signature__", ()):
            text = re.sub(r"(ndarray|ArrayLike)\[[^\]]*\]", "Any", signature)
            text = re.sub(r"\\\d+", "...", text).replace("def (", "def f(")
            (node,) = ast.parse(f"{text}: ...").body
            assert isinstance(node, ast.FunctionDef)
            found.setdefault(name, set()).add(described(node))
    return found


@pytest.mark.parametrize("owner", [None, *CLASSES])
def test_signatures(owner: str | None) -> None:
    stub = of_stub(STUB.body if owner is None else CLASSES[owner].body)
    native = of_module(_native if owner is None else getattr(_native, owner))
    if owner is None and "cuda_device" not in native:  # built without CUDA
        stub = {name: found for name, found in stub.items() if name not in OF_CUDA}
    assert stub == native


def test_classes() -> None:
    """All of them, but NamedTuples and protocols that only type checkers see."""
    native = {name for name, value in vars(_native).items() if isinstance(value, type)}
    assert native == {name for name, node in CLASSES.items() if not node.bases}
