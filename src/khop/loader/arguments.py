"""Checks of the arguments of loaders in memory. Runs in the trainer, and imports torch."""

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
"""Meaning of `num_workers`: threads or processes."""

_OF_PROCESSES = ("worker_init_fn", "multiprocessing_context")


def check_loader_options(worker_type: Any, kwargs: dict[str, Any]) -> None:
    """Reject arguments of torch's loader that make no batches or have no effect.

    Raises:
        TypeError, ValueError: an argument is invalid; the message names it.
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
    """Return True if a loader with `worker_type` None has an argument that only processes use.

    PyG's `enable_cpu_affinity` and similar methods set one for the duration of an epoch.
    """
    return any(getattr(loader, name) is not None for name in _OF_PROCESSES)


def check_hooks(**hooks: Callable[[Any], Any] | None) -> None:
    """Raise TypeError unless every hook is None or callable."""
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise TypeError(f"{name} must be a function of what it is applied to (got {hook!r})")


def check_sampler(sampler: Any, method: str, data: Any) -> None:
    """Reject a `neighbor_sampler` that is no sampler or does not match `data`.

    Args:
        sampler: the user's argument.
        method: name of the sampler's method that the loader calls.
        data: data that the loader joins batches with, as `as_input` returns it.

    Raises:
        TypeError: it is not a sampler.
        ValueError: it is a khop sampler, and only one of its graph and `data` is heterogeneous.
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
    """Raise ValueError if a type is given for a homogeneous graph, as in (type, seeds or links)."""
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
    """Return a user's seeds or links as a tensor.

    Args:
        given: tensor, array or iterable of numbers; an empty list becomes int64.
        what: its name in error messages.

    Raises:
        TypeError: it holds neither numbers nor booleans, or lists of different lengths.
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
    """Return one value for each seed or link, as a tensor.

    Args:
        values: tensor, array or sequence. If None, the result is None.
        count: required number of values. If None, only PyG can check it.
        what: name of the values in error messages.
        unit: name of the seeds or links in error messages.

    Raises:
        TypeError: the values are not numbers.
        ValueError: their number differs from `count`.
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
    """Return times as tensor or array: of a list of floats, torch would keep only seven digits."""
    is_sequence = isinstance(times, (list, tuple)) and all(isinstance(t, Real) for t in times)
    return np.asarray(times) if is_sequence else times


def checked_negatives(neg_sampling: Any, ratio: Any) -> NegativeSampling | None:
    """Return the negatives of a link loader in PyG's form, or None for no negatives.

    Args:
        neg_sampling: PyG's `NegativeSampling`, a dictionary or a mode for one, or None.
        ratio: binary negatives per link, PyG's older argument. None or 0 adds no negatives.

    Raises:
        TypeError, ValueError: both are given, or an argument is invalid.
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
