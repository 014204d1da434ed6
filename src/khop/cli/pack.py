"""`khop pack`: writes the rows of a loader's next epochs in the order in which they are read."""

from __future__ import annotations

import argparse
from typing import Any

from khop.cli.arguments import chosen, declare, print_summary
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
_TABLE = """\
folder FOLDER           a partition folder, with all its parts
output PACK             folder to write
--epochs N              number of epochs (default: 1)
the loader:
--seed S !              seed of the loader
--fanout K,K,...        neighbours drawn in each hop, -1 for all (default: 15,10,5)
--batch-size N          seeds per batch (default: 1024)
--split NAME            boolean attribute of the seeds (default: train_mask)
--seed-type TYPE        node type of the seeds, if there are several
--in-order              the loader has shuffle=False (default: True)
--drop-last             the loader has drop_last=True
--replace               the loader has replace=True
--no-edges              the loader has with_edge=False
rows:
--attr NAME,...         attributes (default: all with rows of 64 bytes or more)
--hot-memory BYTES      bytes of rows that stay in memory, as they are read often (default: 256MB)
--max-bytes BYTES       most bytes of the pack, such as 100GB
--memory BYTES          rows collected per sweep of FOLDER (default: 1GB)
--overwrite             replace a pack at PACK
what is printed:
--plan                  draw the batches and print the size, and write nothing
--quiet                 no progress bar, no summary
--json                  print the summary as JSON
"""
_OF_PACK = ("epochs", "hot_memory", "memory", "max_bytes", "overwrite", "plan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop pack` to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "khop pack FOLDER PACK --seed S [option ...]"
    parser.epilog = _EPILOG
    sizes = {"hot_memory": "256MB", "memory": "1GB"}
    batches = {"epochs": 1, "fanout": [15, 10, 5], "batch_size": 1024, "split": "train_mask"}
    declare(parser, _TABLE, **batches, **sizes)


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
            shuffle=not arguments.in_order,
            with_edge=not arguments.no_edges,
            **chosen(arguments, "batch_size", "drop_last", "replace", "seed"),
        )
        with progress_bar(arguments.quiet) as progress:
            summary = pack_epochs(
                loader,
                arguments.output,
                attributes=arguments.attr,
                progress=progress,
                **chosen(arguments, *_OF_PACK),
            )
    finally:
        shutdown_worker_group()
    print_summary(arguments, summary)
    return 0


def advice_when_ended(arguments: argparse.Namespace) -> str:
    """Return advice about how an interrupted run can be resumed."""
    return f"nothing of '{arguments.output}' is left; the same command begins anew"
