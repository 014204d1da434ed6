"""Exchange of rows between trainers, forwards and backwards, for cooperative batches.

Runs in trainers, over a process group of torch.distributed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def send_all(rows: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    """Send rows to all trainers, and return those that they have sent.

    Args:
        rows: [n, ...] rows, trainer by trainer.
        sent: number of rows for each trainer.
        received: number of rows from each trainer.
        group: the process group.
    """
    out = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
    return out


def send_counts(sent: list[int], group: Any) -> list[int]:
    """Send a number to each trainer, and return theirs."""
    one = [1] * len(sent)
    return send_all(torch.tensor(sent), one, one, group).tolist()


class _Exchange(torch.autograd.Function):
    """Rows to other trainers; in the backward pass, their gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange, ctx.size = exchange, x.size(0)
        return send_all(x[exchange.rows], exchange.sent, exchange.received, exchange.group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        exchange = ctx.exchange
        back = send_all(grad, exchange.received, exchange.sent, exchange.group)
        out = back.new_zeros((ctx.size, *back.shape[1:]))
        return out.index_add_(0, exchange.rows, back), None


class Exchange:
    """Rows that this trainer sends to each other one, and how many it receives.

    All trainers call it together, as often and in the same order; in the backward pass as well.

    Args:
        rows: [n] int64 positions of rows to be sent, trainer by trainer.
        sent: number of rows for each trainer.
        received: number of rows from each trainer.
        group: the process group.
    """

    def __init__(self, rows: Tensor, sent: list[int], received: list[int], group: Any) -> None:
        self.rows, self.sent, self.received, self.group = rows, sent, received, group

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows of other trainers, trainer by trainer: differentiable.

        Args:
            x: [num_rows, ...] this trainer's rows; of all trainers the same otherwise.
        """
        found: Tensor = _Exchange.apply(x, self)  # type: ignore[no-untyped-call]
        return found
