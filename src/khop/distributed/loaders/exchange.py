"""Exchange of rows between trainers, forwards and backwards, for cooperative batches.

Runs in trainers, over their process group (`trainer_group`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from khop.distributed.loaders.trainer_group import TrainerGroup


class _Exchange(torch.autograd.Function):
    """Rows to other trainers; in the backward pass, their gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange, ctx.size = exchange, x.size(0)
        rows: Tensor = exchange.group.send_all(x[exchange.rows], exchange.sent, exchange.received)
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        exchange = ctx.exchange
        back = exchange.group.send_all(grad, exchange.received, exchange.sent)
        out = back.new_zeros((ctx.size, *back.shape[1:]))
        return out.index_add_(0, exchange.rows, back), None


class Exchange:
    """Rows that this trainer sends to each other one, and how many it receives.

    All trainers call it together, as often and in the same order; in the backward pass as well.

    Args:
        rows: [n] int64 positions of rows to be sent, trainer by trainer.
        sent: number of rows for each trainer.
        received: number of rows from each trainer.
        group: the trainers.
    """

    def __init__(
        self, rows: Tensor, sent: list[int], received: list[int], group: TrainerGroup
    ) -> None:
        self.rows, self.sent, self.received, self.group = rows, sent, received, group

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows of other trainers, trainer by trainer: differentiable.

        Args:
            x: [num_rows, ...] this trainer's rows; of all trainers the same otherwise.
        """
        found: Tensor = _Exchange.apply(x, self)  # type: ignore[no-untyped-call]
        return found
