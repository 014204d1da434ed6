"""Options of the distributed loaders: the one table of names, types, defaults and descriptions.

An option is declared here and nowhere else. `khop.options` makes signatures, documentation and
checks of it. Runs in trainers.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

import torch
from torch_geometric.sampler.base import SubgraphType

from khop.distributed.options import WorkerOptions
from khop.options import Option
from khop.typing import EdgeDir, Transform


class SamplingGroup(TypedDict, total=False):
    """Options that decide which nodes and edges are drawn."""

    replace: Annotated[bool, Option(False, "draw with replacement.")]
    subgraph_type: Annotated[
        SubgraphType | Literal["directional", "bidirectional", "induced"],
        Option(
            "directional",
            "'directional' (the drawn edges), 'bidirectional' (and their reverses) or 'induced' "
            "(all edges among the drawn nodes).",
        ),
    ]
    disjoint: Annotated[
        bool,
        Option(
            False,
            "sample a separate subgraph for each seed, or link, identified by `batch`; always on "
            "with temporal sampling.",
        ),
    ]
    temporal_strategy: Annotated[
        Literal["uniform", "last"],
        Option("uniform", "'uniform', or 'last': the latest neighbours."),
    ]
    time_attr: Annotated[
        str | None,
        Option(
            None,
            "attribute that the folder was partitioned with; only neighbours (or edges) whose time "
            "is not later than the seed's are drawn. Rows of a folder with times are sorted by "
            "time: without `time_attr`, its batches are those of the in-memory loader of the edges "
            "in that order.",
        ),
    ]
    weight_attr: Annotated[
        str | bool | None,
        Option(
            None,
            "attribute to draw neighbours by, with which the folder was partitioned. If True, the "
            "folder's.",
        ),
    ]


class DeliveryGroup(TypedDict, total=False):
    """Options of epochs, and of the content and device of batches."""

    batch_size: Annotated[int, Option(1, "seeds per batch (links, clusters).")]
    shuffle: Annotated[bool, Option(False, "draw a new order each epoch.")]
    drop_last: Annotated[
        bool, Option(False, "leave out a last batch that would be smaller (on every trainer).")
    ]
    with_edge: Annotated[
        bool, Option(True, "deliver `e_id`, and edge attributes if the folder has any.")
    ]
    collect_features: Annotated[
        bool,
        Option(
            True,
            "deliver node attributes, and edge attributes if `with_edge`. If False, labels (`y`) "
            "only.",
        ),
    ]
    edge_dir: Annotated[
        EdgeDir | None,
        Option(
            None,
            "'in' or 'out'; must be the folder's. If None, the folder's. Edges of batches point "
            "towards the seeds: with 'out' they are reverses of the graph's, and edges of "
            "`(a, 'r', b)` are of type `(b, 'rev_r', a)`, those of `(a, 'rev_r', b)` of "
            "`(b, 'r', a)`.",
        ),
    ]
    device: Annotated[
        torch.device | str | int | None,
        Option(
            None,
            "target device of the batches. If None, they stay where they are made. Copies to a GPU "
            "run on a separate stream, one batch ahead; they are fast with "
            "`MpDistSamplingWorkerOptions.pin_memory`. Batches of samplers on that GPU "
            "(`worker_devices`) need no copy. Use a batch on the stream that was current when it "
            "was returned, or make yours wait for it.",
        ),
    ]
    seed: Annotated[
        int | None,
        Option(
            None,
            "makes epochs reproducible. If None, each epoch draws a seed from torch's default "
            "generator.",
        ),
    ]
    stream: Annotated[
        int | None,
        Option(None, "separates the random numbers of trainers. If None, the trainer's rank."),
    ]
    transform: Annotated[Transform | None, Option(None, "applied to each batch, in this process.")]
    even_batches: Annotated[
        bool,
        Option(
            True,
            "make the same number of batches on every trainer. All trainers must then make the "
            "loader. False is for loaders that only some trainers make, or whose numbers of "
            "batches may differ (use `torch.distributed.algorithms.Join` with DDP then).",
        ),
    ]
    num_virtual_ranks: Annotated[
        int | None,
        Option(
            None,
            "number of shares that an epoch's seeds are divided into, whatever the number of "
            "trainers: a job of another size can finish the epoch with the same batches. Seeds "
            "are then those of all trainers, the same on each, and `input_id` are positions among "
            "these. Each share has its own stream of random numbers, and trainers take its "
            "batches in turn. Needs `seed`; choose a multiple of the numbers of trainers that the "
            "job may have. Where batches cannot be divided evenly, trainers without one repeat "
            "one of the epoch's first, or make one less with `even_batches=False`; with "
            "`drop_last` these batches are left out. If None, each trainer has its own seeds.",
        ),
    ]


class ResourceGroup(TypedDict, total=False):
    """Options of the processes and machines that sample."""

    worker_options: Annotated[
        WorkerOptions | None,
        Option(
            None,
            "`MpDistSamplingWorkerOptions` (sampler processes), "
            "`CollocatedDistSamplingWorkerOptions` (this process) or "
            "`RemoteDistSamplingWorkerOptions` (sampler processes of graph servers; the only "
            "choice for clients). If None, this process; for clients, graph servers.",
        ),
    ]


class InducedOptions(DeliveryGroup, ResourceGroup, total=False):
    """Keyword arguments of loaders that draw no hops: `DistClusterLoader`.

    Example:
        >>> options: InducedOptions = {"batch_size": 2, "seed": 1}
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> clusters = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> len(DistClusterLoader(dataset, assignment=clusters, **options))
        2
    """


class LoaderOptions(SamplingGroup, DeliveryGroup, ResourceGroup, total=False):
    """Keyword arguments of all loaders that draw hops, such as `DistNeighborLoader`.

    Example:
        >>> options: LoaderOptions = {"batch_size": 3, "shuffle": True, "seed": 1}
        >>> dataset = DistDataset().load(folder, partition_idx=0)
        >>> len(DistNeighborLoader(dataset, [2], **options))
        2
    """
