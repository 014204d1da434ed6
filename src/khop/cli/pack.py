"""`khop pack`: writes the rows of a loader's next epochs in the order in which they are read."""

from __future__ import annotations

import argparse
import json
from typing import Any

from khop.cli.arguments import Arguments, fanouts, name_list
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated

_EPILOG = """\
examples:
  khop pack parts packs/a --epochs 2 --seed 1 --fanout 15,10,5 --batch-size 1024
  khop pack parts packs/a --epochs 20 --seed 1 --plan          (draws, and prints the size)

The options are arguments of the loader: DistNeighborLoader(dataset, [15, 10, 5], "train_mask",
batch_size=1024, shuffle=True, seed=1, packed="packs/a") reads this pack. For other loaders, and for
jobs with several trainers, call khop.distributed.pack_epochs in the job.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop pack` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "khop pack FOLDER PACK --seed S [option ...]"
    parser.epilog = _EPILOG
    own = Arguments(parser)
    own.word("folder", "FOLDER", "a partition folder, with all its parts")
    own.word("output", "PACK", "folder to write")
    own.value("--epochs", "N", "number of epochs (default: 1)", int, default=1)
    loader = Arguments(parser, "the loader")
    loader.value("--seed", "S", "seed of the loader", int, required=True)
    loader.value(
        "--fanout",
        "K,K,...",
        "neighbours drawn in each hop, -1 for all (default: 15,10,5)",
        fanouts,
        default=[15, 10, 5],
    )
    loader.value("--batch-size", "N", "seeds per batch (default: 1024)", int, default=1024)
    loader.value(
        "--split",
        "NAME",
        "boolean attribute of the seeds (default: train_mask)",
        default="train_mask",
    )
    loader.value("--seed-type", "TYPE", "node type of the seeds, if there are several")
    loader.flag("--in-order", "the loader has shuffle=False (default: True)")
    loader.flag("--drop-last", "the loader has drop_last=True")
    loader.flag("--replace", "the loader has replace=True")
    loader.flag("--no-edges", "the loader has with_edge=False")
    rows = Arguments(parser, "rows")
    rows.value(
        "--attr", "NAME,...", "attributes (default: all with rows of 64 bytes or more)", name_list
    )
    rows.value(
        "--hot-memory",
        "BYTES",
        "bytes of rows that stay in memory, as they are read often (default: 256MB)",
        default="256MB",
    )
    rows.value("--max-bytes", "BYTES", "most bytes of the pack, such as 100GB")
    rows.value("--memory", "BYTES", "rows collected per sweep of FOLDER (default: 1GB)", str, "1GB")
    rows.flag("--overwrite", "replace a pack at PACK")
    done = Arguments(parser, "what is printed")
    done.flag("--plan", "draw the batches and print the size, and write nothing")
    done.flag("--quiet", "no progress bar, no summary")
    done.flag("--json", "print the summary as JSON")


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Pack epochs of a loader, and print a summary of the pack. Return the exit code 0."""
    from khop.distributed import (
        DistDataset,
        DistNeighborLoader,
        init_worker_group,
        pack_epochs,
        shutdown_worker_group,
    )
    from khop.partition import PartitionFolder

    init_worker_group(1, 0, "khop-pack")
    try:
        others = range(1, PartitionFolder(arguments.folder).num_parts)
        dataset = DistDataset().load(arguments.folder, also_serve=others, same_host_reads=True)
        seeds: Any = arguments.split
        if arguments.seed_type is not None:
            dataset.meta.node_type(arguments.seed_type)  # KeyError, which names the types
            if dataset.meta.heterogeneous:
                seeds = arguments.seed_type, arguments.split
        loader = DistNeighborLoader(
            dataset,
            arguments.fanout,
            seeds,
            batch_size=arguments.batch_size,
            shuffle=not arguments.in_order,
            drop_last=arguments.drop_last,
            replace=arguments.replace,
            with_edge=not arguments.no_edges,
            seed=arguments.seed,
        )
        with progress_bar(arguments.quiet) as progress:
            summary = pack_epochs(
                loader,
                arguments.output,
                arguments.epochs,
                attributes=arguments.attr,
                hot_memory=arguments.hot_memory,
                memory=arguments.memory,
                max_bytes=arguments.max_bytes,
                overwrite=arguments.overwrite,
                plan=arguments.plan,
                progress=progress,
            )
    finally:
        shutdown_worker_group()
    if arguments.json:
        print(json.dumps(summary.to_dict()))
    elif not arguments.quiet:
        print(summary)
    return 0


def advice_when_ended(arguments: argparse.Namespace) -> str:
    """Return advice about how an interrupted run can be resumed."""
    return f"nothing of '{arguments.output}' is left; the same command begins anew"
