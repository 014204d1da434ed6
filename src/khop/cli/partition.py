"""`khop partition`: the cut of a graph into a partition folder."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from khop.cli.report import print_summary
from khop.log import printable
from khop.partition.base import Progress

_SOURCES = """\
SOURCE is one of
  debian        the package graph of Debian 12 that comes with khop
  debian-hetero the same with an edge type for each kind of relation, and with sources,
                maintainers and tags; --undirected adds reverses as edge types rev_...
  ogb:NAME      an OGB node property prediction data set, such as ogb:ogbn-arxiv or
                ogb:ogbn-mag; masks come from its split. --root is the folder that holds (or
                will hold) it; for a data set of your own, made with ogb.io.DatasetSaver, the
                folder with its meta_dict.pt
  FILE.pt       a PyG Data or HeteroData saved by torch.save; read without running its pickle
  DIRECTORY     edge_index.npy ([2, E] or [E, 2]), edges.csv or edges.parquet (columns src and
                dst, or the first two; further columns become edge attributes) and .npy files:
                edge_*.npy are edge attributes, all others (x.npy, y.npy, train_mask.npy, ...)
                node attributes. Mapped, not read, so that it may be larger than memory
Links in a DIRECTORY, and to files, are followed: look at those of a stranger's first.
"""

_MOST_PARTS = 4096
_PARTS_ADVICE = (
    "a part is what one machine or GPU samples, and has some 20 files of its own; ask for as many "
    "as you will train with"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _SOURCES
    add = parser.add_argument
    add("source", metavar="SOURCE", help="the graph; see below")
    add("output", metavar="OUTPUT", help="the partition folder to write")
    add("--num-parts", type=int, required=True, metavar="P", help="number of parts")
    add(
        "--method",
        choices=["random", "frequency"],
        default="random",
        help="random, or by how likely each part's batches touch a node (default: random)",
    )
    add(
        "--edge-dir",
        choices=["in", "out"],
        default="in",
        help="neighbours are drawn against the edges (in, as PyG does) or along (default: in)",
    )
    add("--seed", type=int, default=0, metavar="S", help="of random choices (default: 0)")
    add(
        "--time-attr",
        metavar="NAME",
        help="node or edge attribute that holds times, for temporal sampling",
    )
    add(
        "--weight-attr",
        metavar="NAME",
        help="edge attribute that holds weights, for weighted sampling",
    )
    add(
        "--neighbor-ids",
        action="store_true",
        help="also write original ids of neighbours (4 or 8 bytes an edge), which LABOR needs",
    )
    add("--undirected", action="store_true", help="add the reverse of every edge")
    add("--root", default="dataset", help="folder of OGB data sets (default: dataset)")
    hot = parser.add_argument_group("with --method frequency")
    hot.add_argument(
        "--fanout",
        type=_fanouts,
        metavar="K,K,...",
        help="neighbours drawn in each hop of training, -1 for all (default: 15,10,5)",
    )
    hot.add_argument(
        "--batch-size", type=int, metavar="N", help="seeds in a batch of training (default: 1024)"
    )
    hot.add_argument(
        "--cache-ratio",
        type=float,
        metavar="R",
        help="share of all nodes whose rows a part keeps copies of, hottest first (default: 0)",
    )
    hot.add_argument(
        "--cache-budget", metavar="BYTES", help="bound of these copies, such as 512MB (per part)"
    )
    hot.add_argument(
        "--seed-type",
        metavar="TYPE",
        help="node type that is trained on (default: the one that has a train_mask)",
    )
    add("--overwrite", action="store_true", help="replace a partition folder at OUTPUT")
    add("--quiet", action="store_true", help="no progress bar, no summary")


def run(arguments: argparse.Namespace) -> int:
    """Read a graph, partition it, write the folder and print its summary."""
    _check_options(arguments)
    _clean_up_when_terminated()
    from khop.partition import FolderSummary, PartitionFolder
    from khop.storage.folder import check_output

    check_output(arguments.output, arguments.overwrite)
    from khop.cli.sources import read_source

    with _progress_bar(arguments.quiet) as progress:
        progress(f"reading {arguments.source}", 0, 1)
        source = read_source(arguments.source, arguments.root, arguments.undirected)
        progress(f"reading {arguments.source}", 1, 1)
        _partition(arguments, source, progress)
    if not arguments.quiet:
        print_summary(FolderSummary.of(PartitionFolder(arguments.output)))
    return 0


def _partition(arguments: argparse.Namespace, source: Any, progress: Progress) -> None:
    from khop.partition import RandomPartitioner, frequency_partition

    num_nodes = sum(node.count for node in source.nodes.values())
    if arguments.num_parts > max(1, num_nodes):
        raise ValueError(
            f"--num-parts {arguments.num_parts} is more than the graph's {num_nodes} nodes: "
            f"{_PARTS_ADVICE}"
        )
    common: dict[str, Any] = {
        "edge_assign_strategy": "by_dst" if arguments.edge_dir == "in" else "by_src",
        "time_attr": arguments.time_attr,
        "weight_attr": arguments.weight_attr,
        "neighbor_ids": arguments.neighbor_ids,
        "seed": arguments.seed,
        "overwrite": arguments.overwrite,
        "progress": progress,
    }
    if arguments.method == "random":
        RandomPartitioner.from_data(
            source, arguments.output, arguments.num_parts, **common
        ).partition()
    else:
        frequency_partition(
            source,
            arguments.output,
            arguments.num_parts,
            arguments.fanout or [15, 10, 5],
            batch_size=1024 if arguments.batch_size is None else arguments.batch_size,
            seeds=None if arguments.seed_type is None else (arguments.seed_type, None),
            cache_ratio=arguments.cache_ratio,
            cache_memory_budget=arguments.cache_budget,
            **common,
        )


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.num_parts < 1:
        raise ValueError(f"--num-parts must be at least 1 (got {arguments.num_parts})")
    if arguments.num_parts > _MOST_PARTS:
        raise ValueError(
            f"--num-parts {arguments.num_parts} is more than {_MOST_PARTS}: {_PARTS_ADVICE}"
        )
    if arguments.method == "random":
        for name in ("fanout", "batch_size", "cache_ratio", "cache_budget", "seed_type"):
            if getattr(arguments, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} needs --method frequency")


def _fanouts(text: str) -> list[int]:
    try:
        fanouts = [int(k) for k in text.split(",")]
    except ValueError:
        fanouts = []
    if not fanouts or min(fanouts) < -1:
        raise argparse.ArgumentTypeError(
            f"must be integers of -1 or more with commas between, such as 15,10,5 (got '{text}')"
        )
    return fanouts


def _clean_up_when_terminated() -> None:
    """Unwind the stack on SIGTERM, so that no temporary folder stays behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@contextmanager
def _progress_bar(quiet: bool) -> Iterator[Progress]:
    """Show one bar for all steps; a step that is done leaves no line behind."""
    from tqdm import tqdm

    with tqdm(disable=quiet or None, leave=False, bar_format="{l_bar}{bar}| {elapsed}") as bar:

        def show(what: str, done: int, total: int) -> None:
            bar.set_description(printable(what), refresh=False)
            bar.n, bar.total = done, total
            bar.refresh()

        yield show
