"""What users hand to loaders in memory, checked before anything is made of it.

Runs in the trainer, and imports torch.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from khop.sampler.neighbor import NeighborSampler
from khop.sampler.source import open_input

WorkerType: TypeAlias = Literal["thread", "process"]
"""What `num_workers` counts."""

_OF_PROCESSES = ("worker_init_fn", "multiprocessing_context")


def check_loader_options(worker_type: Any, kwargs: dict[str, Any]) -> None:
    """Refuses arguments of torch's loader that make no batches or have no effect.

    Raises:
        TypeError, ValueError: says which.
    """
    if worker_type not in (None, "thread", "process"):
        raise ValueError(f"worker_type must be 'thread' or 'process' (got {worker_type!r})")
    if "batch_size" in kwargs and kwargs["batch_size"] is None and not kwargs.get("batch_sampler"):
        raise ValueError("batch_size=None makes no batches: give a number or a batch_sampler")
    if "num_workers" in kwargs:
        _check_index(kwargs["num_workers"], "num_workers")
    if kwargs.get("prefetch_factor") is not None:
        _check_index(kwargs["prefetch_factor"], "prefetch_factor")
    if not isinstance(kwargs.get("timeout", 0), Real):
        raise TypeError(f"timeout must be a number of seconds (got {kwargs['timeout']!r})")
    for name in ("sampler", "batch_sampler"):
        if kwargs.get(name) is not None and not isinstance(kwargs[name], Iterable):
            raise TypeError(f"{name} must be iterable (got {kwargs[name]!r})")
    if worker_type == "thread":
        for name in _OF_PROCESSES:
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"{name} is for worker processes: pass worker_type='process', or leave "
                    "worker_type out"
                )


def _check_index(value: Any, what: str) -> None:
    try:
        operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer (got {value!r})") from None


def wants_processes(loader: Any) -> bool:
    """Whether a loader whose `worker_type` is None was given what only processes have a use for.

    PyG's `enable_cpu_affinity` and its like set it while an epoch lasts.
    """
    return any(getattr(loader, name) is not None for name in _OF_PROCESSES)


def check_hooks(**hooks: Callable[[Any], Any] | None) -> None:
    """Raises TypeError unless hooks are None or can be called."""
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise TypeError(f"{name} must be a function of what it is applied to (got {hook!r})")


def check_sampler(sampler: Any, method: str, data: Any) -> None:
    """Refuses a `neighbor_sampler` that draws nothing, or nothing of `data`.

    Args:
        sampler: as the user passed it.
        method: of the sampler, that the loader calls.
        data: what the loader joins batches with, as `as_input` returns it.

    Raises:
        TypeError: no sampler.
        ValueError: a sampler of khop's over a graph of the other kind.
    """
    if isinstance(sampler, type) or not callable(getattr(sampler, method, None)):
        raise TypeError(
            "neighbor_sampler must be a sampler, such as khop.sampler.NeighborSampler(data, "
            f"[25, 10]) (got {sampler!r})"
        )
    if not isinstance(sampler, NeighborSampler):
        return
    kinds = ("homogeneous", "heterogeneous")
    drawn, joined = sampler.graph.is_heterogeneous, open_input(data).heterogeneous
    if drawn != joined:
        raise ValueError(
            f"neighbor_sampler draws from a {kinds[drawn]} graph, but data is {kinds[joined]}: "
            "make it of the same data"
        )


def check_no_type(given: Any, what: str, unit: str) -> None:
    """Raises ValueError for (type, seeds or links), which a homogeneous graph has no use for."""
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2
    named, rest = given if is_pair else (None, None)
    if isinstance(named, tuple):
        is_named = bool(named) and all(isinstance(name, str) for name in named)
    else:
        is_named = isinstance(named, str) and not isinstance(rest, str)
    if is_named:
        raise ValueError(
            f"{what} names {unit} {named!r}, but the graph is homogeneous and has no types: pass "
            f"what belongs to it alone (got {reprlib.repr(given)})"
        )


def as_tensor(given: Any, what: str) -> Tensor:
    """What users hand over for seeds or links, as tensor.

    Args:
        given: tensor, array or iterable; no integers come as int64.
        what: what it is called in error messages.

    Raises:
        TypeError: neither numbers nor booleans, or lists of different lengths.
    """
    if isinstance(given, Tensor):
        return given
    try:
        listed = given if isinstance(given, (list, tuple, np.ndarray)) else list(given)
        tensor: Tensor = torch.as_tensor(listed)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        named = isinstance(given, str) or (
            isinstance(given, (list, tuple)) and any(isinstance(value, str) for value in given)
        )
        remedy = ""
        if named:
            remedy = ": names and paths are not looked up, pass data['name'] or torch.load(path)"
        raise TypeError(
            f"{what} must be a tensor, an array or a sequence of numbers (got "
            f"{reprlib.repr(given)}){remedy}"
        ) from None
    is_empty = tensor.numel() == 0 and not isinstance(given, np.ndarray)
    return tensor.long() if is_empty else tensor


def checked_values(values: Any, count: int | None, what: str, unit: str) -> Tensor | None:
    """A value for each seed or link, as tensor.

    Args:
        values: tensor, array or sequence; None: there are none.
        count: how many there must be; None: only PyG can tell.
        what: what they are called in error messages.
        unit: what they are of, likewise.

    Raises:
        TypeError: no numbers.
        ValueError: another number.
    """
    if values is None:
        return None
    scalar = isinstance(values, Real) or getattr(values, "ndim", 1) == 0
    tensor = torch.as_tensor(values) if scalar else as_tensor(values, what)
    if tensor.dim() == 0 or (count is not None and len(tensor) != count):
        raise ValueError(
            f"{what} must hold an entry for each of {count} {unit} (got {list(tensor.shape)})"
        )
    return tensor


def exact_times(times: Any) -> Any:
    """Times as a tensor or array; of Python's floats torch would keep seven digits."""
    is_sequence = isinstance(times, (list, tuple)) and all(isinstance(t, Real) for t in times)
    return np.asarray(times) if is_sequence else times


def checked_negatives(neg_sampling: Any, ratio: Any) -> NegativeSampling | None:
    """What a loader of links was told of negatives, in PyG's form.

    Args:
        neg_sampling: PyG's `NegativeSampling`, a dictionary or a mode for one, or None.
        ratio: binary negatives a link, PyG's older name; None or 0: none.

    Raises:
        TypeError, ValueError: both are given, or what is given describes no negatives.
    """
    if neg_sampling is not None and ratio:
        raise ValueError("pass neg_sampling or neg_sampling_ratio, not both")
    if ratio is not None and not (isinstance(ratio, Real) and float(ratio) >= 0):
        raise ValueError(f"neg_sampling_ratio must be a number, 0 or positive (got {ratio!r})")
    if ratio:
        return NegativeSampling("binary", ratio)
    try:
        negatives = NegativeSampling.cast(neg_sampling)
    except (TypeError, ValueError) as error:
        raise type(error)(
            "neg_sampling must be 'binary' or 'triplet', or a dictionary of 'mode', a positive "
            f"'amount', 'src_weight' and 'dst_weight' (got {reprlib.repr(neg_sampling)}): {error}"
        ) from None
    for side in ("src_weight", "dst_weight"):
        if getattr(negatives, side, None) is not None:
            as_tensor(getattr(negatives, side), f"neg_sampling's {side}")
    return negatives
