"""`khop convert`: upgrade of a khop folder, other dtypes of its features, or DistDGL's format."""

from __future__ import annotations

import argparse
from pathlib import Path

from khop.cli.arguments import Arguments
from khop.cli.cut import add_feature_arguments
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated

FORMATS = ("khop", "distdgl")

_EPILOG = """\
A khop folder of an earlier format version becomes one of this khop's: a copy, OUTPUT, or the folder
itself with --in-place, which takes almost no disk. All parts must be here. What it reads and needs
is printed first; ended, it goes on if it is started again.

With --feature-dtype, OUTPUT is INPUT's copy, its attributes stored as that says.

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
    add_feature_arguments(khop)
    khop.flag("--overwrite", "replace a partition folder")


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
    if upgrades and arguments.feature_dtype:
        return _convert_features(arguments)
    if upgrades:
        return _upgrade(arguments)
    if arguments.jobs is not None:
        raise ValueError("--jobs is for upgrades of khop's folders: leave it out")
    return _to_distdgl(arguments) if is_khop else _to_khop(arguments)


def _upgrade(arguments: argparse.Namespace) -> int:
    from khop.partition import upgrade_folder

    _refuse(
        arguments, ("time_attr", "weight_attr", "neighbor_ids", "graph_name"), "not for upgrades"
    )
    _refuse(arguments, ("deliver",), "for --feature-dtype")
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


def _convert_features(arguments: argparse.Namespace) -> int:
    from khop.partition import convert_features

    if arguments.in_place:
        raise ValueError("--feature-dtype writes another folder: name an OUTPUT, not --in-place")
    of_others = ("time_attr", "weight_attr", "neighbor_ids", "graph_name")
    _refuse(arguments, of_others, "not for a folder whose features are converted")
    with progress_bar(arguments.quiet) as progress:
        summary = convert_features(
            arguments.input,
            arguments.output,
            dict(arguments.feature_dtype),
            deliver=arguments.deliver or "float32",
            overwrite=arguments.overwrite,
            jobs=arguments.jobs,
            progress=progress,
        )
    if not arguments.quiet:
        print(summary)
    return 0


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} is {reason}: leave it out")


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
            feature_dtype=dict(arguments.feature_dtype) or None,
            deliver=arguments.deliver or "float32",
            overwrite=arguments.overwrite,
            progress=progress,
        )
    if not arguments.quiet:
        print(summary)
    return 0


def _to_distdgl(arguments: argparse.Namespace) -> int:
    from khop.partition import to_distdgl

    of_khop = ("time_attr", "weight_attr", "neighbor_ids", "overwrite", "feature_dtype", "deliver")
    _refuse(arguments, of_khop, "for khop's folders")
    with progress_bar(arguments.quiet) as progress:
        to_distdgl(
            arguments.input, arguments.output, graph_name=arguments.graph_name, progress=progress
        )
    if not arguments.quiet:
        print(f"written: {arguments.output}")
    return 0
