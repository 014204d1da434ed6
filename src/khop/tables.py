"""Tables of names and values, for terminals and notebooks. Any process, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from khop.log import printable

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


Rows = Sequence[tuple[str, str]]
"""Name and value of each row of a table."""


def text_table(rows: Rows) -> str:
    """Return rows (name, value) as lines of text. Control characters are shown as escapes."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {printable(value)}" for name, value in rows)


def html_table(title: str, rows: Rows) -> str:
    """Return a table as HTML, for `_repr_html_`.

    Args:
        title: text above the table.
        rows: its rows. All text is escaped: names in files are not trusted.
    """
    body = "".join(
        f"<tr><th style='{_CELL}'>{_text(name)}</th><td style='{_CELL}'>{_text(value)}</td></tr>"
        for name, value in rows
    )
    return f"<div><b>{_text(title)}</b><table>{body}</table></div>"


def grid(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text: the first column to the left, others to the right.

    Args:
        rows: rows of equal length, the head first. Control characters are shown as escapes.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def human_bytes(count: float) -> str:
    """Format a number of bytes as text, in the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _text(value: str) -> str:
    return escape(printable(value))
