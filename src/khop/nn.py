"""Modules whose parameters are tensors of a `khop.distributed.GraphStore`. Runs in trainers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from khop.data.arrays import to_ids
from khop.distributed.tensors.graph_store import GraphStore
from khop.distributed.tensors.graph_tensor import GraphTensor, Pull, Push
from khop.typing import Int64Array, NodeType, RowInit

__all__ = ["DistEmbedding", "History", "mvs_chances"]

_ROWS_AT_ONCE = 1 << 16


class DistEmbedding(torch.nn.Module):
    """Learnable embeddings of all nodes of a type, over the partitions.

    A call pulls the rows of a batch. Their gradients stay with the module until an optimiser of
    `khop.optim` takes them. The module has no torch parameters: DistributedDataParallel leaves it
    alone, and torch's optimisers do not see it. All trainers make it together.

    Args:
        num_embeddings: number of embeddings, one per node of the type.
        embedding_dim: size of an embedding.
        store: the store that has the embeddings.
        name: name of the tensor in the store. If the store has it, its values are used.
        node_type: the node type. If None, the only one with `num_embeddings` nodes.
        dtype: torch.float32, or torch.bfloat16 for half the memory. Rows are delivered as float32.
        init: first values: ('normal', seed), as of `torch.nn.Embedding`, 'zeros' or an array.
        on_disk: keep rows, and states of optimisers, on disk: see `GraphStore.create_node_tensor`.

    Raises:
        ValueError: no node type, or several, have `num_embeddings` nodes.
        TypeError: another dtype.

    Example:
        >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
        >>> embedding = DistEmbedding(6, 8, store, "embedding")
        >>> embedding(torch.tensor([[0, 1], [4, 0]])).shape
        torch.Size([2, 2, 8])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        store: GraphStore,
        name: str,
        node_type: NodeType | None = None,
        dtype: torch.dtype = torch.float32,
        init: RowInit = ("normal", 0),
        on_disk: int | str | None = None,
    ) -> None:
        super().__init__()
        self.store = store
        shape = num_embeddings, embedding_dim
        self.weight = _rows_of(store, name, shape, node_type, dtype, init, "embeddings", on_disk)
        self.node_type: NodeType = self.weight.group  # type: ignore[assignment]
        self.ids: list[Int64Array] = []
        """Ids of the calls whose gradients no optimiser has taken yet."""
        self.rows: list[Tensor] = []
        """The rows that these calls returned."""

    def extra_repr(self) -> str:
        """Return the tensor, for `repr`."""
        return repr(self.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings of nodes, float32, on the device of `ids`.

        While gradients are on, the module keeps the rows until the optimiser's `step` or
        `zero_grad`. Without an optimiser, call it under `torch.no_grad()`.

        Args:
            ids: original ids, int64, of any shape.

        Returns:
            [*ids.shape, embedding_dim].
        """
        original = _ids_of(ids.reshape(-1))
        rows = self.weight.pull(original).float().to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self.ids.append(original)
            self.rows.append(rows)
        return rows.view(*ids.shape, rows.size(1))


class History(torch.nn.Module):
    """Rows of all nodes from earlier batches, over the partitions: a distributed PyG `History`.

    Training pushes activations of a layer, and pulls rows of nodes that it does not compute. There
    are no gradients. As in PyG-AutoScale, rows are zeros at first. Pushes are applied at
    `GraphStore.step`, which all trainers call together. All trainers make the history together.

    Args:
        num_embeddings: number of rows, one per node of the type.
        embedding_dim: size of a row.
        store: the store that has the rows.
        name: name of the tensor in the store. If the store has it, its values are used.
        node_type: the node type. If None, the only one with `num_embeddings` nodes.
        dtype: torch.float32, or torch.bfloat16 for half the memory. Rows are delivered as float32.
        relaxed: apply pushes when they arrive, as PyG does. Steps are not needed then, and values
            depend on the order of arrival.

    Raises:
        ValueError, TypeError: see `DistEmbedding`.

    Example:
        >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
        >>> history = khop.nn.History(6, 2, store, "h0")
        >>> _ = history.push(torch.ones(2, 2), torch.tensor([3, 5]))
        >>> store.step(), history.pull(torch.tensor([5, 0])).tolist()
        (1, [[1.0, 1.0], [0.0, 0.0]])

    Method: GNNAutoScale (https://arxiv.org/abs/2106.05609).
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        store: GraphStore,
        name: str,
        node_type: NodeType | None = None,
        dtype: torch.dtype = torch.float32,
        relaxed: bool = False,
    ) -> None:
        super().__init__()
        shape = num_embeddings, embedding_dim
        self.emb = _rows_of(store, name, shape, node_type, dtype, "zeros", "rows")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.relaxed = relaxed
        self.age = 0
        """Number of steps that have ended since the rows of the last `pull` were read."""
        self._ahead: tuple[Int64Array, Pull] | None = None

    def extra_repr(self) -> str:
        """Return the tensor, for `repr`."""
        return repr(self.emb)

    def reset_parameters(self) -> None:
        """Set all rows to zeros at once. One trainer suffices."""
        for first in range(0, self.num_embeddings, _ROWS_AT_ONCE):
            rows = slice(first, min(first + _ROWS_AT_ONCE, self.num_embeddings))
            zeros = torch.zeros(rows.stop - first, self.embedding_dim, dtype=self.emb.dtype)
            self.emb.push(rows, zeros, relaxed=True).wait()

    def prefetch(self, n_id: Tensor) -> None:
        """Begin to pull rows of a later batch, while this one trains.

        The next `pull` of the same ids returns these rows. They do not have the steps that end in
        between, which `age` counts. A second prefetch replaces the first.

        Args:
            n_id: [n] int64 original ids.
        """
        ids = _ids_of(n_id)
        self._ahead = ids, self.emb.start_pull(ids)

    def pull(self, n_id: Tensor | None = None) -> Tensor:
        """Return rows after the last step, or the rows of `prefetch` if it had the same ids.

        Args:
            n_id: [n] int64 original ids. If None, all.

        Returns:
            [n, embedding_dim] float32, without gradients, on the device of `n_id`.
        """
        if n_id is None:
            self.age = 0
            return self.emb.pull().float()
        ids, ahead = _ids_of(n_id), self._ahead
        if ahead is not None and np.array_equal(ahead[0], ids):
            self.age, self._ahead = ahead[1].age, None
            return ahead[1].wait().float().to(n_id.device)
        self.age = 0
        return self.emb.pull(ids).float().to(n_id.device)

    @torch.no_grad()
    def push(
        self,
        x: Tensor,
        n_id: Tensor | None = None,
        offset: Tensor | None = None,
        count: Tensor | None = None,
    ) -> Push:
        """Set rows, at the end of the step.

        Args:
            x: [n, embedding_dim] floats, on any device.
            n_id: [n] int64 original ids. If None, all, or the runs of `offset` and `count`.
            offset: [r] int64 first ids of runs of consecutive ids.
            count: [r] int64 lengths of the runs. Rows of `x` beyond the runs are not used.

        Returns:
            The push. `GraphStore.step` waits for it.
        """
        if offset is not None and count is not None:
            runs = zip(offset.tolist(), count.tolist(), strict=True)
            ids = np.concatenate([np.arange(first, first + size) for first, size in runs])
            x = x[: len(ids)]
        else:
            ids = np.arange(self.num_embeddings) if n_id is None else _ids_of(n_id)
        return self.emb.push(ids, x.detach().cpu().to(self.emb.dtype), relaxed=self.relaxed)


def mvs_chances(norms: Tensor, count: float, explore: float = 0.0) -> Tensor:
    """Return the chance of each seed to be drawn, so that gradients vary least.

    Seeds are drawn independently of one another. The loss of a drawn seed is divided by its chance.
    Then the gradient has no bias, and its variance is the least for this number of seeds.

    Args:
        norms: [n] norms of the seeds' gradients, floats of 0 or more, such as rows of a `History`.
        count: number of seeds drawn in the mean, more than 0, at most n.
        explore: share of `count` that is drawn uniformly, 0 to 1. Norms of earlier batches are not
            exact, so a seed whose norm was small needs a chance, too.

    Returns:
        [n] float64 chances, 0 to 1, with the sum `count`. If all norms are 0, all are equal.

    Raises:
        ValueError: `norms` are no vector, negative or not finite, or another argument is out of
            range.

    Example:
        >>> mvs_chances(torch.tensor([1.0, 2.0, 9.0]), 2).tolist()
        [0.3333333333333333, 0.6666666666666666, 1.0]

    Method: MVS (https://arxiv.org/abs/1910.13204), of gradients as in MVS-GNN
    (https://arxiv.org/abs/2006.13866).
    """
    sizes = norms.detach().cpu().double()
    num_seeds = sizes.numel()
    if sizes.dim() != 1 or not bool(torch.isfinite(sizes).all()) or bool((sizes < 0).any()):
        raise ValueError(f"norms must be [n] finite numbers of 0 or more (got {norms})")
    if not 0 < count <= num_seeds or not 0 <= explore <= 1:
        raise ValueError(
            f"count must be more than 0 and at most {num_seeds}, and explore 0 to 1 (got {count} "
            f"and {explore})"
        )
    largest, order = sizes.sort(descending=True)
    # The k largest have the chance 1, for the smallest k that leaves the others at most 1.
    rest = largest.flip(0).cumsum(0).flip(0)
    left = count - torch.arange(num_seeds, dtype=torch.float64)
    k = int(((largest * left > rest) & (left > 0)).sum())
    chances = torch.ones(num_seeds, dtype=torch.float64)
    if k < num_seeds:
        total = float(rest[k])
        shares = largest[k:] / total if total > 0 else torch.full_like(largest[k:], 1.0)
        shares = shares if total > 0 else shares / (num_seeds - k)
        chances[k:] = shares * (count - k)
    in_order = torch.empty_like(chances)
    in_order[order] = chances.clamp(max=1.0)
    return (1 - explore) * in_order + explore * count / num_seeds


def _ids_of(n_id: Tensor) -> Int64Array:
    return to_ids(n_id.detach().cpu(), "ids").astype("int64", copy=False)


def _rows_of(
    store: GraphStore,
    name: str,
    shape: tuple[int, int],
    node_type: NodeType | None,
    dtype: torch.dtype,
    init: RowInit,
    label: str,
    on_disk: int | str | None = None,
) -> GraphTensor:
    """Return the tensor of a module, with a row per node, and make it if the store has none."""
    count, width = shape
    if dtype not in (torch.float32, torch.bfloat16):
        raise TypeError(f"{label} are float32 or bfloat16 (got {dtype})")
    if node_type is None:
        counts = store.node_counts
        fitting = [t for t, nodes in counts.items() if nodes == count]
        if len(fitting) != 1:
            raise ValueError(
                f"{count} {label} fit the node types {fitting} (there are {counts}): name one by "
                "node_type="
            )
        (node_type,) = fitting
    if name in store:
        tensor = store[name]
    else:
        tensor = store.create_node_tensor(name, node_type, (width,), dtype, init, on_disk)
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ValueError(
            f"the {label} must be {list(shape)} {dtype}, but {tensor} is not: there must be one "
            "per node"
        )
    return tensor
