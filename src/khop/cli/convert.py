"""`khop convert`: upgrade of a khop folder, other dtypes of its features, or DistDGL's format."""

from __future__ import annotations

import argparse
from pathlib import Path

from khop.cli.arguments import chosen, declare
from khop.cli.cut import FEATURE_OPTIONS
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated
from khop.typing import Progress

_OF_OTHERS = ("time_attr", "weight_attr", "neighbor_ids", "graph_name")

_EPILOG = """\
A khop folder of an earlier format version becomes one of this khop's: a copy, OUTPUT, or the folder
itself with --in-place, which takes almost no disk. All parts must be here. What it reads and needs
is printed first; ended, it goes on if it is started again.

With --feature-dtype, OUTPUT is INPUT's copy, its attributes stored as that says.

DistDGL's folders are those of dgl.distributed.partition_graph and of dispatch_data.py: a JSON file,
and a folder for each part. Neither direction needs DGL.
"""
_TABLE = """\
input INPUT             a partition folder, khop's or DistDGL's (or its JSON file)
output OUTPUT ?         the folder to write
--in-place              upgrade INPUT itself, a khop folder; no OUTPUT
--jobs N                threads of an upgrade (default: cores, at most 8)
--to (khop|distdgl)     its format (default: khop, of DistDGL's or an earlier khop's; distdgl, of
                        khop's)
--graph-name NAME       of DistDGL's graph (default: the name of OUTPUT)
--quiet                 no progress bar, no summary
of folders for khop, as in `khop partition`:
--time-attr NAME        attribute that holds times
--weight-attr NAME      edge attribute that holds weights
--neighbor-ids          also write original ids of neighbours
{features}
--overwrite             replace a partition folder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop convert` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    declare(parser, _TABLE.format(features=FEATURE_OPTIONS))


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Convert a folder. Print a summary of a khop folder, or the path of a DistDGL folder."""
    from khop.storage.folder import META_FILE, VERSION_RANGES, PartitionFolder

    is_khop = (Path(arguments.input) / META_FILE).is_file()
    is_old = is_khop and PartitionFolder(arguments.input).version < VERSION_RANGES
    stays = is_old or not arguments.output or arguments.feature_dtype
    to = arguments.to or ("distdgl" if is_khop and not stays else "khop")
    upgrades = is_khop and to == "khop"
    if arguments.in_place != (arguments.output is None) or (arguments.in_place and not upgrades):
        raise ValueError("name an OUTPUT, or pass --in-place to upgrade a khop folder itself")
    if to == "distdgl" and not is_khop:
        raise ValueError(f"'{arguments.input}' is a folder of {to} already")
    if upgrades:
        convert = _convert_features if arguments.feature_dtype else _upgrade
    elif arguments.jobs is not None:
        raise ValueError("--jobs is for upgrades of khop's folders: leave it out")
    else:
        convert = _to_distdgl if is_khop else _to_khop
    with progress_bar(arguments.quiet) as progress:
        done = convert(arguments, progress)
    if not arguments.quiet:
        print(done)
    return 0


def _upgrade(arguments: argparse.Namespace, progress: Progress) -> object:
    from khop.partition import upgrade_folder

    _refuse(arguments, _OF_OTHERS, "not for upgrades")
    _refuse(arguments, ("deliver",), "for --feature-dtype")
    return upgrade_folder(
        arguments.input,
        arguments.output,
        progress=progress,
        on_plan=lambda plan: None if arguments.quiet else print(plan, flush=True),
        **chosen(arguments, "overwrite", "jobs"),
    )


def _convert_features(arguments: argparse.Namespace, progress: Progress) -> object:
    from khop.partition import convert_features

    if arguments.in_place:
        raise ValueError("--feature-dtype writes another folder: name an OUTPUT, not --in-place")
    _refuse(arguments, _OF_OTHERS, "not for a folder whose features are converted")
    return convert_features(
        arguments.input,
        arguments.output,
        dict(arguments.feature_dtype),
        deliver=arguments.deliver or "float32",
        progress=progress,
        **chosen(arguments, "overwrite", "jobs"),
    )


def _to_khop(arguments: argparse.Namespace, progress: Progress) -> object:
    from khop.partition import from_distdgl

    _refuse(arguments, ("graph_name",), "for DistDGL's folders")
    return from_distdgl(
        arguments.input,
        arguments.output,
        feature_dtype=dict(arguments.feature_dtype) or None,
        deliver=arguments.deliver or "float32",
        progress=progress,
        **chosen(arguments, "time_attr", "weight_attr", "neighbor_ids", "overwrite"),
    )


def _to_distdgl(arguments: argparse.Namespace, progress: Progress) -> object:
    from khop.partition import to_distdgl

    of_khop = ("time_attr", "weight_attr", "neighbor_ids", "overwrite", "feature_dtype", "deliver")
    _refuse(arguments, of_khop, "for khop's folders")
    to_distdgl(
        arguments.input, arguments.output, graph_name=arguments.graph_name, progress=progress
    )
    return f"written: {arguments.output}"


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} is {reason}: leave it out")
