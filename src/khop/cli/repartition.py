"""`khop repartition`: cuts the graph of a partition folder again, into other parts."""

from __future__ import annotations

import argparse

from khop.cli.arguments import check_writable, declare, find_modules_here
from khop.cli.cut import (
    add_cut_arguments,
    advice_when_ended,
    check_options,
    cut_options,
    print_outcome,
)
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated

__all__ = ["add_arguments", "advice_when_ended", "run"]
_OWN = """\
folder FOLDER           a partition folder, with all its parts
output OUTPUT           the partition folder to write
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop repartition` to its parser."""
    parser.usage = "khop repartition FOLDER OUTPUT --num-parts P [option ...]"
    declare(parser, _OWN)
    add_cut_arguments(parser, of_folder=True)


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Read the folder, cut its graph again, write the new folder and print its summary."""
    find_modules_here([arguments.method, arguments.base])
    check_options(arguments)
    from khop.partition import make_repartitioner
    from khop.storage.folder import check_output

    check_output(arguments.output, arguments.overwrite)
    check_writable(arguments.output)
    with progress_bar(arguments.quiet) as progress:
        progress(f"reading {arguments.folder}", 0, 1)
        partitioner = make_repartitioner(
            arguments.folder, arguments.output, **cut_options(arguments), progress=progress
        )
        if not arguments.plan:
            partitioner.partition()
    print_outcome(arguments, partitioner)
    return 0
