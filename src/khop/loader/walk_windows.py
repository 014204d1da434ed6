"""Windows of random walks, for models of node embeddings. Runs in the trainer.

A window is a fixed number of consecutive nodes of a walk. `Node2VecLoader` and `MetaPath2VecLoader`
replace the `sample` methods of PyG's `Node2Vec` and `MetaPath2Vec`, without pyg-lib and
torch-cluster. (PyG's `Node2Vec` itself cannot be constructed without pyg-lib.)
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop import _native
from khop.data import Graph
from khop.loader.inputs import checked_nodes
from khop.loader.iteration.epochs import EpochKeys, KeyedBatch, PlannedBatches
from khop.sampler.methods.walk import below
from khop.sampler.plan import EpochPlan
from khop.sampler.pyg.random_walks import PartitionedRows, Walker, make_plan
from khop.typing import EdgeType, Int64Array, Numbers

if TYPE_CHECKING:
    from typing_extensions import Unpack

_WalkGraph: TypeAlias = Graph | Data | HeteroData | Tensor | PartitionedRows
_NEGATIVE = 19  # purpose of the keys of negative walks


class WalkOptions(TypedDict, total=False):
    """Keyword arguments of `Node2VecLoader` and `MetaPath2VecLoader`.

    Example:
        >>> options: WalkOptions = {"batch_size": 2, "shuffle": True, "seed": 1}
        >>> len(Node2VecLoader(data, 4, 3, **options))
        3
    """

    input_nodes: Numbers | None
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int | None
    stream: int
    device: str | int | torch.device | None


class _WindowLoader(abc.ABC):
    """Base of `Node2VecLoader` and `MetaPath2VecLoader`: walks, cut into windows."""

    def __init__(
        self,
        graph: _WalkGraph,
        num_steps: int,
        context_size: int,
        walks_per_node: int,
        num_negative_samples: int,
        *,
        bias: tuple[float, float] = (1.0, 1.0),
        metapath: Sequence[EdgeType] | None = None,
        num_nodes: int | None = None,
        input_nodes: Numbers | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        stream: int = 0,
        device: str | int | torch.device | None = None,
    ) -> None:
        for name, value in (
            ("context_size", context_size),
            ("walks_per_node", walks_per_node),
            ("num_negative_samples", num_negative_samples),
        ):
            _check_count(value, name)
        self._walker = Walker(graph, num_nodes, device)
        info = self._walker.info
        plan, start_type = make_plan(info, num_steps, *bias, metapath, 0.0)
        self._plan, self._start_type = plan, start_type
        if context_size > num_steps + 1:
            raise ValueError(
                f"context_size is {context_size}, but walks have {num_steps + 1} nodes: make walks "
                "longer"
            )
        self._context = context_size
        self._walks_per_node, self._negatives = walks_per_node, num_negative_samples
        self._seeds = checked_nodes(info, info.node_types[start_type], input_nodes).ids.long()
        self._shuffle = shuffle
        self._epochs = EpochPlan(len(self._seeds), batch_size, drop_last)
        self._keys = EpochKeys(seed, stream, None)
        ends = [info.edge_types[relation][2] for relation in plan.relations]
        # Index of the node type of each position in a walk.
        self._types = [start_type, *map(info.node_types.index, ends)]
        for node_type in ends:
            if not info.node_counts[node_type]:
                raise ValueError(f"there are no nodes of type '{node_type}' for negative samples")

    def __len__(self) -> int:
        return self._epochs.num_batches

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next iteration makes. The first is 0."""
        self._keys.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        run_key = self._keys.next_run_key()
        for batch in PlannedBatches(self._epochs, run_key, self._shuffle):
            yield self._make(batch)

    def _make(self, batch: KeyedBatch) -> tuple[Tensor, Tensor]:
        starts = self._seeds[torch.from_numpy(batch.positions)].numpy()
        positive = np.tile(starts, self._walks_per_node)
        walked, _ = self._walker.walk(positive, self._start_type, self._plan, batch.key, False)
        negative = self._drawn(np.tile(positive, self._negatives), *batch.key)
        return self._windows(self._whole(walked)), self._windows(self._numbered(negative))

    def _drawn(self, starts: Int64Array, run_key: int, batch: int) -> Int64Array:
        """Return negative walks [n, nodes of a walk]: `starts` [n], then uniform nodes.

        The nodes have the types of a walk's nodes. `run_key` and `batch` determine the random
        numbers.
        """
        counts = [self._walker.info.node_counts[t] for t in self._walker.info.node_types]
        drawn, walks = [starts], np.arange(len(starts))
        for step, node_type in enumerate(self._types[1:]):
            key = _native.program_key(run_key, batch, _NEGATIVE, step, 0)
            words = _native.draw_words(key, walks)
            drawn.append(below(words, np.uint64(counts[node_type])).astype(np.int64))
        return np.stack(drawn, axis=1)

    @abc.abstractmethod
    def _whole(self, walks: Int64Array) -> Int64Array:
        """Convert walks to the model's node numbers, and replace the -1 after a walk's end."""

    def _numbered(self, walks: Int64Array) -> Int64Array:
        """Convert complete walks, without -1, to the model's numbering of nodes."""
        return walks

    def _windows(self, walks: Int64Array) -> Tensor:
        size = self._context
        windows = [walks[:, i : i + size] for i in range(walks.shape[1] - size + 1)]
        return torch.from_numpy(np.concatenate(windows))


class Node2VecLoader(_WindowLoader):
    """Windows of node2vec's walks, which the `loss` of PyG's `Node2Vec` takes.

    The loader needs no pyg-lib, but PyG's model does: the tutorial on sampling methods has a short
    model with the same loss.

    Each batch is (positive, negative), both int64 tensors with `context_size` columns. Positive
    windows come from walks from the batch's B nodes. There are B * walks_per_node * (walk_length +
    1 - context_size), beginning with the first window of every walk. A walk stays at a node without
    out-neighbours. Negative walks have the same start nodes, then uniform nodes, and give
    num_negative_samples times as many windows. Batches are functions of seed, epoch and index, for
    any number of partitions.

    Method: node2vec (https://arxiv.org/abs/1607.00653).

    Args:
        graph: a homogeneous graph, as for `khop.sampler.random_walk`.
        walk_length: number of nodes of a walk, as in PyG: one more than its steps.
        context_size: nodes of a window, at most `walk_length`.
        walks_per_node: walks from each node.
        p: return parameter.
        q: in-out parameter.
        num_negative_samples: negative walks for each positive one.
        num_nodes: with an `edge_index`, number of nodes.
        **options: `WalkOptions`. `input_nodes` are start nodes: ids, a mask, or None for all.
            `batch_size` (default: 1) counts start nodes. `shuffle` gives each epoch another order,
            and `drop_last` leaves out a smaller last batch. `seed` makes epochs reproducible. If
            None, each draws one from torch's default generator. `stream` (default: 0) separates
            trainers with the same seed. `device` is a GPU that walks. If None, the CPU.

    Raises:
        TypeError, ValueError, IndexError: malformed arguments, nodes that do not exist.

    Example:
        >>> loader = Node2VecLoader(data, walk_length=4, context_size=3, batch_size=2, seed=1)
        >>> positive, negative = next(iter(loader))
        >>> len(loader), positive.shape, negative.shape
        (3, torch.Size([4, 3]), torch.Size([4, 3]))
    """

    def __init__(
        self,
        graph: _WalkGraph,
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        num_negative_samples: int = 1,
        num_nodes: int | None = None,
        **options: Unpack[WalkOptions],
    ) -> None:
        _check_count(walk_length, "walk_length")
        super().__init__(
            graph,
            walk_length - 1,
            context_size,
            walks_per_node,
            num_negative_samples,
            bias=(p, q),
            num_nodes=num_nodes,
            **options,
        )

    def _whole(self, walks: Int64Array) -> Int64Array:
        for step in range(1, walks.shape[1]):
            walks[:, step] = np.where(walks[:, step] < 0, walks[:, step - 1], walks[:, step])
        return walks


class MetaPath2VecLoader(_WindowLoader):
    """Windows of walks along a metapath, which the `loss` of PyG's `MetaPath2Vec` takes.

    As `Node2VecLoader`, with the model's numbering of nodes. The numbering covers all node types at
    which steps of the metapath begin or end, type after type in the order of their names. One more
    number (`dummy_idx`) stands for the rest of a walk after a node without out-neighbours.

    Method: metapath2vec (https://doi.org/10.1145/3097983.3098036).

    Args:
        graph: a heterogeneous graph, as for `khop.sampler.random_walk`.
        metapath: edge types of the steps, repeated as needed. Walks begin at its first node type.
        walk_length: number of steps of a walk, as in PyG.
        context_size: nodes of a window, at most `walk_length` + 1.
        walks_per_node, num_negative_samples: as for `Node2VecLoader`.
        **options: as for `Node2VecLoader`. Start nodes are of the first type.

    Raises:
        TypeError, ValueError, IndexError: malformed arguments, nodes that do not exist.

    Example:
        >>> graph = torch_geometric.data.HeteroData({"a": {"num_nodes": 3}})
        >>> graph["a", "to", "a"].edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> loader = MetaPath2VecLoader(graph, [("a", "to", "a")], 2, 2, batch_size=3)
        >>> next(iter(loader))[0].T.tolist()
        [[0, 1, 2, 1, 2, 0], [1, 2, 0, 2, 0, 1]]
    """

    def __init__(
        self,
        graph: _WalkGraph,
        metapath: Sequence[EdgeType],
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        num_negative_samples: int = 1,
        **options: Unpack[WalkOptions],
    ) -> None:
        super().__init__(
            graph,
            walk_length,
            context_size,
            walks_per_node,
            num_negative_samples,
            metapath=metapath,
            **options,
        )
        counts = self._walker.info.node_counts
        first, self._dummy = {}, 0
        for node_type in sorted({t for edge_type in metapath for t in edge_type[::2]}):
            first[node_type], self._dummy = self._dummy, self._dummy + counts[node_type]
        names = self._walker.info.node_types
        self._first = np.array([first[names[t]] for t in self._types])

    def _numbered(self, walks: Int64Array) -> Int64Array:
        numbered: Int64Array = walks + self._first
        return numbered

    def _whole(self, walks: Int64Array) -> Int64Array:
        return np.where(walks < 0, self._dummy, self._numbered(walks))


def _check_count(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer (got {value!r})")
