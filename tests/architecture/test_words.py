"""The project's word rules hold for docstrings, comments, names and pages; see CONTRIBUTING.md."""

from __future__ import annotations

from pathlib import Path

import pytest

import khop
from support.words import REPOSITORY, Finding, check, check_docstring, check_text

CHECKED = [
    Path(khop.__file__).parent,
    *(
        REPOSITORY / name
        for name in (
            *("docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "kernels/README.md"),
            *("examples", "benchmarks/khop_bench", "benchmarks/README.md", "tests/soak"),
        )
    ),
]


@pytest.mark.parametrize("root", CHECKED, ids=lambda root: root.name)
def test_words(root: Path) -> None:
    assert [str(finding) for finding in check([root])] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Read 4 bytes an edge.", "'a' for 'per'"),
        ("Take the rows and those of others.", "'those' without a noun"),
        ("Send it; wait.", "semicolon in running text"),
        ("Servers that owe a reply.", "banned word (is due, is missing)"),
        (" ".join(["word"] * 26) + ".", "sentence of 26 words"),
    ],
)
def test_a_broken_rule_is_found(text: str, rule: str) -> None:
    assert [finding.rule for finding in check_text(Path("page.md"), 1, text)] == [rule]


def test_code_counts_as_one_word() -> None:
    assert list(check_text(Path("page.md"), 1, "Call `a; those of b(1, 2)` " + "word " * 23)) == []


def test_docstrings_begin_with_neither_pronoun_nor_question() -> None:
    def first(text: str) -> list[Finding]:
        return list(check_docstring(Path("a.py"), 1, text, opening=True))

    assert [finding.line for finding in first("It is read.") + first("Who reads.")] == [1, 1]
    assert first("Reader of rows.") == []
