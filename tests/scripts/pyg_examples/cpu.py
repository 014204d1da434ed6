"""The CPU in place of GPUs, for examples that train on several of them: gloo in place of NCCL.

Such examples use their rank as the device, `tensor.to(rank)`, and ask how many GPUs there are.
`install` makes this mean the CPU, in two processes.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import torch.distributed
import torch.nn.parallel
from torch.nn.parameter import UninitializedTensorMixin


def _is_device(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _on_cpu(function: Any) -> Any:
    """Return a function whose device is the CPU if it is given as a number."""

    @functools.wraps(function)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and _is_device(args[0]):
            args = ("cpu", *args[1:])
        if _is_device(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(self, *args, **kwargs)

    return moved


def _with_gloo(init_process_group: Any) -> Any:
    @functools.wraps(init_process_group)
    def initialised(backend: str, *args: Any, **kwargs: Any) -> Any:
        if "MASTER_PORT" in os.environ:  # that of the run, not the one that examples share
            os.environ["MASTER_PORT"] = os.environ.get("EXAMPLE_PORT", os.environ["MASTER_PORT"])
        return init_process_group("gloo", *args, **kwargs)

    return initialised


def install() -> None:
    """Replace what examples call of CUDA."""
    torch.Tensor.to = _on_cpu(torch.Tensor.to)  # type: ignore[method-assign]
    UninitializedTensorMixin._allowed_methods.append(torch.Tensor.to)
    torch.nn.Module.to = _on_cpu(torch.nn.Module.to)  # type: ignore[method-assign]
    tensor = torch.tensor
    torch.tensor = lambda *a, device=None, **k: tensor(  # type: ignore[assignment]
        *a, device="cpu" if _is_device(device) else device, **k
    )
    wrapped = torch.nn.parallel.DistributedDataParallel
    torch.nn.parallel.DistributedDataParallel = (  # type: ignore[misc,assignment]
        lambda model, device_ids=None, **kwargs: wrapped(model, **kwargs)
    )
    torch.distributed.init_process_group = _with_gloo(torch.distributed.init_process_group)
    reduce_ = torch.distributed.all_reduce

    def all_reduce(value: Any, op: Any = torch.distributed.ReduceOp.SUM) -> None:
        """Averages, which gloo lacks, too."""
        average = op == torch.distributed.ReduceOp.AVG
        reduce_(value, op=torch.distributed.ReduceOp.SUM if average else op)
        if average:
            value /= torch.distributed.get_world_size()

    torch.distributed.all_reduce = all_reduce
    torch.cuda.device_count = lambda: 2
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.cuda.set_device = lambda *_: None
