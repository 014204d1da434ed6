"""Samplers of positions, which choose the seeds of an epoch's batches. Run in the trainer.

Loaders of torch, PyG and khop take them as `sampler` or `batch_sampler`. An epoch is a function of
the sampler's seed and the epoch's number. So a resumed loader can continue in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from khop import _native
from khop.data.arrays import to_int64
from khop.loader.arguments import check_positive
from khop.sampler.arguments import check_key_part
from khop.sampler.plan import epoch_order
from khop.typing import Float64Array, Int64Array, Numbers, SeedNodes

_CLASSES, _MEMBERS = 20, 21  # purposes of keys


class _EpochSampler(torch.utils.data.Sampler[Any]):
    """Sampler of positions whose epochs have numbers. Each `iter()` begins the next epoch.

    Args:
        seed: seed of all epochs. If None, it is drawn once, from torch's default generator.
    """

    def __init__(self, seed: int | None) -> None:
        check_key_part("seed", seed)
        self.seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that begins next. The first epoch has number 0."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """Return the seed and the number of the next epoch, for `load_state_dict`."""
        return {"seed": self.seed, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Set the seed and the number of the next epoch to the saved ones."""
        self.seed, self.epoch = state["seed"], state["epoch"]

    def _run_key(self, epoch: int) -> int:
        return _native.run_key(self.seed, epoch, 0)

    def _next_run_key(self) -> int:
        self.epoch += 1
        return self._run_key(self.epoch - 1)


class ImbalancedSampler(_EpochSampler):
    """Sampler that draws every class as often as any other, with replacement.

    A draw selects a uniform class, and then a uniform item of this class. As PyG's
    `ImbalancedSampler`, but epochs are functions of a seed.

    Args:
        dataset: a `Data` with labels `y`, a `HeteroData`, a data set of graphs with labels, or
            [n] int64 labels.
        input_nodes: ids or mask of the loader's seeds. For a `HeteroData`: (node type, ids or
            mask). If None, all nodes.
        num_samples: number of draws in an epoch. If None, the number of items.
        seed: seed of all epochs. If None, it is drawn once, from torch's default generator.

    Raises:
        TypeError: the labels are not integers.
        ValueError: there are no items.

    Example:
        >>> sampler = ImbalancedSampler(torch.tensor([0, 0, 0, 1]), seed=0)
        >>> loader = NeighborLoader(data, [2], torch.arange(4), batch_size=2, sampler=sampler)
        >>> len(list(loader))
        2
    """

    def __init__(
        self,
        dataset: Data | HeteroData | Sequence[Data] | Tensor,
        input_nodes: SeedNodes = None,
        num_samples: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        labels = _labels(dataset, input_nodes)
        if not len(labels):
            raise ValueError("there are no items to draw: the labels are empty")
        self.num_samples = len(labels) if num_samples is None else num_samples
        check_positive(self.num_samples, "num_samples")
        self._order = np.argsort(labels, kind="stable")  # items of each class in a row
        _, counts = np.unique(labels, return_counts=True)
        self._counts: Int64Array = counts.astype(np.int64)
        self._starts: Int64Array = np.cumsum(self._counts) - self._counts

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """Begin the next epoch, and yield the positions of its drawn items."""
        run_key = self._next_run_key()
        keys = [_native.program_key(run_key, 0, purpose, 0, 0) for purpose in (_CLASSES, _MEMBERS)]
        each = np.full(self.num_samples, len(self._counts), np.int64)
        classes = _native.draw_below(keys[0], each)
        members = _native.draw_below(keys[1], self._counts[classes])
        yield from self._order[self._starts[classes] + members].tolist()


class DynamicBatchSampler(_EpochSampler):
    """Sampler of batches of bounded size: as many items as fit, at least one.

    An epoch's items, in order or shuffled, are cut into batches one after the other. So every item
    comes once, whatever its size. PyG's `DynamicBatchSampler` does not count the items that it
    skips, and so returns later items twice.

    For neighbour loaders, `neighborhood_sizes` estimates the size of an item.

    Args:
        dataset: a data set of graphs, or [n] sizes of the loader's seeds.
        max_num: largest size of a batch, in nodes or edges.
        mode: 'node' or 'edge': the size of a graph is its number of nodes, or of edges.
        shuffle: shuffle the items in each epoch.
        skip_too_big: leave out items larger than `max_num`. If False, each is a batch of its own.
        num_steps: largest number of batches in an epoch. If None, an epoch has all items.
        seed: seed of all epochs. If None, it is drawn once, from torch's default generator.

    Raises:
        ValueError: another mode, or a `max_num` that is not positive.

    Example:
        >>> list(DynamicBatchSampler(torch.tensor([3, 4, 9, 2, 2]), max_num=7))
        [[0, 1], [2], [3, 4]]
    """

    def __init__(
        self,
        dataset: Sequence[Data] | Numbers,
        max_num: int,
        mode: Literal["node", "edge"] = "node",
        shuffle: bool = False,
        skip_too_big: bool = False,
        num_steps: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        check_positive(max_num, "max_num")
        if mode not in ("node", "edge"):
            raise ValueError(f"mode must be 'node' or 'edge' (got {mode!r})")
        if num_steps is not None:
            check_positive(num_steps, "num_steps")
        self.max_num, self.mode, self.shuffle = max_num, mode, shuffle
        self.skip_too_big, self.num_steps = skip_too_big, num_steps
        self._sizes = _sizes(dataset, mode)

    def __len__(self) -> int:
        """Return the number of batches of the epoch that begins next."""
        return len(self._cuts(self._run_key(self.epoch))[1])

    def __iter__(self) -> Iterator[list[int]]:
        """Begin the next epoch, and yield its batches as lists of positions."""
        order, cuts = self._cuts(self._next_run_key())
        for first, last in cuts:
            yield order[first:last].tolist()

    def _cuts(self, run_key: int) -> tuple[Int64Array, list[tuple[int, int]]]:
        """Return an epoch's items in order, and each batch's (first, end) positions in this order.

        `run_key` is the key of the epoch's random numbers.
        """
        order = epoch_order(len(self._sizes), run_key, self.shuffle)
        order = np.arange(len(self._sizes)) if order is None else order
        if self.skip_too_big:
            order = order[self._sizes[order] <= self.max_num]
        ends = np.cumsum(self._sizes[order])
        cuts: list[tuple[int, int]] = []
        first, before = 0, 0.0
        while first < len(order) and len(cuts) != self.num_steps:
            last = int(np.searchsorted(ends, before + self.max_num, side="right"))
            last = max(last, first + 1)
            cuts.append((first, last))
            first, before = last, float(ends[last - 1])
        return order, cuts


def neighborhood_sizes(
    data: Data, num_neighbors: Sequence[int], input_nodes: Numbers | None = None
) -> Tensor:
    """Estimate the size of each seed's sampled neighbourhood, for `DynamicBatchSampler`.

    The size is the expected number of nodes of the tree that a seed draws. It is 1, plus the mean
    size of a neighbour's own tree for each of min(degree, fan-out) drawn neighbours. Nodes that
    several seeds share count once per seed, so a batch has fewer nodes than the sum.

    Args:
        data: a `Data` with `edge_index`.
        num_neighbors: fan-out of each hop. -1 takes all.
        input_nodes: ids or mask of the seeds. If None, all nodes.

    Returns:
        [number of seeds] float64.

    Example:
        >>> neighborhood_sizes(data, [2], torch.tensor([0, 3]))
        tensor([3., 3.], dtype=torch.float64)
    """
    if data.edge_index is None or data.num_nodes is None:
        raise ValueError("neighborhood_sizes needs a Data with edge_index and a number of nodes")
    src, dst = (to_int64(ends, "edge_index") for ends in data.edge_index)
    degree = np.bincount(dst, minlength=data.num_nodes).astype(np.float64)
    sizes: Float64Array = np.ones(data.num_nodes)
    for fanout in reversed(list(num_neighbors)):
        means = np.bincount(dst, sizes[src], data.num_nodes) / np.maximum(degree, 1)
        taken = degree if fanout < 0 else np.minimum(degree, fanout)
        sizes = 1 + taken * means
    all_sizes = torch.from_numpy(sizes)
    return all_sizes if input_nodes is None else all_sizes[torch.as_tensor(input_nodes)]


def _labels(dataset: Any, input_nodes: Any) -> Int64Array:
    if isinstance(dataset, HeteroData):
        if not isinstance(input_nodes, tuple):
            raise TypeError("of a HeteroData, input_nodes must be (node type, ids or None)")
        node_type, input_nodes = input_nodes
        y = dataset[node_type].y
    elif isinstance(dataset, Tensor):
        y = dataset
    elif isinstance(getattr(dataset, "y", None), Tensor):
        y = dataset.y
    else:
        y = torch.cat([torch.as_tensor(item.y).view(-1) for item in dataset])
    y = y.view(-1)
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"labels must be classes, integers (got {y.dtype})")
    return to_int64(y if input_nodes is None else y[input_nodes], "labels")


def _sizes(dataset: Any, mode: str) -> Float64Array:
    if isinstance(dataset, (Tensor, np.ndarray)):
        sizes = torch.as_tensor(dataset).view(-1).double().numpy()
    else:
        name = "num_nodes" if mode == "node" else "num_edges"
        sizes = np.array([getattr(item, name) for item in dataset], np.float64)
    if len(sizes) and not float(sizes.min()) >= 0:
        raise ValueError("sizes must not be negative")
    checked: Float64Array = sizes
    return checked
