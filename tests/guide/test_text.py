"""The blocks are the guide's, with nothing but the import line changed."""

import os
from pathlib import Path

import pytest

from guide import running

GUIDE = Path(
    os.environ.get(
        "KHOP_GUIDE",
        Path(__file__).parents[3] / "shared/reference/glt-distributed-training.txt",
    )
)
OURS, THEIRS = "import khop.glt as glt", "import graphlearn_torch as glt"


def lines_of(text):
    """Lines of code without indentation, comments and empty lines."""
    bare = (line.split(" #")[0].strip() for line in text.splitlines())
    return [line for line in bare if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def guide():
    if not GUIDE.exists():
        pytest.skip("the guide's text is not at hand: set KHOP_GUIDE to its file")
    return lines_of(GUIDE.read_text())


@pytest.mark.parametrize("title", running.BLOCKS)
def test_blocks_stand_in_the_guide(guide, title):
    # Prose may stand between the parts of a block, lines of code in the same order.
    block = [THEIRS if line == OURS else line for line in lines_of(running.BLOCKS[title].source)]
    starts = [i for i, line in enumerate(guide) if line == block[0]]
    assert any(guide[i : i + len(block)] == block for i in starts)


def test_no_block_is_left_out(guide):
    blocks = [line for b in running.BLOCKS.values() for line in lines_of(b.source)]
    assert guide.count(THEIRS) == blocks.count(OURS)
    calls = [line for line in guide if line.startswith("glt.") or " = glt." in line]
    assert calls == [line for line in blocks if line.startswith("glt.") or " = glt." in line]


def test_substitutions_fit():
    for title in running.BLOCKS:
        compile(running.source_of(title), title, "exec")
