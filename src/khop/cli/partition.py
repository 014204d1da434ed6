"""`khop partition`: cuts a graph into a partition folder, or compares partitioning methods."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from khop.cli.arguments import (
    PICTURES,
    check_picture,
    check_writable,
    declare,
    find_modules_here,
    print_summary,
)
from khop.cli.cut import (
    add_cut_arguments,
    advice_when_ended,
    check_options,
    cut_options,
    left_overs_of,
    print_outcome,
)
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated
from khop.log import printable

__all__ = ["add_arguments", "advice_when_ended", "run"]

_EPILOG = """\
examples:
  khop partition debian parts --num-parts 2
  khop partition graph.pt parts --num-parts 4 --method metis --balance nodes,train
  khop partition ogb:ogbn-papers100M parts --num-parts 8 --memory 16GB --tmp /scratch --plan

SOURCE is one of
{layouts}
Links in a DIRECTORY, and to files, are followed: look at those of a stranger's first.
METHOD and LAYOUT may be your own, as package:Class (also looked for in the working directory), or
those of installed packages, by name; installed here: methods {methods}; layouts {readers}.
"""


# Options that concern a folder, or one method alone.
_NOT_COMPARED = (
    *("method", "assignment", "base", "time_attr", "weight_attr", "order", "neighbor_ids"),
    *("no_edge_ids", "cluster_ids", "overwrite", "memory", "tmp", "jobs", "clean", "plan"),
    *("on", "ray", "feature_dtype", "deliver"),
)
_OWN = """\
source SOURCE           the graph; see below
output OUTPUT           the partition folder to write; a picture of --compare
reading SOURCE:
--layout LAYOUT         layout of SOURCE: that of an installed package, by name, or package:Class
                        (default: the first below that matches)
--undirected            add the reverse of every edge
--root ROOT             folder of data sets of OGB and IGB (default: dataset)
"""
_COMPARISON = """\
comparison of methods:
--compare METHOD,...    cut by each of these methods, write no folder, and print a table: cut,
                        balance, rows of batches from other parts, seconds; frequency+metis is
                        frequency with that base. OUTPUT is a picture (.png, .svg or .pdf), or - for
                        none
--sample N              compare on about N nodes (default: all)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop partition` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "khop partition SOURCE OUTPUT --num-parts P [option ...]"
    from khop.partition.cut import PARTITIONERS
    from khop.sources.read import LAYOUTS, listing

    parser.epilog = _EPILOG.format(
        layouts=listing(),
        methods=", ".join(PARTITIONERS.installed()) or "none",
        readers=", ".join(LAYOUTS.installed()) or "none",
    )
    declare(parser, _OWN, root="dataset")
    add_cut_arguments(parser)
    declare(parser, _COMPARISON)


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Read a graph, write its partition folder and print a summary. With `--compare`, compare."""
    find_modules_here([arguments.layout, arguments.method, arguments.base, arguments.compare])
    _check_compare(arguments)
    check_options(arguments, arguments.compare)
    if arguments.compare is not None:
        return _compare(arguments)
    from khop.storage.folder import check_output

    check_output(arguments.output, arguments.overwrite)
    check_writable(arguments.output)
    if not (arguments.clean or arguments.quiet or arguments.plan):
        for left in left_overs_of(arguments.output, arguments.tmp):
            print(
                f"khop: '{printable(str(left))}' is of a run that was ended: started with the same "
                "arguments it goes on; --clean removes it",
                file=sys.stderr,
            )
    from khop.partition import make_partitioner
    from khop.partition.out_of_core.plan import Effort
    from khop.sources import Scratch, read_source

    Effort.of(arguments.memory, arguments.tmp, arguments.jobs, False)  # before much is read
    scratch = Scratch.beside(arguments.output, arguments.tmp, arguments.memory)
    if arguments.clean:
        scratch.clear()
    with progress_bar(arguments.quiet) as progress, scratch:
        progress(f"reading {arguments.source}", 0, 1)
        _check_fits(arguments)
        source = read_source(
            arguments.source, arguments.root, arguments.undirected, scratch, arguments.layout
        )
        progress(f"reading {arguments.source}", 1, 1)
        options = cut_options(arguments)
        partitioner = make_partitioner(source, arguments.output, **options, progress=progress)
        if not arguments.plan:
            partitioner.partition()
    print_outcome(arguments, partitioner)
    return 0


def _check_fits(arguments: argparse.Namespace) -> None:
    """Raise ValueError if SOURCE must be read as a whole and is larger than `--memory`."""
    if arguments.memory is None:
        return
    from khop.data.hot_rows import parse_bytes
    from khop.sources.read import find_layout

    if not find_layout(arguments.source, arguments.layout).is_whole:
        return
    memory, size = parse_bytes(arguments.memory), Path(arguments.source).stat().st_size
    if size > memory:
        raise ValueError(
            f"'{arguments.source}' has {size:,} bytes that are read as a whole, more than --memory "
            f"{arguments.memory}: save the graph as a folder with edge_index.npy, or as an .npz "
            "file, which are read in pieces"
        )


def _check_compare(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that do not fit `--compare`, or that need it."""
    if arguments.compare is None:
        if arguments.sample is not None:
            raise ValueError("--sample needs --compare")
        return
    if arguments.output != "-" and Path(arguments.output).suffix not in PICTURES:
        raise ValueError(
            f"with --compare OUTPUT is a picture ({', '.join(PICTURES)}), or - for none (got "
            f"'{arguments.output}')"
        )
    if arguments.output != "-":
        check_picture(arguments.output)
    for name in _NOT_COMPARED:
        if getattr(arguments, name):
            shown = f"--{name.replace('_', '-')}"
            raise ValueError(f"--compare writes no folder: leave {shown} out")


def _compare(arguments: argparse.Namespace) -> int:
    """Print a comparison of partitioning methods. Unless OUTPUT is '-', also draw it to OUTPUT."""
    from khop.partition import compare_methods
    from khop.sources import Scratch, read_source

    scratch = Scratch.beside(arguments.output)
    with progress_bar(arguments.quiet) as progress, scratch:
        progress(f"reading {arguments.source}", 0, 1)
        comparison = compare_methods(
            read_source(
                arguments.source, arguments.root, arguments.undirected, scratch, arguments.layout
            ),
            methods=arguments.compare,
            sample=arguments.sample,
            progress=progress,
            **cut_options(arguments, arguments.compare),
        )
        if arguments.output != "-":
            progress(f"drawing {arguments.output}", 0, 1)
            from khop.plot import comparison as draw

            draw(comparison, arguments.output)
    print_summary(arguments, comparison)
    return 0
