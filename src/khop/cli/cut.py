"""Options and output that `khop partition` and `khop repartition` share. Both cut a graph."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from khop.cli.arguments import chosen, declare, print_summary
from khop.log import printable
from khop.partition.out_of_core.engines import ENGINES, check_engine
from khop.storage.folder import ORDERS

if TYPE_CHECKING:
    from khop.partition import PartitionerBase

_DEFAULTS = {"method": "random", "edge_dir": "in", "seed": "0", "order": "original"}
FEATURE_OPTIONS = """\
--feature-dtype NAME=DTYPE *
                        store an attribute of floating-point numbers in fewer bits: bfloat16,
                        float16, float8 or int8 (256 steps between a column's least and largest
                        value), or as float32; of one type TYPE.NAME=DTYPE; once for each
--deliver (float32|stored)
                        batches have these attributes as float32, or as stored, bfloat16 or float16
                        (default: float32)"""
"""Options that decide how a folder stores features."""
_TABLE = """\
the cut:
--num-parts P !         number of parts
--method METHOD         random; by how likely each part's batches touch a node (frequency); or so
                        that few edges are cut: nodes one after the other (stream), METIS (metis,
                        needs pymetis), METIS of clusters, for large graphs (cluster-metis); or your
                        own, package:Class (default: {method})
--option NAME=VALUE *   an option of your own method, as JSON or text; once for each
--assignment DIR        take the part of each node from DIR/TYPE.npy or DIR/TYPE.txt (of a
                        homogeneous graph node.npy), in place of --method
--edge-dir (in|out)     neighbours are drawn against the edges (in, as PyG does) or along (default:
                        {edge_dir})
--seed S                of random choices (default: {seed})
what the folder holds:
--time-attr NAME        node or edge attribute that holds times, for temporal sampling
--weight-attr NAME      edge attribute that holds weights, for weighted sampling
--neighbor-ids          also write original ids of neighbours (4 or 8 bytes per edge), which LABOR
                        needs
--no-edge-ids           write no original ids of edges (4 or 8 bytes per edge): batches number edges
                        as the folder does
{features}
--order ({orders})      order of rows within a part: by original ids, by how likely batches touch
                        them (hotness), clusters together, or by degree; batches do not depend on it
                        (default: {order})
--cluster-ids           keep a cluster of each node as attribute 'cluster', for training by
                        clusters: those of cluster-metis, or about as many as --clusters says
with --method frequency:
--fanout K,K,...        neighbours drawn in each hop of training, -1 for all (default: 15,10,5)
--base METHOD           place nodes by this method, stream, metis, cluster-metis or your own, and
                        copies by how likely batches touch them
--batch-size N          seeds in a batch of training (default: 1024)
--cache-ratio R         share of all nodes whose rows a part keeps copies of, hottest first
                        (default: 0)
--cache-budget BYTES    bound of these copies, such as 512MB (per part)
--seed-type TYPE        node type that is trained on (default: the one that has a train_mask)
with --method stream, metis or cluster-metis:
--balance NAME,...      what parts get even shares of: nodes (of each type), edges, train (nodes of
                        train_mask), bytes, or node attributes (default: nodes)
--slack SHARE           how much more than the mean of each a part may hold (default: 0.03)
--passes N              of stream: passes over the nodes (default: 10)
--clusters N            about how many clusters METIS gets of cluster-metis (default: 1000000; with
                        --cluster-ids at most one for 64 nodes), or --cluster-ids keeps with any
                        other method
for graphs that are larger than memory:
--memory BYTES          use no more, such as 8GB: edges go through files, and a run that was ended
                        goes on if it is started again (default: edges are kept in memory)
--tmp DIR               folder of these files (default: that of OUTPUT)
--jobs J                threads (default: one for each core, at most 8)
--clean                 first remove what ended runs for OUTPUT left
--on ({engines})        cut and write on the machines of a cluster: --memory is what a task takes
                        (default: 1GB), --jobs how many run at a time; SOURCE and OUTPUT lie on
                        storage that all share (default: this machine alone)
--ray ADDRESS           address of the Ray cluster, HOST:6379 as `ray start --head` prints it
                        (default: RAY_ADDRESS)
what is done and printed:
--plan                  print what would be read and written, memory and time; cut nothing, write
                        nothing
--overwrite             replace a partition folder at OUTPUT
--quiet                 no progress bar, no summary
--json                  print the summary as JSON
"""

# Options, and the methods that have them.
_OPTIONS_OF = {
    ("fanout", "base", "batch_size", "cache_ratio", "cache_budget", "seed_type"): ("frequency",),
    ("balance", "slack"): ("stream", "metis", "cluster-metis"),
    ("passes",): ("stream",),
}
_OF_BATCHES = ("fanout", "batch_size", "seed_type")  # comparisons draw batches with any method


def add_cut_arguments(parser: argparse.ArgumentParser, of_folder: bool = False) -> None:
    """Add the options about the assignment of nodes to parts.

    Args:
        parser: parser that gets the options.
        of_folder: True for `khop repartition`: the options of its folder are the defaults.
    """
    defaults = dict.fromkeys(_DEFAULTS, "as in FOLDER") if of_folder else _DEFAULTS
    engines, orders = "|".join(ENGINES), "|".join(ORDERS)
    declare(
        parser, _TABLE.format(features=FEATURE_OPTIONS, engines=engines, orders=orders, **defaults)
    )


def cut_options(
    arguments: argparse.Namespace, compared: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return keyword arguments of `partition_graph` or `repartition` from parsed arguments.

    Args:
        arguments: parsed arguments. Arguments without a value are left out.
        compared: methods that are compared. If None, one method is run.
    """
    names = (
        *("num_parts", "method", "edge_dir", "time_attr", "weight_attr", "seed", "order"),
        *("batch_size", "cache_ratio", "base", "balance", "slack", "passes"),
        *("memory", "tmp", "jobs", "deliver"),
    )
    options = chosen(arguments, *names)
    options |= {
        "neighbor_ids": arguments.neighbor_ids or None,
        "edge_ids": False if arguments.no_edge_ids else None,
        "overwrite": arguments.overwrite or None,
        "clean": arguments.clean or None,
        "feature_dtype": dict(arguments.feature_dtype) or None,
        "num_neighbors": arguments.fanout,
        "seeds": None if arguments.seed_type is None else (arguments.seed_type, None),
        "cache_memory_budget": arguments.cache_budget,
        "on": _engine(arguments),
    }
    if not arguments.quiet and compared is None:
        stream = sys.stderr if arguments.json else sys.stdout
        options["on_plan"] = lambda plan: print(printable(str(plan)), file=stream, flush=True)
    if arguments.method == "cluster-metis" or compared:
        options |= {"clusters": arguments.clusters, "cluster_ids": arguments.cluster_ids or None}
    elif arguments.cluster_ids:
        options["cluster_ids"] = arguments.clusters
    if arguments.assignment is not None:
        options |= {"method": "assigned", "owners": arguments.assignment}
    return {n: v for n, v in options.items() if v is not None} | dict(arguments.option)


def check_options(arguments: argparse.Namespace, compared: Sequence[str] | None = None) -> None:
    """Check that parsed options fit one another, and import the partitioning methods they name.

    Args:
        arguments: the arguments.
        compared: methods that are compared. If None, one method is run.

    Raises:
        ValueError: options do not fit one another, or a method is unknown.
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
    methods = {method} if compared is None else {name.partition("+")[0] for name in compared}
    if "cluster-metis" not in methods and arguments.cluster_ids != (arguments.clusters is not None):
        raise ValueError(
            "--clusters needs --method cluster-metis or --cluster-ids, and --cluster-ids needs "
            "--method cluster-metis or --clusters, the number of clusters"
        )
    if any(name not in PARTITIONERS.builtin for name in methods if name):
        return  # the options of a user's own method are known when it is made
    for options, owners in _OPTIONS_OF.items():
        for name in options:
            is_free = compared is not None and name in _OF_BATCHES
            if getattr(arguments, name) is not None and methods.isdisjoint(owners) and not is_free:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} needs --method {' or '.join(owners)}")


def _check_plugins(arguments: argparse.Namespace) -> None:
    """Import the partitioning methods that the arguments name, and check `--option`."""
    from khop.partition.cut import PARTITIONERS, base_of, shared_options

    if arguments.method is not None:
        PARTITIONERS.resolve(arguments.method)
    if arguments.base is not None:
        base_of(arguments.base)
    for name, _ in arguments.option:
        if name in shared_options():
            raise ValueError(f"--option is for a method's own options, which '{name}' is not")


def _engine(arguments: argparse.Namespace) -> str | None:
    """Return the engine that writes the parts: None (this machine), 'ray' or 'ray:ADDRESS'."""
    on: str | None = arguments.on
    return on if on is None or arguments.ray is None else f"{on}:{arguments.ray}"


def print_outcome(arguments: argparse.Namespace, partitioner: PartitionerBase) -> None:
    """With `--plan`, print the partitioner's plan. Else write the folder and print its summary.

    Raises:
        ValueError: memory or disk do not suffice for the plan, which is printed before.
    """
    from khop.partition import FolderSummary, PartitionFolder

    if arguments.plan:
        plan = partitioner.plan()
        print(json.dumps(plan.to_dict()) if arguments.json else plan.table(), flush=True)
        plan.check_memory()
        plan.check_disk()
        return
    print_summary(arguments, FolderSummary.of(PartitionFolder(arguments.output)))


def left_overs_of(output: str, tmp: str | None) -> list[Path]:
    """Return the temporary files and folders that interrupted runs for `output` left."""
    from khop.partition.out_of_core.effort import left_overs

    return left_overs(Path(output), None if tmp is None else Path(tmp))


def advice_about(left: list[Path]) -> str:
    """Return advice about how an interrupted run that left these files can be resumed."""
    if not left:
        return "nothing is left of it"
    return "the same command goes on where this one was; with --clean it removes that, and begins"


def advice_when_ended(arguments: argparse.Namespace) -> str:
    """Return advice about how an interrupted run can be resumed."""
    return advice_about(left_overs_of(arguments.output, arguments.tmp))
