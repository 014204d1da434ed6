"""`khop partition`: the cut of a graph into a partition folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from khop.cli.arguments import check_writable, fanouts, find_modules_here, named_value
from khop.cli.compare import OF_BATCHES, add_compare_arguments, check_compare, compare
from khop.cli.progress import progress_bar
from khop.cli.termination import unwound_when_terminated
from khop.log import printable
from khop.partition.out_of_core.engines import ENGINES, check_engine
from khop.storage.folder import ORDERS

if TYPE_CHECKING:
    from khop.partition import PartitionerBase

_EPILOG = """\
examples:
  khop partition debian parts --num-parts 2
  khop partition graph.pt parts --num-parts 4 --method metis --balance nodes,train
  khop partition ogb:ogbn-papers100M parts --num-parts 8 --memory 16GB --tmp /scratch --plan

SOURCE is one of
{layouts}
Links in a DIRECTORY, and to files, are followed: look at those of a stranger's first.
METHOD and LAYOUT may be your own, as package:Class (also looked for in the working directory), or
those of installed packages, by name; installed here: methods {methods}; layouts {readers}.
"""


# Which methods know which options.
_OPTIONS_OF = {
    ("fanout", "base", "batch_size", "cache_ratio", "cache_budget", "seed_type"): ("frequency",),
    ("balance", "slack"): ("stream", "metis", "cluster-metis"),
    ("passes",): ("stream",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "khop partition SOURCE OUTPUT --num-parts P [option ...]"
    from khop.partition.cut import PARTITIONERS
    from khop.sources.read import LAYOUTS, listing

    parser.epilog = _EPILOG.format(
        layouts=listing(),
        methods=", ".join(PARTITIONERS.installed()) or "none",
        readers=", ".join(LAYOUTS.installed()) or "none",
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="the graph; see below")
    add("output", metavar="OUTPUT", help="the partition folder to write; a picture of --compare")
    read = parser.add_argument_group("reading SOURCE").add_argument
    read(
        "--layout",
        metavar="LAYOUT",
        help="layout of SOURCE: that of an installed package, by name, or package:Class (default: "
        "the first below that matches)",
    )
    read("--undirected", action="store_true", help="add the reverse of every edge")
    read("--root", default="dataset", help="folder of data sets of OGB and IGB (default: dataset)")
    add_cut_arguments(parser)
    add_compare_arguments(parser)


def add_cut_arguments(parser: argparse.ArgumentParser, of_folder: bool = False) -> None:
    """Add the options that say how to cut.

    Args:
        parser: gets them.
        of_folder: what is left out is as in the folder that is cut again.
    """
    add = parser.add_argument_group("the cut").add_argument
    add("--num-parts", type=int, required=True, metavar="P", help="number of parts")
    add(
        "--method",
        metavar="METHOD",
        help="random; by how likely each part's batches touch a node (frequency); or so that few "
        "edges are cut: nodes one after the other (stream), METIS (metis, needs pymetis), METIS of "
        "clusters, for large graphs (cluster-metis); or your own, package:Class "
        + _default("random", of_folder),
    )
    add(
        "--option",
        type=named_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of your own method, as JSON or text; once for each",
    )
    add(
        "--assignment",
        metavar="DIR",
        help="take the part of each node from DIR/TYPE.npy or DIR/TYPE.txt (of a homogeneous graph "
        "node.npy), in place of --method",
    )
    add(
        "--edge-dir",
        choices=["in", "out"],
        help="neighbours are drawn against the edges (in, as PyG does) or along "
        + _default("in", of_folder),
    )
    add("--seed", type=int, metavar="S", help="of random choices " + _default("0", of_folder))
    add = parser.add_argument_group("what the folder holds").add_argument
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
    add(
        "--no-edge-ids",
        action="store_true",
        help="write no original ids of edges (4 or 8 bytes an edge): batches number edges as the "
        "folder does",
    )
    add(
        "--order",
        choices=ORDERS,
        help="order of rows within a part: by original ids, by how likely batches touch them "
        "(hotness), clusters together, or by degree; batches do not depend on it "
        + _default("original", of_folder),
    )
    add(
        "--cluster-ids",
        action="store_true",
        help="keep a cluster of each node as attribute 'cluster', for training by clusters: those "
        "of cluster-metis, or about as many as --clusters says",
    )
    hot = parser.add_argument_group("with --method frequency")
    hot.add_argument(
        "--fanout",
        type=fanouts,
        metavar="K,K,...",
        help="neighbours drawn in each hop of training, -1 for all (default: 15,10,5)",
    )
    hot.add_argument(
        "--base",
        metavar="METHOD",
        help="place nodes by this method, stream, metis, cluster-metis or your own, and copies by "
        "how likely batches touch them",
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
    few = parser.add_argument_group("with --method stream, metis or cluster-metis")
    few.add_argument(
        "--balance",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="what parts get even shares of: nodes (of each type), edges, train (nodes of "
        "train_mask), bytes, or node attributes (default: nodes)",
    )
    few.add_argument(
        "--slack",
        type=float,
        metavar="SHARE",
        help="how much more than the mean of each a part may hold (default: 0.03)",
    )
    few.add_argument(
        "--passes", type=int, metavar="N", help="of stream: passes over the nodes (default: 10)"
    )
    few.add_argument(
        "--clusters",
        type=int,
        metavar="N",
        help="about how many clusters METIS gets of cluster-metis (default: 1000000; with "
        "--cluster-ids at most one for 64 nodes), or --cluster-ids keeps with any other method",
    )
    large = parser.add_argument_group("for graphs that are larger than memory")
    large.add_argument(
        "--memory",
        metavar="BYTES",
        help="use no more, such as 8GB: edges go through files, and a run that was ended goes on "
        "if it is started again (default: edges are kept in memory)",
    )
    large.add_argument(
        "--tmp", metavar="DIR", help="folder of these files (default: that of OUTPUT)"
    )
    large.add_argument(
        "--jobs", type=int, metavar="J", help="threads (default: one for each core, at most 8)"
    )
    large.add_argument(
        "--clean", action="store_true", help="first remove what ended runs for OUTPUT left"
    )
    large.add_argument(
        "--on",
        choices=ENGINES,
        help="cut and write on the machines of a cluster: --memory is what a task takes (default: "
        "1GB), --jobs how many run at a time; SOURCE and OUTPUT lie on storage that all share "
        "(default: this machine alone)",
    )
    large.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="address of the Ray cluster, HOST:6379 as `ray start --head` prints it (default: "
        "RAY_ADDRESS)",
    )
    add = parser.add_argument_group("what is done and printed").add_argument
    add(
        "--plan",
        action="store_true",
        help="print what would be read and written, memory and time; cut nothing, write nothing",
    )
    add("--overwrite", action="store_true", help="replace a partition folder at OUTPUT")
    add("--quiet", action="store_true", help="no progress bar, no summary")
    add("--json", action="store_true", help="print the summary as JSON")


def _default(value: str, of_folder: bool) -> str:
    return f"(default: {'as in FOLDER' if of_folder else value})"


def advice_when_ended(arguments: argparse.Namespace) -> str:
    """Return how a run that was ended can go on."""
    if not _left_overs(arguments):
        return "nothing is left of it"
    return "the same command goes on where this one was; with --clean it removes that, and begins"


@unwound_when_terminated()
def run(arguments: argparse.Namespace) -> int:
    """Read a graph, partition it, write the folder and print its summary; or compare methods."""
    find_modules_here([arguments.layout, arguments.method, arguments.base, arguments.compare])
    check_compare(arguments)
    check_options(arguments, arguments.compare)
    if arguments.compare is not None:
        return compare(arguments, cut_options(arguments))
    from khop.storage.folder import check_output

    check_output(arguments.output, arguments.overwrite)
    check_writable(arguments.output)
    _name_left_overs(arguments)
    from khop.partition import make_partitioner
    from khop.partition.out_of_core.plan import Effort
    from khop.sources import Scratch, read_source

    Effort.of(arguments.memory, arguments.tmp, arguments.jobs, False)  # before much is read
    scratch = Scratch.beside(arguments.output, arguments.tmp, arguments.memory)
    if arguments.clean:
        scratch.clear()
    with progress_bar(arguments.quiet) as progress, scratch:
        progress(f"reading {arguments.source}", 0, 1)
        _check_fits(arguments)
        source = read_source(
            arguments.source,
            arguments.root,
            arguments.undirected,
            scratch,
            arguments.layout,
        )
        progress(f"reading {arguments.source}", 1, 1)
        partitioner = make_partitioner(
            source, arguments.output, **cut_options(arguments), progress=progress
        )
        if not arguments.plan:
            partitioner.partition()
    print_outcome(arguments, partitioner)
    return 0


def print_outcome(arguments: argparse.Namespace, partitioner: PartitionerBase) -> None:
    """Print the plan, or the summary of the folder written, as the arguments ask for.

    Raises:
        ValueError: of a plan, after it: memory or disk would not suffice.
    """
    from khop.partition import FolderSummary, PartitionFolder

    if arguments.plan:
        plan = partitioner.plan()
        print(json.dumps(plan.to_dict()) if arguments.json else plan.table(), flush=True)
        plan.check_memory()
        plan.check_disk()
        return
    summary = FolderSummary.of(PartitionFolder(arguments.output))
    if arguments.json:
        print(json.dumps(summary.to_dict()))
    elif not arguments.quiet:
        print(summary)


def cut_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `partition_graph`, or `repartition`, that were given."""
    names = ("num_parts", "method", "edge_dir", "time_attr", "weight_attr", "seed", "order")
    given = {name: getattr(arguments, name) for name in names}
    given |= {
        "neighbor_ids": arguments.neighbor_ids or None,
        "edge_ids": False if arguments.no_edge_ids else None,
        "overwrite": arguments.overwrite or None,
        "clean": arguments.clean or None,
        "num_neighbors": arguments.fanout,
        "batch_size": arguments.batch_size,
        "seeds": None if arguments.seed_type is None else (arguments.seed_type, None),
        "cache_ratio": arguments.cache_ratio,
        "cache_memory_budget": arguments.cache_budget,
        "base": arguments.base,
        **{name: getattr(arguments, name) for name in ("balance", "slack", "passes")},
        **{name: getattr(arguments, name) for name in ("memory", "tmp", "jobs")},
        "on": _engine(arguments),
    }
    if not arguments.quiet and getattr(arguments, "compare", None) is None:
        stream = sys.stderr if arguments.json else sys.stdout
        given["on_plan"] = lambda plan: print(printable(str(plan)), file=stream, flush=True)
    if arguments.method == "cluster-metis" or getattr(arguments, "compare", None):
        given |= {"clusters": arguments.clusters, "cluster_ids": arguments.cluster_ids or None}
    elif arguments.cluster_ids:
        given["cluster_ids"] = arguments.clusters
    if arguments.assignment is not None:
        given |= {"method": "assigned", "owners": arguments.assignment}
    return {**{n: v for n, v in given.items() if v is not None}, **dict(arguments.option)}


def check_options(arguments: argparse.Namespace, compared: Sequence[str] | None = None) -> None:
    """Raise ValueError for options that do not fit one another.

    Args:
        arguments: the arguments.
        compared: the methods that are compared. If None, a single one is run.
    """
    from khop.partition.cut import PARTITIONERS, check_num_parts

    check_num_parts(arguments.num_parts, name="--num-parts")
    if arguments.ray is not None and arguments.on != "ray":
        raise ValueError("--ray needs --on ray")
    check_engine(_engine(arguments))
    if arguments.plan and (arguments.clean or arguments.quiet):
        raise ValueError("--plan removes nothing and prints: leave --clean and --quiet out")
    if arguments.plan and arguments.on:
        raise ValueError(f"--plan estimates one machine's work: leave --on {arguments.on} out")
    method = arguments.method
    if arguments.assignment is not None and method not in (None, "random"):
        raise ValueError(
            f"--assignment takes the place of --method {method}: leave one of them out"
        )
    _check_plugins(arguments)
    chosen = {method} if compared is None else {name.partition("+")[0] for name in compared}
    own_clusters = "cluster-metis" in chosen
    if not own_clusters and arguments.cluster_ids != (arguments.clusters is not None):
        raise ValueError(
            "--clusters needs --method cluster-metis or --cluster-ids, and --cluster-ids needs "
            "--method cluster-metis or --clusters, the number of clusters"
        )
    for names, methods in _OPTIONS_OF.items():
        for name in names:
            if getattr(arguments, name) is None or not chosen.isdisjoint(methods):
                continue
            if any(name not in PARTITIONERS.builtin for name in chosen if name):
                continue  # what a user's own method has is known when it is made
            if compared is not None and name in OF_BATCHES:
                continue
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} needs --method {' or '.join(methods)}")


def _check_plugins(arguments: argparse.Namespace) -> None:
    """Import the methods that the arguments name, and check `--option`."""
    from khop.partition.cut import PARTITIONERS, base_of, shared_options

    if arguments.method is not None:
        PARTITIONERS.resolve(arguments.method)
    if arguments.base is not None:
        base_of(arguments.base)
    for name, _ in arguments.option:
        if name in shared_options():
            raise ValueError(f"--option is for a method's own options, which '{name}' is not")


def _engine(arguments: argparse.Namespace) -> str | None:
    """Return the engine that does the work, with its cluster's address if that is given."""
    on: str | None = arguments.on
    return on if on is None or arguments.ray is None else f"{on}:{arguments.ray}"


def _check_fits(arguments: argparse.Namespace) -> None:
    """Refuse sources that are read as a whole, if they are larger than the memory."""
    if arguments.memory is None:
        return
    from khop.data.hot_rows import parse_bytes
    from khop.sources.read import find_layout

    if not find_layout(arguments.source, arguments.layout).is_whole:
        return
    memory, size = parse_bytes(arguments.memory), Path(arguments.source).stat().st_size
    if size > memory:
        raise ValueError(
            f"'{arguments.source}' has {size:,} bytes that are read as a whole, more than --memory "
            f"{arguments.memory}: save the graph as a folder with edge_index.npy, or as an .npz "
            "file, which are read in pieces"
        )


def _name_left_overs(arguments: argparse.Namespace) -> None:
    """Name what ended runs left, on standard error; `--clean` removes it."""
    if arguments.clean or arguments.quiet or arguments.plan:
        return
    for left in _left_overs(arguments):
        print(
            f"khop: '{printable(str(left))}' is of a run that was ended: started with the same "
            "arguments it goes on; --clean removes it",
            file=sys.stderr,
        )


def _left_overs(arguments: argparse.Namespace) -> list[Path]:
    from khop.partition.out_of_core.effort import left_overs

    tmp = None if arguments.tmp is None else Path(arguments.tmp)
    return left_overs(Path(arguments.output), tmp)
