"""Modules whose parameters are tensors of a `khop.distributed.GraphStore`. Runs in trainers."""

from __future__ import annotations

import torch
from torch import Tensor

from khop.data.arrays import to_ids
from khop.distributed.tensors.graph_store import GraphStore
from khop.distributed.tensors.graph_tensor import GraphTensor
from khop.typing import Int64Array, NodeType, RowInit

__all__ = ["DistEmbedding"]


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
        if dtype not in (torch.float32, torch.bfloat16):
            raise TypeError(f"embeddings are float32 or bfloat16 (got {dtype})")
        if node_type is None:
            counts = store.node_counts
            fitting = [t for t, count in counts.items() if count == num_embeddings]
            if len(fitting) != 1:
                raise ValueError(
                    f"{num_embeddings} embeddings fit the node types {fitting} (there are "
                    f"{counts}): name one by node_type="
                )
            (node_type,) = fitting
        self.store, self.node_type = store, node_type
        self.weight: GraphTensor
        if name in store:
            self.weight = store[name]
        else:
            self.weight = store.create_node_tensor(
                name, node_type, (embedding_dim,), dtype, init, on_disk
            )
        if self.weight.shape != (num_embeddings, embedding_dim) or self.weight.dtype != dtype:
            raise ValueError(
                f"the embeddings must be {[num_embeddings, embedding_dim]} {dtype}, but "
                f"{self.weight} is not: there must be one per node"
            )
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
        original = to_ids(ids.reshape(-1).cpu(), "ids").astype("int64", copy=False)
        rows = self.weight.pull(original).float().to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self.ids.append(original)
            self.rows.append(rows)
        return rows.view(*ids.shape, rows.size(1))
