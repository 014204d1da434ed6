"""Docstrings name or command: they do not begin with a question word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import khop

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("benchmarks/khop_bench", "tests/soak")
ROOTS = [Path(khop.__file__).parent, *(REPOSITORY / folder for folder in FOLDERS)]
QUESTIONS = {"what", "where", "when", "who", "whom", "whose", "which", "why", "how", "whether"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def first_word(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    words = (ast.get_docstring(node) or "").split()
    return words[0].strip("\"'`,.:").lower() if words else ""


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """A module and all statements in it; expressions, which hold none, are left out."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def test_docstrings_begin_with_no_question_word() -> None:
    riddles = [
        f"{path.relative_to(root.parent)}:{getattr(node, 'lineno', 1)}"
        for root in ROOTS
        for path in sorted(root.rglob("*.py"))
        for node in statements(ast.parse(path.read_text()))
        if isinstance(node, DOCUMENTED) and first_word(node) in QUESTIONS
    ]
    assert riddles == []


def test_the_first_word_is_found() -> None:
    module = ast.parse('def f():\n    """`Who` does it."""\n')
    assert first_word(module.body[0]) == "who"  # type: ignore[arg-type]
    assert first_word(module) == ""
