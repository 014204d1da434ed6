"""`khop verify`: check of a partition folder."""

from __future__ import annotations

import argparse

from khop.log import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="a partition folder")


def run(arguments: argparse.Namespace) -> int:
    """Print every problem; the exit code is 1 if there are any."""
    from khop.partition import PartitionFolder, verify_folder
    from khop.storage.folder import check_is_folder

    check_is_folder(arguments.folder)
    problems = verify_folder(arguments.folder)
    for problem in problems:
        print(printable(problem))
    if problems:
        print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} found")
        return 1
    folder = PartitionFolder(arguments.folder)
    count = f"{folder.num_parts} parts, {len(folder.files) + 1} files"
    print(f"{printable(str(folder.root))}: {count}, all sound")
    return 0
