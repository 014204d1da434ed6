"""`python -m khop.rename`: conversion of a user's code to new spellings of khop's options.

The program changes keyword arguments in calls of classes and functions that a file imports from
khop, also through `functools.partial`. Positional arguments that have to be named now get names.
Names in dictionaries, f-strings and other texts stay as they are. By default it prints the changes,
with `--write` it makes them. `khop.renames` has the table. Imports no torch.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from khop.renames import POSITIONAL, RENAMED, Renamed


class _Edit(NamedTuple):
    """Replacement of text in a line of source code.

    `line` counts from 1. `begin` and `end` are byte offsets in the line.
    """

    line: int
    begin: int
    end: int
    text: str


def renamed(source: str) -> str:
    r"""Return source code with the new spellings of khop's options.

    Args:
        source: text of a Python file.

    Raises:
        SyntaxError: `source` is not Python.

    Example:
        >>> code = "from khop.distributed import DistNeighborLoader as D\nD(None, random_seed=3)\n"
        >>> print(renamed(code).splitlines()[1])
        D(None, seed=3)
    """
    tree = ast.parse(source)
    names = dict(_imported(tree))
    # Before Python 3.12 nodes in f-strings have positions of their own: they stay as they are.
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    in_texts = {id(node) for text in texts for node in ast.walk(text)}
    outside = [node for node in ast.walk(tree) if id(node) not in in_texts]
    edits = [edit for node in outside for edit in _edits(node, names)]
    # Lines as Python counts them: `str.splitlines` also divides at form feeds and U+2028.
    lines = [line.encode() for line in io.StringIO(source, newline="")]
    for edit in sorted(set(edits), reverse=True):
        line = lines[edit.line - 1]
        lines[edit.line - 1] = line[: edit.begin] + edit.text.encode() + line[edit.end :]
    return b"".join(lines).decode()


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (name, full name of the object) for each name that the code imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _whole_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return an expression's full name, such as 'khop.loader.Labor', from `names`, or ''."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = _whole_name(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _edits(node: ast.AST, names: dict[str, str]) -> Iterator[_Edit]:
    if not isinstance(node, ast.Call):
        return
    called, arguments = _whole_name(node.func, names), node.args
    if called == "khop.partition" and isinstance(node.func, ast.Attribute):
        end = node.func.end_col_offset or 0
        yield _Edit(node.func.end_lineno or 0, end, end, "_graph")
    if called == "functools.partial" and arguments:
        called, arguments = _whole_name(arguments[0], names), arguments[1:]
    if not called.startswith("khop.") or called.startswith("khop.glt"):
        return
    owner = called.rpartition(".")[2]
    changed = RENAMED.get(owner, {})
    for keyword in node.keywords:
        if keyword.arg in changed:
            assert keyword.arg is not None
            new, begin = changed[keyword.arg], keyword.col_offset
            if new.every_value and not _has_new(keyword.value, new):
                continue
            yield _Edit(keyword.lineno, begin, begin + len(keyword.arg.encode()), new.name)
            yield from _value_edits(keyword.value, new)
    kept, order = POSITIONAL.get(owner, (0, ()))
    if owner == "DistLinkNeighborLoader" and len(arguments) == 3:  # not a number: the call is new
        order = order if isinstance(arguments[2], ast.Constant) else ()
    starred = any(isinstance(argument, ast.Starred) for argument in arguments)
    if len(arguments) <= len(order) and not starred:
        for name, argument in zip(order[kept:], arguments[kept:], strict=False):
            new, begin = changed.get(name, Renamed(name)), argument.col_offset
            if new.every_value and not _has_new(argument, new):
                new = Renamed(name)
            yield _Edit(argument.lineno, begin, begin, f"{new.name}=")
            yield from _value_edits(argument, new)


def _has_new(value: ast.expr, new: Renamed) -> bool:
    return isinstance(value, ast.Constant) and value.value in list(new.values)


def _value_edits(value: ast.expr, new: Renamed) -> Iterator[_Edit]:
    """Yield the replacement of an argument's value, if the value has a new spelling."""
    if isinstance(value, ast.Constant) and _has_new(value, new):
        end, quoted = value.end_col_offset or 0, repr(new.values[value.value])
        if value.end_lineno == value.lineno:
            yield _Edit(value.lineno, value.col_offset, end, quoted.replace("'", '"'))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if a file cannot be read, else 0."""
    parser = argparse.ArgumentParser(prog="python -m khop.rename", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="Python files, or folders of them")
    parser.add_argument("--write", action="store_true", help="change the files")
    options = parser.parse_args(arguments)
    code = 0
    for path in options.paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            try:
                content = file.read_bytes()
                encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
                before = content.decode(encoding)
                after = renamed(before)
            except (OSError, UnicodeDecodeError, SyntaxError) as error:
                print(f"{file}: {error}", file=sys.stderr)
                code = 1
                continue
            if after == before:
                continue
            if options.write:
                file.write_bytes(after.encode(encoding))
                print(file)
            else:
                both = before.splitlines(True), after.splitlines(True)
                sys.stdout.writelines(difflib.unified_diff(*both, str(file), str(file)))
    return code


if __name__ == "__main__":
    sys.exit(main())
