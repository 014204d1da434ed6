"""`khop inspect`: summary of a partition folder."""

from __future__ import annotations

import argparse
import json

from khop.cli.arguments import check_picture, fanouts
from khop.cli.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="a partition folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--report",
        action="store_true",
        help="also count edges and nodes between parts, and draw batches to count the rows that "
        "come from other parts (reads all edges; all parts must be here)",
    )
    drawn = parser.add_argument_group("batches of --report")
    drawn.add_argument(
        "--fanout",
        type=fanouts,
        default=[15, 10, 5],
        metavar="K,K,...",
        help="neighbours drawn in each hop, -1 for all (default: 15,10,5)",
    )
    drawn.add_argument(
        "--batch-size", type=int, default=1024, metavar="N", help="seeds a batch (default: 1024)"
    )
    drawn.add_argument(
        "--batches", type=int, default=8, metavar="N", help="batches of each part (default: 8)"
    )
    drawn.add_argument(
        "--seed-type",
        metavar="TYPE",
        help="node type that is trained on (default: the one that has a train_mask)",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="also draw it (.png, .svg or .pdf)")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary; with `--plot`, draw it too."""
    from khop.partition import CutReport, FolderSummary, PartitionFolder

    if arguments.plot:
        check_picture(arguments.plot)
    folder = PartitionFolder(arguments.folder)
    summary = FolderSummary.of(folder)
    report = None
    if arguments.report:
        with progress_bar() as progress:
            progress(f"drawing batches of {folder.root}", 0, 1)
            report = CutReport.of(
                folder,
                arguments.fanout,
                batch_size=arguments.batch_size,
                seed_type=arguments.seed_type,
                batches=arguments.batches,
            )
    if arguments.plot:
        with progress_bar() as progress:
            progress(f"drawing {arguments.plot}", 0, 1)
            from khop.plot import folder as draw_folder

            draw_folder(folder, arguments.plot)
    if arguments.json:
        found = summary.to_dict() | ({} if report is None else {"report": report.to_dict()})
        print(json.dumps(found, indent=1))
    else:
        print(summary)
        if report is not None:
            print(f"\n{report}")
        if arguments.plot:
            print(f"picture         {arguments.plot}")
    return 0
