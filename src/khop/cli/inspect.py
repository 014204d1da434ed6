"""`khop inspect`: summary of a partition folder."""

from __future__ import annotations

import argparse
import json

from khop.cli.progress import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="a partition folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw it (.png, .svg or .pdf)")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary; with `--plot`, draw it too."""
    from khop.partition import FolderSummary, PartitionFolder

    folder = PartitionFolder(arguments.folder)
    summary = FolderSummary.of(folder)
    if arguments.plot:
        with progress_bar() as progress:
            progress(f"drawing {arguments.plot}", 0, 1)
            from khop.plot import folder as draw_folder

            draw_folder(folder, arguments.plot)
    if arguments.json:
        print(json.dumps(summary.to_dict(), indent=1))
    else:
        print(summary)
        if arguments.plot:
            print(f"picture         {arguments.plot}")
    return 0
