"""`khop propagate`: adds attributes of neighbours, hop by hop, to the nodes of a folder."""

from __future__ import annotations

import argparse

from khop.cli.arguments import chosen, declare, print_summary
from khop.cli.cut import advice_about, left_overs_of
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated

_EPILOG = """\
examples:
  khop propagate parts --attr x --out sgc --hops 2 --norm sym --self-loops
  khop propagate parts --attr x --out x --hops 3 --norm sym --every-hop     (x1, x2, x3)
  khop propagate parts --attr x --out cited --edge-type "paper cites paper" --reduce mean

FOLDER is whole at any time. Let no job use it meanwhile: its fingerprint changes. Copy the files of
all parts, and meta.json, to machines that have copies.
"""
_TABLE = """\
folder FOLDER           a partition folder, with all its parts
--attr NAME !           node attribute that is propagated
--out NAME !            name of the new node attribute, of float32
--hops K                number of hops (default: 1)
--every-hop             keep the rows of each hop, as NAME1 to NAMEK of --out
a hop:
--reduce (sum|mean|min|max)
                        how neighbours' rows become one, times their edges' weights (default: sum)
--norm (sym|row)        divide sums by the sum of the node's weights (row), or by the square roots
                        of the sums of both ends (sym), as GCN does
--self-loops            add an edge of weight 1 to each node that has none to itself
--weight NAME           edge attribute with weights (default: all are 1)
--edge-type "SRC REL DST"
                        edge type, its names in quotes (default: the only one)
for graphs that are larger than memory:
--memory BYTES          use no more, such as 8GB: columns that do not fit are worked on one after
                        the other (default: half of the machine's)
--tmp DIR               folder of intermediate files (default: that of FOLDER)
--jobs J                threads (default: one for each core, at most 8)
--clean                 first remove what ended runs for FOLDER left
what is printed:
--quiet                 no progress bar, no summary
--json                  print the summary as JSON
"""
_OPTIONS = (
    *("hops", "reduce", "norm", "weight", "edge_type", "self_loops", "every_hop"),
    *("memory", "tmp", "jobs", "clean"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop propagate` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "khop propagate FOLDER --attr NAME --out NAME [option ...]"
    parser.epilog = _EPILOG
    declare(parser, _TABLE, hops=1, reduce="sum")


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Propagate an attribute, and print a summary of the folder."""
    from khop.partition import propagate

    with progress_bar(arguments.quiet) as progress:
        summary = propagate(
            arguments.folder,
            arguments.attr,
            arguments.out,
            progress=progress,
            **chosen(arguments, *_OPTIONS),
        )
    print_summary(arguments, summary)
    return 0


def advice_when_ended(arguments: argparse.Namespace) -> str:
    """Return advice about how an interrupted run can be resumed."""
    return advice_about(left_overs_of(arguments.folder, arguments.tmp))
