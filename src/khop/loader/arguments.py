"""Checks of loaders' options beside seeds and links. Runs in trainers, and imports torch."""

from __future__ import annotations

import difflib
import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

from torch.utils.data import DataLoader
from torch_geometric.sampler import NegativeSampling

from khop.loader.inputs import as_tensor
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.source import open_input

_OF_PROCESSES = ("worker_init_fn", "multiprocessing_context")


def check_loader_options(worker_type: Any, kwargs: dict[str, Any]) -> None:
    """Reject arguments of torch's loader that make no batches or have no effect.

    Raises:
        TypeError, ValueError: an argument is invalid; the message names it.
    """
    if worker_type not in (None, "thread", "process"):
        raise ValueError(f"worker_type must be 'thread' or 'process' (got {worker_type!r})")
    _check_names(kwargs)
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


def _check_names(kwargs: dict[str, Any]) -> None:
    """Refuse mistyped options of torch's loader."""
    known = inspect.signature(DataLoader).parameters
    for name in kwargs.keys() - known.keys():
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise TypeError(f"no option {name!r}: did you mean {close[0]!r}?")


def _check_index(value: Any, what: str) -> None:
    try:
        operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer (got {value!r})") from None


def check_positive(value: Any, what: str) -> None:
    """Raise TypeError unless an argument is an integer, ValueError unless it is positive."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an integer (got {value!r})")
    if value < 1:
        raise ValueError(f"{what} must be at least 1 (got {value})")


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
