"""`khop partition --compare`: a table, and a picture, of what methods make of a graph."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from khop.cli.arguments import PICTURES, check_picture
from khop.cli.progress import progress_bar

OF_BATCHES = ("fanout", "batch_size", "seed_type")
"""Options that say which batches are drawn, whatever the methods."""

# What concerns a folder, or one method alone.
_NOT_COMPARED = (
    *("method", "assignment", "base", "time_attr", "weight_attr", "order"),
    *(
        "neighbor_ids",
        "no_edge_ids",
        "cluster_ids",
        "overwrite",
        "memory",
        "tmp",
        "jobs",
        "clean",
        "plan",
    ),
    *("on", "ray"),
)


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of comparisons."""
    compared = parser.add_argument_group("comparison of methods")
    compared.add_argument(
        "--compare",
        type=lambda text: text.split(","),
        metavar="METHOD,...",
        help="cut by each of these methods, write no folder, and print a table: cut, balance, rows "
        "of batches from other parts, seconds; frequency+metis is frequency with that base. OUTPUT "
        "is a picture (.png, .svg or .pdf), or - for none",
    )
    compared.add_argument(
        "--sample", type=int, metavar="N", help="compare on about N nodes (default: all)"
    )


def check_compare(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that need, or exclude, a comparison."""
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


def compare(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Compare methods; with OUTPUT, draw the comparison too."""
    from khop.partition import compare_methods
    from khop.sources import Scratch, read_source

    scratch = Scratch.beside(arguments.output)
    with progress_bar(arguments.quiet) as progress, scratch:
        progress(f"reading {arguments.source}", 0, 1)
        found = compare_methods(
            read_source(
                arguments.source,
                arguments.root,
                arguments.undirected,
                scratch,
                arguments.layout,
            ),
            methods=arguments.compare,
            sample=arguments.sample,
            progress=progress,
            **options,
        )
        if arguments.output != "-":
            progress(f"drawing {arguments.output}", 0, 1)
            from khop.plot import comparison

            comparison(found, arguments.output)
    if arguments.json:
        print(json.dumps(found.to_dict()))
    elif not arguments.quiet:
        print(found)
    return 0
