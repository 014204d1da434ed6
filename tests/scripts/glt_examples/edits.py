"""Edits of GLT's scripts: the import, and CPUs where they name GPUs.

An edit is a pattern and its replacement; one of an example's own that its script lacks is an
error, so that none is kept without need.
"""

from __future__ import annotations

import re
from pathlib import Path

Edit = tuple[str, str]

IMPORT: tuple[Edit, ...] = (
    (r"^(\s*)import graphlearn_torch as glt", r"\1import khop.glt as glt"),
    (r"^(\s*)from graphlearn_torch", r"\1from khop.glt"),
)

CPU: tuple[Edit, ...] = (
    (r"torch\.cuda\.device_count\(\)", "2"),
    (r"torch\.cuda\.(set_device|synchronize)\([^()]*\)", "None"),
    (
        r"torch\.device\(f?'cuda[^']*'(, [^()]*)?( if [^()]*\(\) else 'cpu')?\)",
        "torch.device('cpu')",
    ),
    (r"torch\.device\((local_proc_rank|current_ctx\.rank|rank)[^()]*\)", "torch.device('cpu')"),
    (r"'nccl'", "'gloo'"),
    (r",\s*device_ids=\[[^\]]*\]( if with_gpu else None)?", ""),
    (r"\.to\((rank|0)\)", ".to('cpu')"),
    (r"device='cuda:\d'|device=0(?=\))", "device='cpu'"),
)

# GLT's tests join processes and do not look at how they ended.
CHECKED_ENDS: tuple[Edit, ...] = (
    (
        r"^(\s*)(w\d|sproc|cproc|(?:server|client)\d)\.join\(\)",
        r"\1\2.join(120); assert \2.exitcode == 0, \2.exitcode",
    ),
)

# Parts for 'in' whose edges are at their sources: no such test is run, but all tests make them.
NO_PARTS_FOR_IN: tuple[Edit, ...] = (
    (r"(in_hetero_dataset\d = )_prepare_hetero_dataset\(rank=\d, edge_dir='in'\)", r"\1None"),
)


def apply(text: str, edits: tuple[Edit, ...]) -> str:
    """Return a script with edits applied."""
    for pattern, replacement in edits:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def edit_tree(root: Path, edits: tuple[Edit, ...]) -> None:
    """Apply edits to all scripts of a folder."""
    for path in root.rglob("*.py"):
        path.write_text(apply(path.read_text(), edits))


def edit_file(path: Path, edits: tuple[Edit, ...]) -> None:
    """Apply edits to one script.

    Raises:
        ValueError: a pattern is not in it.
    """
    text = path.read_text()
    for edit in edits:
        changed = apply(text, (edit,))
        if changed == text:
            raise ValueError(f"{path.name} has nothing like {edit[0]!r}")
        text = changed
    path.write_text(text)
