"""An example with khop's names in its imports, and the edits that the table has for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import khop.loader

# {module of PyG's: khop's, and the names that it has}
NAMES = {
    "torch_geometric.loader": ("khop.loader", khop.loader.__all__),
    "torch_geometric.data.lightning": (
        "khop.lightning",
        ["LightningNodeData", "LightningLinkData"],
    ),
}


def with_khop(source: str) -> str:
    """Return a script whose imports take from khop what khop has.

    Raises:
        ValueError: there is no such import.
    """
    lines, changed = source.splitlines(keepends=True), 0
    for node in reversed(ast.parse(source).body):
        if not isinstance(node, ast.ImportFrom) or node.module not in NAMES:
            continue
        module, names = NAMES[node.module]
        moved = [alias for alias in node.names if alias.name in names]
        kept = [alias for alias in node.names if alias.name not in names]
        statements = [(module, moved), (node.module, kept)]
        lines[node.lineno - 1 : node.end_lineno] = [
            ast.unparse(ast.ImportFrom(name, aliases, 0)) + "\n"
            for name, aliases in statements
            if aliases
        ]
        changed += len(moved)
    if not changed:
        raise ValueError("the script imports nothing that khop has")
    return "".join(lines)


def edited(source: str, edits: Iterable[tuple[str, str]]) -> str:
    """Return a script with its edits; raise ValueError for one that matches nothing."""
    for pattern, replacement in edits:
        source, count = re.subn(pattern, replacement, source)
        if count == 0:
            raise ValueError(f"the script has nothing that matches {pattern!r}")
    return source
