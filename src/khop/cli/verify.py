"""`khop verify`: check of a partition folder."""

from __future__ import annotations

import argparse
import json

from khop.cli.arguments import declare
from khop.cli.progress import progress_bar
from khop.log import printable

_TABLE = """\
folder FOLDER           a partition folder, or a pack of `khop pack`
--jobs N                threads (default: one for each core, at most 8)
--tmp DIR               keep progress in this folder: a check that was ended goes on with the same
                        --tmp
--json                  print JSON: files and problems
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop verify` to its parser."""
    declare(parser, _TABLE)


def run(arguments: argparse.Namespace) -> int:
    """Check a partition folder and print every problem. Return 1 if there are any, else 0."""
    from khop.partition import PartitionFolder, verify_folder
    from khop.storage.folder import check_is_folder
    from khop.storage.pack import Pack, is_pack

    pack = Pack(arguments.folder) if is_pack(arguments.folder) else None
    if pack is None:
        check_is_folder(arguments.folder)
    with progress_bar() as progress:
        if pack is not None:
            problems = pack.problems()
        else:
            problems = verify_folder(
                arguments.folder, progress, jobs=arguments.jobs, tmp=arguments.tmp
            )
    if arguments.json:
        print(json.dumps({"folder": arguments.folder, "problems": problems}))
        return 1 if problems else 0
    for problem in problems:
        print(printable(problem))
    if problems:
        print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} found")
        return 1
    if pack is not None:
        print(f"{printable(str(pack.root))}: a pack of {len(pack.meta.files)} files, all sound")
        return 0
    folder = PartitionFolder(arguments.folder)
    count = f"{folder.num_parts} parts, {len(folder.files) + 1} files"
    print(f"{printable(str(folder.root))}: {count}, all sound")
    return 0
