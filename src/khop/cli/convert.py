"""`khop convert`: upgrade of a khop folder, or conversion from or to DistDGL's format."""

from __future__ import annotations

import argparse
from pathlib import Path

from khop.cli.arguments import Arguments
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated

FORMATS = ("khop", "distdgl")

_EPILOG = """\
A khop folder of an earlier format version becomes one of this khop's: a copy, OUTPUT, or the folder
itself with --in-place, which takes almost no disk. All parts must be here. What it reads and needs
is printed first; ended, it goes on if it is started again.

DistDGL's folders are those of dgl.distributed.partition_graph and of dispatch_data.py: a JSON file,
and a folder for each part. Neither direction needs DGL.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop convert` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    own = Arguments(parser)
    own.word("input", "INPUT", "a partition folder, khop's or DistDGL's (or its JSON file)")
    own.word("output", "OUTPUT", "the folder to write", optional=True)
    own.flag("--in-place", "upgrade INPUT itself, a khop folder; no OUTPUT")
    own.value("--jobs", "N", "threads of an upgrade (default: cores, at most 8)", int)
    own.value(
        "--to",
        None,
        "its format (default: khop, of DistDGL's or an earlier khop's; distdgl, of khop's)",
        choices=FORMATS,
    )
    own.value("--graph-name", "NAME", "of DistDGL's graph (default: the name of OUTPUT)")
    own.flag("--quiet", "no progress bar, no summary")
    khop = Arguments(parser, "of folders for khop, as in `khop partition`")
    khop.value("--time-attr", "NAME", "attribute that holds times")
    khop.value("--weight-attr", "NAME", "edge attribute that holds weights")
    khop.flag("--neighbor-ids", "also write original ids of neighbours")
    khop.flag("--overwrite", "replace a partition folder")


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Convert a folder. Print a summary of a khop folder, or the path of a DistDGL folder."""
    from khop.storage.folder import META_FILE, VERSION_RANGES, PartitionFolder

    is_khop = (Path(arguments.input) / META_FILE).is_file()
    is_old = is_khop and PartitionFolder(arguments.input).version < VERSION_RANGES
    to = arguments.to or ("distdgl" if is_khop and not is_old and arguments.output else "khop")
    upgrades = is_khop and to == "khop"
    if arguments.in_place != (arguments.output is None) or (arguments.in_place and not upgrades):
        raise ValueError("name an OUTPUT, or pass --in-place to upgrade a khop folder itself")
    if to == "distdgl" and not is_khop:
        raise ValueError(f"'{arguments.input}' is a folder of {to} already")
    if upgrades:
        return _upgrade(arguments)
    if arguments.jobs is not None:
        raise ValueError("--jobs is for upgrades of khop's folders: leave it out")
    return _to_distdgl(arguments) if is_khop else _to_khop(arguments)


def _upgrade(arguments: argparse.Namespace) -> int:
    from khop.partition import upgrade_folder

    for name in ("time_attr", "weight_attr", "neighbor_ids", "graph_name"):
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} is not for upgrades: leave it out")
    with progress_bar(arguments.quiet) as progress:
        summary = upgrade_folder(
            arguments.input,
            arguments.output,
            overwrite=arguments.overwrite,
            jobs=arguments.jobs,
            progress=progress,
            on_plan=lambda plan: None if arguments.quiet else print(plan, flush=True),
        )
    if not arguments.quiet:
        print(summary)
    return 0


def _to_khop(arguments: argparse.Namespace) -> int:
    from khop.partition import from_distdgl

    if arguments.graph_name is not None:
        raise ValueError("--graph-name is for DistDGL's folders: leave it out")
    with progress_bar(arguments.quiet) as progress:
        summary = from_distdgl(
            arguments.input,
            arguments.output,
            time_attr=arguments.time_attr,
            weight_attr=arguments.weight_attr,
            neighbor_ids=arguments.neighbor_ids,
            overwrite=arguments.overwrite,
            progress=progress,
        )
    if not arguments.quiet:
        print(summary)
    return 0


def _to_distdgl(arguments: argparse.Namespace) -> int:
    from khop.partition import to_distdgl

    for name in ("time_attr", "weight_attr", "neighbor_ids", "overwrite"):
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} is for khop's folders: leave it out")
    with progress_bar(arguments.quiet) as progress:
        to_distdgl(
            arguments.input, arguments.output, graph_name=arguments.graph_name, progress=progress
        )
    if not arguments.quiet:
        print(f"written: {arguments.output}")
    return 0
