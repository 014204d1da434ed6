"""Code in Markdown pages: fenced blocks of Python under their headings."""

import re
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        title: the heading above it.
        source: its code.
        line: where in the page the code begins, counted from 1.
    """

    title: str
    source: str
    line: int

    def compiled(self, page, source=None):
        """Compile the block, or `source` in its place. Errors name the page and its line."""
        text = self.source if source is None else source
        return compile("\n" * (self.line - 1) + text, str(page), "exec")


def blocks(page, fence="python"):
    """Return the Python blocks of a page, in order. In tutorials, they are '{code-cell}'."""
    found, title, code, start = [], "", None, 0
    for number, line in enumerate(Path(page).read_text().splitlines(), 1):
        if code is not None:
            if line.strip() == "```":
                found.append(Block(title, "\n".join(code) + "\n", start))
                code = None
            else:
                code.append(line)
        elif line.strip() == f"```{fence}":
            code, start = [], number + 1
        elif heading := re.match(r"#+ (.*)", line):
            title = heading[1]
    assert code is None, f"{page}: the block of line {start} does not end"
    return found
