"""Rules of kernels/: one include root, a namespace for each folder, a table of operations."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
README = KERNELS / "README.md"
SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}
NAMESPACES = {
    "khop/core": "khop",
    "khop/cpu": "khop::cpu",
    "khop/device": "khop::device",
    "khop/device/steps": "khop::device",
    "khop/cuda": "khop::cuda",
    "khop/bindings": "khop::bindings",
    "floor": "khop::floor",
}
OPERATIONS = [
    *("sample", "merge", "induce", "reverse", "gather", "convert", "edges", "negatives"),
    *("hotness", "weights", "times", "owner split", "edge split", "LABOR", "walk"),
]
# It holds nothing but nanobind's entry point, which names its namespace itself.
ENTRY = "khop/bindings/module.cpp"
SOURCES = sorted(
    str(path.relative_to(KERNELS)) for path in KERNELS.rglob("*") if path.suffix in SUFFIXES
)


def text_of(source: str) -> str:
    return (KERNELS / source).read_text()


def table() -> dict[str, list[str]]:
    """Cells of the table of operations, by operation."""
    rows = {}
    for line in README.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0] != "operation" and not cells[0].startswith("-"):
            rows[cells[0]] = cells[1:]
    return rows


def test_every_source_lies_in_a_folder_of_the_readme():
    assert {str(Path(source).parent) for source in SOURCES} == set(NAMESPACES)
    text = README.read_text()
    assert [folder for folder in NAMESPACES if f"`{folder}/`" not in text] == []


def test_includes_are_rooted():
    """Every include in quotes is the path of a file from kernels/."""
    wrong = [
        (source, path)
        for source in SOURCES
        for path in re.findall(r'^#include "([^"]+)"', text_of(source), re.MULTILINE)
        if path not in SOURCES
    ]
    assert wrong == []


def test_namespace_is_that_of_the_folder():
    """All namespaces that a file opens are the folder's, or lie within it."""
    for source in SOURCES:
        wanted = NAMESPACES[str(Path(source).parent)]
        opened = re.findall(r"^namespace ([\w:]+) \{", text_of(source), re.MULTILINE)
        others = [name for name in opened if not f"{name}::".startswith(f"{wanted}::")]
        assert (source, others) == (source, [])
        assert source == ENTRY or wanted in {name[: len(wanted)] for name in opened}, source


def test_prefetches_are_kept():
    """GCC drops calls of functions that do nothing but `__builtin_prefetch`."""
    ours = [source for source in SOURCES if source.startswith("khop/")]
    found = [s for s in ours if "__builtin_prefetch" in text_of(s)]
    assert found == ["khop/cpu/prefetch.hpp"]


def test_one_definition_of_a_name_in_a_namespace():
    """No two headers of a namespace define a type of the same name."""
    defined: dict[tuple[str, str], list[str]] = {}
    for source in SOURCES:
        if Path(source).suffix not in {".hpp", ".cuh"}:
            continue
        namespace = NAMESPACES[str(Path(source).parent)]
        text = text_of(source)
        for name in re.findall(r"^(?:class|struct|enum class) (\w+)[^;\n]*\{", text, re.MULTILINE):
            defined.setdefault((namespace, name), []).append(source)
    assert {name: found for name, found in defined.items() if len(found) > 1} == {}


def test_the_table_has_the_operations():
    assert [name for name in OPERATIONS if name not in table()] == []


def test_paths_of_the_readme_exist():
    """Those of the table and of the text; kernels' own are from kernels/, others from the root."""
    paths = re.findall(r"`((?:khop|tests|src|floor)/[\w/.]+)`", README.read_text())
    assert len(paths) > 80
    missing = [
        path for path in paths if not (KERNELS / path).exists() and not (ROOT / path).exists()
    ]
    assert missing == []
