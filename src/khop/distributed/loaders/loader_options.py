"""Options of the distributed loaders: the one table of names, types, defaults and descriptions.

An option is declared here and nowhere else. `khop.options` makes signatures, documentation and
checks of it. Runs in trainers.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal, TypedDict

import torch
import torch.distributed as dist
from torch_geometric.sampler.base import SubgraphType

from khop.distributed.options import WorkerOptions
from khop.options import Option
from khop.typing import EdgeDir, Pad, Transform


class SamplingGroup(TypedDict, total=False):
    """Options that decide which nodes and edges are drawn."""

    replace: Annotated[bool, Option(False, "draw with replacement.")]
    subgraph_type: Annotated[
        SubgraphType | Literal["directional", "bidirectional", "induced"],
        Option(
            "directional",
            "'directional' (the drawn edges), 'bidirectional' (with their reverses) or 'induced' "
            "(all edges between the drawn nodes).",
        ),
    ]
    disjoint: Annotated[
        bool,
        Option(
            False,
            "sample a separate subgraph for each seed or link. `batch` has the position of each "
            "node's seed. Always on with temporal sampling.",
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
            "time attribute that the folder was partitioned with. Only neighbours (or edges) whose "
            "time is not later than the seed's are drawn. If None, times are ignored, and batches "
            "equal the in-memory loader's for edges sorted by time.",
        ),
    ]
    weight_attr: Annotated[
        str | bool | None,
        Option(
            None,
            "edge attribute with the weights of draws, which the folder was partitioned with. True "
            "stands for its name.",
        ),
    ]


class DeliveryGroup(TypedDict, total=False):
    """Options of epochs, and of the content and device of batches."""

    batch_size: Annotated[int, Option(1, "seeds per batch: nodes, links or clusters.")]
    shuffle: Annotated[bool, Option(False, "draw a new order each epoch.")]
    drop_last: Annotated[
        bool, Option(False, "leave out a last batch that is smaller, on every trainer.")
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
            "direction of the folder, 'in' or 'out'. If None, the folder's. Edges of batches point "
            "towards the seeds. With 'out' they are reversed: edges of `(a, 'r', b)` have the type "
            "`(b, 'rev_r', a)`, and edges of `(a, 'rev_r', b)` have `(b, 'r', a)`.",
        ),
    ]
    device: Annotated[
        torch.device | str | int | None,
        Option(
            None,
            "device of the batches. If None, the device that made them. Copies to a GPU run on a "
            "separate stream, one batch ahead, and are fast with "
            "`MpDistSamplingWorkerOptions.pin_memory`. Batches of samplers on that GPU "
            "(`worker_devices`) need no copy. Use a batch on the stream that was current when the "
            "loader returned it, or make your stream wait for that stream.",
        ),
    ]
    widen: Annotated[
        Literal["sampler", "trainer"] | None,
        Option(
            None,
            "where attributes that the folder stores in fewer bits become float32: 'sampler' "
            "(while rows are gathered) or 'trainer' (on `device`, after the copy to it). If None, "
            "'trainer' if `device` is a GPU, else 'sampler'.",
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
    pad: Annotated[
        Pad | None,
        Option(
            None,
            "pads batches with zeros to few shapes, so that `torch.compile` compiles once. 'auto' "
            "finds the sizes, and enlarges them for a larger batch. Or {'nodes': sizes, 'edges': "
            "sizes}, see `khop.loader.NeighborLoader`. Batches are padded on `device`, by a copy. "
            "If None, no padding. `pad_sizes` has the sizes in use.",
        ),
    ]
    even_batches: Annotated[
        bool,
        Option(
            True,
            "make the same number of batches on every trainer. All trainers must then make the "
            "loader. If False, only some trainers may make it, and numbers of batches may differ: "
            "with DDP use `torch.distributed.algorithms.Join` then.",
        ),
    ]
    num_virtual_ranks: Annotated[
        int | None,
        Option(
            None,
            "number of shares of an epoch's seeds. A job with another number of trainers can then "
            "finish the epoch with the same batches. All trainers pass the seeds of all, and "
            "`input_id` are positions among these seeds. Each share has its own random numbers, "
            "and trainers take its batches in turn. Needs `seed`. Choose a multiple of the "
            "numbers of trainers that the job may have. If the last round has fewer batches than "
            "trainers, the others repeat one of the epoch's first batches. With "
            "`even_batches=False` they make no batch, and with `drop_last` the round is left out. "
            "If None, each trainer has its own seeds.",
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
            "`RemoteDistSamplingWorkerOptions` (sampler processes of graph servers, for clients). "
            "If None, clients use graph servers, and other trainers sample in this process.",
        ),
    ]
    cache_memory: Annotated[
        int | str | None,
        Option(
            None,
            "bytes in which this loader keeps rows of other partitions, '2GB' or a number. Its "
            "samplers divide them. They draw batches ahead, and keep the rows that are needed "
            "soonest. Each loader of each trainer has its own. 0 keeps none. If None, a sixteenth "
            "of the available memory, divided by the trainers of this machine, or less if other "
            "partitions have fewer rows. Graph servers bound their samplers' rows "
            "(`--cache-limit`). The default for them is 256 MB. Samplers on devices keep none. "
            "`stats().cache_bytes` has the choice.",
        ),
    ]
    lookahead: Annotated[
        int | None,
        Option(
            None,
            "batches, 0 to 64, that a sampler has drawn beyond the one whose rows it requests. "
            "Without its rows a batch takes little memory. If None, 8, or more small batches: "
            "until they need four times the rows of the cache.",
        ),
    ]
    exchange: Annotated[
        Literal["messages", "all_to_all"],
        Option(
            "messages",
            "how a loader without sampler processes gets neighbours and rows of other partitions. "
            "'messages': from partition servers. 'all_to_all': from the other trainers, by "
            "`torch.distributed.all_to_all_single`, without servers. Trainers then take each batch "
            "together, so `even_batches` must be True. An error of one trainer ends the loader on "
            "all. Batches are the same. With a `device` the trainers' devices draw, unless the "
            "dataset was loaded with graph_mode='CPU'.",
        ),
    ]
    exchange_group: Annotated[
        dist.ProcessGroup | None,
        Option(
            None,
            "process group of all trainers for 'all_to_all', gloo or NCCL. If None, a new one with "
            "gloo, which ends with the loader.",
        ),
    ]
    placement: Annotated[
        str | None,
        Option(
            None,
            "NUMA node of this loader's processes and shared memory: 'auto', 'none', 'node:1' or "
            "'cpus:0-15'. 'auto' is the node of the trainer's GPU, else nodes in turn. It changes "
            "nothing on machines with one node, in processes that the user has bound, and for "
            "fewer trainers than nodes without GPUs. If None, $KHOP_PLACEMENT, or 'auto'. "
            "Batches are the same with all of them.",
        ),
    ]
    packed: Annotated[
        str | os.PathLike[str] | None,
        Option(
            None,
            "path of a pack, which `khop pack` or `pack_epochs` has made for a loader with the "
            "same arguments. Rows of its epochs are read from it in sequence. Batches are the "
            "same. Other epochs read the folder, with a warning in the log (`epoch-not-packed`). "
            "If None, all rows are read from the folder.",
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
