"""`khop inspect`: summary of a partition folder."""

from __future__ import annotations

import argparse
import json

from khop.cli.arguments import check_picture, declare
from khop.cli.progress import progress_bar

_TABLE = """\
folder FOLDER           a partition folder
--json                  print JSON
--report                also count edges and nodes between parts, and draw batches to count the rows
                        that come from other parts (reads all edges; all parts must be here)
--plot FILE.png         also draw it (.png, .svg or .pdf)
batches of --report:
--fanout K,K,...        neighbours drawn in each hop, -1 for all (default: 15,10,5)
--batch-size N          seeds per batch (default: 1024)
--batches N             batches of each part (default: 8, or 64 with a cache)
--cache-memory BYTES    predict the hits of a cache of node rows of this size, such as 2GB: of rows
                        of other parts (cache_memory of a loader), and of rows on disk (disk_memory)
--seed-type TYPE        node type that is trained on (default: the one that has a train_mask)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop inspect` to its parser."""
    declare(parser, _TABLE, fanout=[15, 10, 5], batch_size=1024)


def run(arguments: argparse.Namespace) -> int:
    """Print the summary of a partition folder. With `--plot`, also draw it. Return exit code 0."""
    from khop.partition import CutReport, FolderSummary, PartitionFolder

    if arguments.plot:
        check_picture(arguments.plot)
    folder = PartitionFolder(arguments.folder)
    summary = FolderSummary.of(folder)
    report = None
    if arguments.report:
        default = 8 if arguments.cache_memory is None else 64
        with progress_bar() as progress:
            progress(f"drawing batches of {folder.root}", 0, 1)
            report = CutReport.of(
                folder,
                arguments.fanout,
                batch_size=arguments.batch_size,
                seed_type=arguments.seed_type,
                batches=default if arguments.batches is None else arguments.batches,
                cache_memory=arguments.cache_memory,
            )
    if arguments.plot:
        with progress_bar() as progress:
            progress(f"drawing {arguments.plot}", 0, 1)
            from khop.plot import folder as draw_folder

            draw_folder(folder, arguments.plot)
    if arguments.json:
        content = summary.to_dict() | ({} if report is None else {"report": report.to_dict()})
        print(json.dumps(content, indent=1))
    else:
        print(summary)
        if report is not None:
            print(f"\n{report}")
        if arguments.plot:
            print(f"picture         {arguments.plot}")
    return 0
