"""Sphinx extension: docstrings in Google's style with Markdown for Napoleon."""

import re
from collections.abc import Iterable, Iterator

from sphinx.application import Sphinx

_NAMES = re.compile(r"\s+[\w*]+(, [\w*]+)*,")


def convert(
    app: Sphinx, object_type: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Rewrite a docstring's lines in place. Sphinx calls it before Napoleon."""
    lines[:] = _tables(_drawings(_stars(_joined(lines))))


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Names of arguments that share a description, on one line."""
    names = ""
    for line in lines:
        if _NAMES.fullmatch(names + (" " + line.strip() if names else line)):
            names = names + " " + line.strip() if names else line
        elif names:
            yield f"{names} {line.strip()}"
            names = ""
        else:
            yield line
    if names:
        yield names


def _stars(lines: Iterable[str]) -> Iterator[str]:
    """Stars and final underscores outside of code are no markup. Napoleon handles an argument's."""
    for line in lines:
        if line.lstrip().startswith((">>>", "...")):
            yield line
        else:
            first = re.match(r"\s*\*{0,2}\w*", line).end()
            parts = re.split(r"(`[^`]*`)", line[first:])
            escaped = (
                p if p.startswith("`") else re.sub(r"\*|_(?!\w)", r"\\\g<0>", p) for p in parts
            )
            yield line[:first] + "".join(escaped)


def _drawings(lines: Iterable[str]) -> Iterator[str]:
    """A block that is indented below a paragraph without a heading is shown as it stands."""
    before, margin, inside = ["", ""], 0, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if inside and line.strip() and indent <= margin:
            inside = False
        text = before[-2].strip()
        if (
            not inside
            and line.strip()
            and not before[-1].strip()
            and text
            and indent == 4
            and not before[-2].startswith(" ")
        ):
            margin, inside = 0, True
            if not text.endswith("::"):
                yield from ("::", "")
        yield line
        before = [before[-1], line]


def _tables(lines: Iterable[str]) -> Iterator[str]:
    """Markdown's tables as reStructuredText's."""
    rows = 0
    for line in lines:
        if not line.startswith("|"):
            rows = 0
            yield line
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not rows:
            yield from (".. list-table::", "   :header-rows: 1", "")
        rows += 1
        if not set(line) <= set("|-: "):
            for column, cell in enumerate(cells):
                yield f"   {' ' if column else '*'} - {cell}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Convert docstrings before Napoleon reads them."""
    app.connect("autodoc-process-docstring", convert, priority=100)
    return {"parallel_read_safe": True}
