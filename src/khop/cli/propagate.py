"""`khop propagate`: adds attributes of neighbours, hop by hop, to the nodes of a folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from khop.cli.arguments import Arguments
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop propagate` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "khop propagate FOLDER --attr NAME --out NAME [option ...]"
    parser.epilog = _EPILOG
    own = Arguments(parser)
    own.word("folder", "FOLDER", "a partition folder, with all its parts")
    own.value("--attr", "NAME", "node attribute that is propagated", required=True)
    own.value("--out", "NAME", "name of the new node attribute, of float32", required=True)
    own.value("--hops", "K", "number of hops (default: 1)", int, default=1)
    own.flag("--every-hop", "keep the rows of each hop, as NAME1 to NAMEK of --out")
    hop = Arguments(parser, "a hop")
    hop.value(
        "--reduce",
        None,
        "how neighbours' rows become one, times their edges' weights (default: sum)",
        default="sum",
        choices=["sum", "mean", "min", "max"],
    )
    hop.value(
        "--norm",
        None,
        "divide sums by the sum of the node's weights (row), or by the square roots of the sums of "
        "both ends (sym), as GCN does",
        choices=["sym", "row"],
    )
    hop.flag("--self-loops", "add an edge of weight 1 to each node that has none to itself")
    hop.value("--weight", "NAME", "edge attribute with weights (default: all are 1)")
    hop.value(
        "--edge-type", '"SRC REL DST"', "edge type, its names in quotes (default: the only one)"
    )
    large = Arguments(parser, "for graphs that are larger than memory")
    large.value(
        "--memory",
        "BYTES",
        "use no more, such as 8GB: columns that do not fit are worked on one after the other "
        "(default: half of the machine's)",
    )
    large.value("--tmp", "DIR", "folder of intermediate files (default: that of FOLDER)")
    large.value("--jobs", "J", "threads (default: one for each core, at most 8)", int)
    large.flag("--clean", "first remove what ended runs for FOLDER left")
    done = Arguments(parser, "what is printed")
    done.flag("--quiet", "no progress bar, no summary")
    done.flag("--json", "print the summary as JSON")


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Propagate an attribute, and print a summary of the folder."""
    from khop.partition import propagate

    with progress_bar(arguments.quiet) as progress:
        summary = propagate(
            arguments.folder,
            arguments.attr,
            arguments.out,
            hops=arguments.hops,
            reduce=arguments.reduce,
            norm=arguments.norm,
            weight=arguments.weight,
            edge_type=arguments.edge_type,
            self_loops=arguments.self_loops,
            every_hop=arguments.every_hop,
            memory=arguments.memory,
            tmp=arguments.tmp,
            jobs=arguments.jobs,
            clean=arguments.clean,
            progress=progress,
        )
    if arguments.json:
        print(json.dumps(summary.to_dict()))
    elif not arguments.quiet:
        print(summary)
    return 0


def advice_when_ended(arguments: argparse.Namespace) -> str:
    """Return advice about how an interrupted run can be resumed."""
    from khop.partition.out_of_core.effort import left_overs

    tmp = None if arguments.tmp is None else Path(arguments.tmp)
    if not left_overs(Path(arguments.folder), tmp):
        return "nothing is left of it"
    return "the same command goes on where this one was; with --clean it removes that, and begins"
