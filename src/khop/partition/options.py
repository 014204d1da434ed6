"""Options that all partitioners share: names, types, defaults and descriptions.

Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypedDict

from khop.options import Option
from khop.partition.batches import SeedNodes
from khop.partition.out_of_core.plan import Plan
from khop.sampler.methods import SamplingMethod
from khop.typing import ArrayLike, FeatureKey, NodeType, NumNeighbors, Progress


class FolderGroup(TypedDict, total=False):
    """Options of all partitioners that decide the content of the folder."""

    edge_dir: Annotated[
        str,
        Option(
            "in",
            "'in' (neighbours are drawn against the edges' direction, as PyG does) or 'out' (along "
            "it).",
        ),
    ]
    time_attr: Annotated[
        str | None,
        Option(
            None,
            "name of the node attribute or edge attribute with times (integers or floats) for "
            "temporal sampling. Neighbours are sorted by time. With times of nodes, a "
            "neighbour's time counts. Types without the attribute have no constraint.",
        ),
    ]
    weight_attr: Annotated[
        str | None, Option(None, "name of the edge attribute with the weights of draws.")
    ]
    neighbor_ids: Annotated[
        bool,
        Option(
            False,
            "also write original ids of neighbours, 4 or 8 bytes per edge, for methods that key "
            "draws by neighbours (`khop.sampler.Labor`).",
        ),
    ]
    edge_ids: Annotated[
        bool,
        Option(
            True,
            "write original ids of edges, 4 or 8 bytes per edge. If False, batches number edges as "
            "the folder does (`e_id`), and positions in the edge list are not kept.",
        ),
    ]
    feature_dtype: Annotated[
        Mapping[FeatureKey, object] | None,
        Option(
            None,
            "{attribute: dtype}: store floating-point attributes in fewer bits, 'bfloat16', "
            "'float16', 'float8' (e4m3fn) or 'int8' (256 steps between a column's least and "
            "largest value), or as 'float32'. The key is a name, 'x', for all types that have the "
            "attribute, or (type, name).",
        ),
    ]
    deliver: Annotated[
        str,
        Option(
            "float32",
            "how batches have these attributes: as 'float32', or as 'stored' (bfloat16 and "
            "float16).",
        ),
    ]
    order: Annotated[
        str,
        Option(
            "original",
            "order of rows within a part: 'original' (of ids), 'degree', 'hotness' or 'cluster' "
            "(see `khop.partition.writing.order`). Batches do not depend on it.",
        ),
    ]
    cluster_ids: Annotated[
        int | bool,
        Option(
            0,
            "keep a cluster of each node as attribute 'cluster': about how many clusters, or True "
            "for the clusters of `ClusterMetisPartitioner`. If 0, none.",
        ),
    ]
    seed: Annotated[int, Option(0, "seed of random choices.")]
    overwrite: Annotated[bool, Option(False, "replace a folder that exists.")]


class EffortGroup(TypedDict, total=False):
    """Options of all partitioners about the run: memory, threads, machines and progress."""

    progress: Annotated[
        Progress | None, Option(None, "called as progress(step, done, total) while writing.")
    ]
    memory: Annotated[
        int | str | None,
        Option(
            None,
            "bytes, or '8GB', that may be used. Edges then go through files, and a run that was "
            "ended resumes if it is started again. If None, edges are kept in memory. The folder "
            "does not depend on it.",
        ),
    ]
    tmp: Annotated[
        str | os.PathLike[str] | None,
        Option(None, "folder of these files. If None, the parent of `output_dir`."),
    ]
    jobs: Annotated[
        int | None,
        Option(
            None, "threads. If None, one per core, at most 8. The folder does not depend on it."
        ),
    ]
    clean: Annotated[
        bool, Option(False, "first remove files of interrupted runs for the same `output_dir`.")
    ]
    on_plan: Annotated[
        Callable[[Plan], None] | None,
        Option(None, "called with the `Plan` before anything is written, if `memory` is not None."),
    ]
    on: Annotated[
        str | None,
        Option(
            None,
            "'ray:HOST:PORT', or 'ray' for the address in RAY_ADDRESS or for the user's own Ray "
            "session. This machine assigns nodes, and the cluster's machines write the parts. "
            "`memory` then bounds the edges of a task (default: 1 GiB), and `jobs` the number of "
            "tasks at a time (default: one per CPU). Input and `output_dir` are on storage that "
            "all machines share. The folder does not depend on it. If None, only this machine.",
        ),
    ]


class PartitionOptions(FolderGroup, EffortGroup, total=False):
    """Keyword arguments that all partitioners share.

    Example:
        >>> options: PartitionOptions = {"seed": 3, "edge_dir": "out"}
        >>> partitioner = RandomPartitioner.from_data(data, path / "parts", 2, **options)
        >>> partitioner.edge_dir
        'out'
    """


class MethodOptions(TypedDict, total=False):
    """Keyword arguments that only some of khop's methods have.

    Example:
        >>> options: MethodOptions = {"balance": ["nodes"], "passes": 2}
        >>> partition_graph(data, path / "parts", 2, method="stream", **options).nodes
        [3, 3]
    """

    num_neighbors: NumNeighbors | SamplingMethod
    batch_size: int
    seeds: SeedNodes
    probs: Sequence[ArrayLike | Mapping[NodeType, ArrayLike]]
    cache_ratio: float | Mapping[NodeType, float] | None
    cache_memory_budget: int | str | Mapping[NodeType, int | str] | None
    base: str | type[object] | None
    balance: Sequence[str]
    slack: float
    score: str | None
    passes: int
    starts: int
    clusters: int | None
    owners: ArrayLike | Mapping[NodeType, ArrayLike] | str | os.PathLike[str]


class CutOptions(MethodOptions, PartitionOptions, total=False):
    """Keyword arguments of `partition_graph`: the options of all of khop's methods.

    Example:
        >>> options: CutOptions = {"seed": 3, "edge_dir": "out"}
        >>> partition_graph(data, path / "parts", 2, **options).edge_dir
        'out'
    """
