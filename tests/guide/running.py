"""Runs the blocks of `guide.md`, with the few substitutions that one table lists.

`run(title, names)` executes a block among `names`, which the blocks before it have filled: what one
block defines the next one uses, as in the guide. What the guide takes for granted without showing
it (folders that exist, the share of the seeds, the process group of DDP) the callers prepare.
"""

from pathlib import Path
from typing import NamedTuple

from support.formats import fenced

PAGE = Path(__file__).with_name("guide.md")
BLOCKS = {block.title: block for block in fenced.blocks(PAGE)}


class Substitution(NamedTuple):
    """What a block's text is replaced by, and why."""

    titles: tuple[str, ...]
    old: str
    new: str
    reason: str


NO_GPU = "no GPU here"
SUBSTITUTIONS = (
    Substitution(
        ("1 data", "1.3 load"), "'/tmp/ogbn-products'", "ROOT", "a folder of the test's own"
    ),
    Substitution(("1.2 random", "1.2 frequency"), "torch.device(0)", "torch.device('cpu')", NO_GPU),
    Substitution(
        ("4.1 loader", "4.1 collocated", "4.2 loader"),
        "torch.device(0)",
        "torch.device('cpu')",
        NO_GPU,
    ),
    Substitution(("1.3 load",), "partition_idx=0", "partition_idx=PARTITION", "trainers have each"),
    Substitution(("2.1 group",), "rank=0", "rank=RANK", "the guide shows trainer 0 of four"),
    Substitution(
        ("4.1 loader",),
        "[torch.device('cuda', i % torch.cuda.device_count() for i in range(2))]",
        "[torch.device('cpu') for i in range(2)]",
        "not Python: a parenthesis is missing; and no GPU here",
    ),
    Substitution(("4.1 training",), "[current_device.index]", "None", NO_GPU),
    Substitution(("4.1 training",), "=256", "=64", "a small graph needs no more"),
    Substitution(("2.2 server",), "server_rank=0", "server_rank=RANK", "shows server 0 of two"),
    Substitution(("2.2 client",), "client_rank=1", "client_rank=RANK", "shows client 1 of four"),
    Substitution(("2.2 server", "2.2 client"), "11111", "PORT", "a port that is free"),
    Substitution(
        ("4.2 loader",),
        "[torch.device('cuda', i % target_server_device_count) for i in range(2)]",
        "[torch.device('cpu') for i in range(2)]",
        NO_GPU,
    ),
)


def source_of(title):
    """A block's code as it is run; AssertionError if a substitution does not fit once."""
    text = BLOCKS[title].source
    for change in SUBSTITUTIONS:
        if title in change.titles:
            assert text.count(change.old) == 1, f"{change} in block '{title}'"
            text = text.replace(change.old, change.new)
    return text


def run(title, names):
    """Runs a block among `names` and returns these."""
    exec(BLOCKS[title].compiled(PAGE, source_of(title)), names)
    return names


def run_around(title, call, names):
    """Runs a block up to a call, which stands alone on its line; returns what runs the rest."""
    first, rest = source_of(title).split(f"\n{call}\n")
    exec(BLOCKS[title].compiled(PAGE, first), names)
    return lambda: exec(call + "\n" + rest, names)


def run_lines(title, names):
    """Runs a block; returns {expression: value} of the lines that are nothing but expressions."""
    values = {}
    for line in filter(None, source_of(title).splitlines()):
        if " = " in line:
            exec(line, names)
        else:
            values[line] = eval(line, names)
    return values
