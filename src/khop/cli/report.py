"""The summary of a partition folder as text."""

from __future__ import annotations

from collections.abc import Sequence

from khop.log import printable
from khop.partition.summary import FolderSummary, balance


def print_summary(summary: FolderSummary) -> None:
    """Print the summary with which `khop partition` ends, and that `khop inspect` shows."""
    width = max(len(name) for name, _ in _lines(summary))
    for name, text in _lines(summary):
        print(f"{name:<{width}}  {printable(text)}")  # names in a folder are not trusted


def human_bytes(count: float) -> str:
    """Format a number of bytes in a unit that fits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _lines(summary: FolderSummary) -> list[tuple[str, str]]:
    lines = [
        ("folder", summary.root),
        ("size", human_bytes(summary.bytes)),
        ("method", _method(summary)),
        ("parts", f"{len(summary.nodes)}, neighbours drawn '{summary.edge_dir}'"),
        ("nodes", _counts(summary.node_types) + _spread(summary.nodes)),
        ("edges", _counts(summary.edge_types) + _spread(summary.edges)),
    ]
    if summary.times is not None:
        lines.append(("times", "'{attr}' of {level}s, rows sorted by them".format(**summary.times)))
    if summary.weights is not None:
        lines.append(("weights", f"'{summary.weights}' of edges"))
    if summary.neighbor_ids:
        lines.append(("neighbour ids", "original ones beside the new"))
    if summary.train_seeds is not None:
        lines.append(
            ("training seeds", f"{sum(summary.train_seeds):,}" + _spread(summary.train_seeds))
        )
    if any(summary.cached):
        lines.append(("cached rows", f"{max(summary.cached):,} in the part with most"))
    lines.append(("edge cut", f"{summary.edge_cut:.1%} of the edges lead to another part"))
    shares = summary.mean_shares
    if shares is None:
        lines.append(("expected rows", "shares are known with --method frequency only"))
    else:
        text = ", ".join(f"{share:.1%} {kind}" for kind, share in shares.items())
        lines.append(("expected rows", text))
    return lines


def _method(summary: FolderSummary) -> str:
    options = [f"{k}={v}" for k, v in summary.method.items() if k != "name" and v is not None]
    return f"{summary.method.get('name', 'unknown')}({', '.join(options)})"


def _counts(types: dict[str, int]) -> str:
    total = f"{sum(types.values()):,}"
    return total if len(types) == 1 else f"{total} of {len(types)} types"


def _spread(counts: Sequence[int]) -> str:
    return (
        f"; {min(counts):,} to {max(counts):,} a part (largest / mean = {balance(counts):.3f})"
        if len(counts) > 1
        else ""
    )
