"""Optimisers of `khop.nn.DistEmbedding`, with the formulas of torch.optim. Runs in trainers.

An update sums the gradients of a row over a batch and over all trainers. It divides the sum by the
number of trainers, as DistributedDataParallel does. So an embedding over several trainers learns as
`torch.nn.Embedding(sparse=True)` would. Rows without gradients do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from khop.distributed.tensors.graph_store import GraphStore
from khop.distributed.tensors.tensor_requests import RowUpdate, Rule
from khop.nn import DistEmbedding

__all__ = ["GradScaler", "RowwiseAdagrad", "SparseAdagrad", "SparseAdam", "SparseSGD"]


class SparseOptimizer(torch.optim.Optimizer):
    """Base of the optimisers: pushes gradients and ends a step of the store.

    A subclass has `rule`, and the names of its states with their width.
    `param_groups` has one group per embedding, with its options, so schedulers of learning rates
    work. All trainers make the optimiser, and call `step`, together.

    Args:
        embeddings: the embeddings, all of one store.
        options: the options of all groups.

    Raises:
        ValueError: no embeddings, or embeddings of several stores.
    """

    _step_supports_amp_scaling = True  # torch's GradScaler then always calls `step`
    grad_scale: Tensor | None
    found_inf: Tensor

    rule: ClassVar[Rule]
    states: ClassVar[Mapping[str, bool]] = {}
    """{name of a state: True if it has a value for each value of a row, else one for each row}."""

    def __init__(self, embeddings: Iterable[DistEmbedding], options: dict[str, Any]) -> None:
        self.embeddings = [embeddings] if isinstance(embeddings, DistEmbedding) else [*embeddings]
        stores = {id(embedding.store) for embedding in self.embeddings}
        if len(stores) != 1:
            raise ValueError(f"an optimiser needs embeddings of one store (got {len(stores)})")
        placeholders = [{"params": [torch.zeros(0)]} for _ in self.embeddings]
        super().__init__(placeholders, options)
        self.store: GraphStore = self.embeddings[0].store
        for group, embedding in zip(self.param_groups, self.embeddings, strict=True):
            group["params"] = embedding.rows  # what the last calls returned, with gradients
            group["steps"] = 0
            for state, is_wide in self.states.items():
                name = self._state_name(embedding, state)
                if name not in self.store:
                    shape = embedding.weight.shape[1:] if is_wide else ()
                    on_disk = embedding.weight.spec.cache_bytes if is_wide else None
                    self.store.create_node_tensor(name, embedding.node_type, shape, on_disk=on_disk)

    def _state_name(self, embedding: DistEmbedding, state: str) -> str:
        return f"{embedding.weight.name}/{self.rule}/{state}"

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the embeddings by the gradients of all trainers. All trainers call it together.

        It ends a step of the store, with all other pushes of the step. If a GradScaler calls it,
        and any trainer's gradients have infinities or NaNs, no trainer's gradients are applied.

        Raises:
            StateLostError, PartitionUnavailableError, RendezvousError: see `GraphStore.step`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        has_overflow = hasattr(self, "found_inf") and self.store.any_trainer(bool(self.found_inf))
        updates = self._push_gradients() if not has_overflow else []
        self.zero_grad()
        self.store.end_step(updates)
        return loss

    def _push_gradients(self) -> list[RowUpdate]:
        """Push the gradients of this trainer, and return the updates of the step."""
        updates, scale = [], getattr(self, "grad_scale", None)
        factor = 1.0 if scale is None else float(scale.double().reciprocal().float())
        for group, embedding in zip(self.param_groups, self.embeddings, strict=True):
            for ids, rows in zip(embedding.ids, embedding.rows, strict=True):
                if rows.grad is not None:
                    gradients = rows.grad if scale is None else rows.grad * factor
                    embedding.weight.push_gradients(ids, gradients.float().cpu().numpy())
            group["steps"] += 1
            states = [self._state_name(embedding, state) for state in self.states]
            epsilon, (beta1, beta2) = group.get("eps", 0.0), group.get("betas", (0.0, 0.0))
            share = 1.0 / self.store.num_trainers if group["average"] else 1.0
            constants = self._rate(group), epsilon, beta1, beta2, share
            updates.append(RowUpdate(embedding.weight.name, self.rule, states, *constants))
        return updates

    def _rate(self, group: Mapping[str, Any]) -> float:
        """Return the learning rate of this step."""
        return float(group["lr"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the rows of all calls since the last step, with their gradients."""
        del set_to_none
        for embedding in self.embeddings:
            embedding.ids.clear()
            embedding.rows.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the options and the numbers of steps. States of rows are tensors of the store."""
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"rule": self.rule, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over options and numbers of steps.

        Raises:
            ValueError: the state is of another rule or number of embeddings.
        """
        groups = state_dict.get("param_groups", [])
        if state_dict.get("rule") != self.rule or len(groups) != len(self.param_groups):
            raise ValueError(
                f"the state is of '{state_dict.get('rule')}' with {len(groups)} embeddings, this "
                f"optimiser is '{self.rule}' with {len(self.param_groups)}"
            )
        for group, saved in zip(self.param_groups, groups, strict=True):
            group.update(saved)


class SparseSGD(SparseOptimizer):
    """Stochastic gradient descent: row -= lr * gradient, as `torch.optim.SGD`.

    Args:
        embeddings: the embeddings.
        lr: learning rate.
        average: divide sums of gradients by the number of trainers.

    Example:
        >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
        >>> embedding = khop.nn.DistEmbedding(6, 2, store, "e", init="zeros")
        >>> optimizer = SparseSGD([embedding], lr=1.0)
        >>> embedding(torch.tensor([4])).sum().backward(), optimizer.step()
        (None, None)
    """

    rule: ClassVar[Rule] = "sgd"

    def __init__(
        self, embeddings: Iterable[DistEmbedding], lr: float = 0.001, average: bool = True
    ) -> None:
        super().__init__(embeddings, {"lr": lr, "average": average})


class SparseAdagrad(SparseOptimizer):
    """Adagrad, as `torch.optim.Adagrad` for sparse gradients.

    Args:
        embeddings: the embeddings.
        lr: learning rate.
        eps: added to the square root of the sum of squared gradients.
        lr_decay: decay of the learning rate per step.
        average: divide sums of gradients by the number of trainers.

    Example:
        >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
        >>> embedding = khop.nn.DistEmbedding(6, 2, store, "e", init="zeros")
        >>> optimizer = SparseAdagrad([embedding], lr=1.0)
        >>> embedding(torch.tensor([4])).sum().backward(), optimizer.step()
        (None, None)
    """

    rule: ClassVar[Rule] = "adagrad"
    states: ClassVar[Mapping[str, bool]] = {"sum": True}

    def __init__(
        self,
        embeddings: Iterable[DistEmbedding],
        lr: float = 0.01,
        eps: float = 1e-10,
        lr_decay: float = 0.0,
        average: bool = True,
    ) -> None:
        options = {"lr": lr, "eps": eps, "lr_decay": lr_decay, "average": average}
        super().__init__(embeddings, options)

    def _rate(self, group: Mapping[str, Any]) -> float:
        return float(group["lr"] / (1 + (group["steps"] - 1) * group["lr_decay"]))


class RowwiseAdagrad(SparseAdagrad):
    """Adagrad with one sum per row, of the mean of its squared gradients.

    Its state takes 4 bytes per row. Arguments: see `SparseAdagrad`.

    Example:
        >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
        >>> embedding = khop.nn.DistEmbedding(6, 2, store, "e", init="zeros")
        >>> optimizer = RowwiseAdagrad([embedding], lr=1.0)
        >>> embedding(torch.tensor([4])).sum().backward(), optimizer.step()
        (None, None)
    """

    rule: ClassVar[Rule] = "rowwise_adagrad"
    states: ClassVar[Mapping[str, bool]] = {"sum": False}


class SparseAdam(SparseOptimizer):
    """Adam for rows with gradients alone, as `torch.optim.SparseAdam`.

    Args:
        embeddings: the embeddings.
        lr: learning rate.
        betas: decay of the means of gradients and of squared gradients.
        eps: added to the square root of the mean of squared gradients.
        average: divide sums of gradients by the number of trainers.

    Example:
        >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
        >>> embedding = khop.nn.DistEmbedding(6, 2, store, "e", init="zeros")
        >>> optimizer = SparseAdam([embedding], lr=1.0)
        >>> embedding(torch.tensor([4])).sum().backward(), optimizer.step()
        (None, None)
    """

    rule: ClassVar[Rule] = "adam"
    states: ClassVar[Mapping[str, bool]] = {"mean": True, "square": True}

    def __init__(
        self,
        embeddings: Iterable[DistEmbedding],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        average: bool = True,
    ) -> None:
        super().__init__(embeddings, {"lr": lr, "betas": betas, "eps": eps, "average": average})

    def _rate(self, group: Mapping[str, Any]) -> float:
        beta1, beta2 = group["betas"]
        corrections = math.sqrt(1 - beta2 ** group["steps"]) / (1 - beta1 ** group["steps"])
        return float(group["lr"] * corrections)


class GradScaler(torch.amp.GradScaler):
    """torch's `GradScaler`, whose trainers find infinities together.

    If one trainer's gradients have infinities or NaNs, all trainers skip the step of all
    optimisers, and their scales stay equal. All trainers call its methods together. torch's own
    scaler is enough if it scales embeddings of a store alone.

    Args:
        store: the store whose trainers use the scaler.
        device: device type of the gradients, as of `torch.amp.GradScaler`.
        options: further arguments of `torch.amp.GradScaler`.

    Example:
        >>> store = khop.distributed.GraphStore(DistDataset.from_folder(folder))
        >>> embedding = khop.nn.DistEmbedding(6, 2, store, "e", init="zeros")
        >>> optimizer, scaler = SparseSGD([embedding], lr=1.0), GradScaler(store, "cpu")
        >>> scaler.scale(embedding(torch.tensor([4])).sum()).backward()
        >>> scaler.step(optimizer), scaler.update(), embedding.weight[4].tolist()
        (None, None, [-1.0, -1.0])
    """

    def __init__(self, store: GraphStore, device: str = "cuda", **options: Any) -> None:
        super().__init__(device, **options)
        self._store = store

    def _unscale_grads_(self, optimizer: Any, *arguments: Any) -> dict[torch.device, Tensor]:
        flags: dict[torch.device, Tensor] = super()._unscale_grads_(optimizer, *arguments)
        is_any = self._store.any_trainer(any(bool(flag) for flag in flags.values()))
        if not flags:  # this trainer has no gradients
            flags = {torch.device("cpu"): torch.zeros(())}
        for flag in flags.values():
            flag.fill_(float(is_any))
        return flags
