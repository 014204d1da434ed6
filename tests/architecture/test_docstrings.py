"""Docstrings name or command: they do not begin with a question word."""

from __future__ import annotations

import ast
from pathlib import Path

import khop

ROOT = Path(khop.__file__).parent
QUESTIONS = {"what", "where", "when", "who", "whom", "whose", "which", "why", "how", "whether"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def first_word(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    words = (ast.get_docstring(node) or "").split()
    return words[0].strip("\"'`,.:").lower() if words else ""


def test_docstrings_begin_with_no_question_word() -> None:
    riddles = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, DOCUMENTED) and first_word(node) in QUESTIONS
    ]
    assert riddles == []


def test_the_first_word_is_found() -> None:
    module = ast.parse('def f():\n    """`Who` does it."""\n')
    assert first_word(module.body[0]) == "who"  # type: ignore[arg-type]
    assert first_word(module) == ""
