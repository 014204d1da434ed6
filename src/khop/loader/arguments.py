"""Types and checks of loaders' options beside seeds and links. Runs in trainers, imports torch."""

from __future__ import annotations

import difflib
import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import BaseContext
from numbers import Real
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

import torch
from torch.utils.data import DataLoader
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)

from khop.data.device import is_cpu
from khop.loader.inputs import as_tensor
from khop.sampler.pyg.device import DeviceOptions
from khop.sampler.pyg.neighbor import NeighborSampler
from khop.sampler.pyg.source import open_input
from khop.typing import Numbers, Transform, WorkerType

_OF_PROCESSES = ("worker_init_fn", "multiprocessing_context")

TORCH_OPTIONS = inspect.signature(DataLoader.__init__).parameters.keys() - {"self", "dataset"}
"""Names of the keyword arguments of torch's loader."""


class TorchOptions(TypedDict, total=False):
    """Keyword arguments of `torch.utils.data.DataLoader` beside `batch_size`, with its defaults.

    Example:
        >>> options: TorchOptions = {"shuffle": True, "num_workers": 1}
        >>> len(NeighborLoader(data, [2], batch_size=3, **options))
        2
    """

    shuffle: bool | None
    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None
    drop_last: bool
    num_workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: BaseContext | str | None
    generator: torch.Generator | None
    timeout: float
    pin_memory: bool
    pin_memory_device: str
    in_order: bool


class KeyOptions(TorchOptions, total=False):
    """Keyword arguments of all loaders: torch's, and options of random numbers and workers.

    Example:
        >>> options: KeyOptions = {"shuffle": True, "seed": 1}
        >>> len(NeighborLoader(data, [2], batch_size=3, **options))
        2
    """

    seed: int | None
    stream: int | None
    worker_type: WorkerType | None


class EpochOptions(KeyOptions, total=False):
    """Keyword arguments of `ClusterLoader`, `RandomNodeLoader` and GraphSAINT's samplers.

    Example:
        >>> options: EpochOptions = {"shuffle": True, "seed": 1}
        >>> len(RandomNodeLoader(data, 2, **options))
        2
    """

    transform: Transform | None


class HopOptions(KeyOptions, total=False):
    """Keyword arguments of `HGTLoader`, and of the loaders that take `NodeOptions`.

    Example:
        >>> options: HopOptions = {"batch_size": 3, "device": "cpu"}
        >>> len(HGTLoader(data, [2], torch.arange(6), **options))
        2
    """

    batch_size: int | None
    input_time: Numbers | None
    input_id: Numbers | None
    temporal_strategy: Literal["uniform", "last"]
    time_attr: str | None
    weight_attr: str | None
    device: str | int | torch.device | None
    device_options: DeviceOptions | None


class NodeOptions(HopOptions, EpochOptions, total=False):
    """Keyword arguments of `ShaDowKHopSampler` and `SubGraphLoader`.

    Example:
        >>> options: NodeOptions = {"batch_size": 3, "transform": ToLayers()}
        >>> len(SubGraphLoader(data, torch.arange(6), **options))
        2
    """

    filter_per_worker: bool | None
    is_sorted: bool


class _NodeSampler(Protocol):
    def sample_from_nodes(
        self, index: NodeSamplerInput, /
    ) -> SamplerOutput | HeteroSamplerOutput: ...


class _LinkSampler(Protocol):
    def sample_from_edges(
        self, index: EdgeSamplerInput, /, neg_sampling: NegativeSampling | None
    ) -> SamplerOutput | HeteroSamplerOutput: ...


class _Negatives(Protocol):
    """PyG's `NegativeSampling` as a type, also for type checkers that do not read PyG's code."""

    def is_binary(self) -> bool: ...

    def is_triplet(self) -> bool: ...


_NegSampling: TypeAlias = Literal["binary", "triplet"] | Mapping[str, object] | _Negatives | None


def check_loader_options(
    worker_type: object, options: Mapping[str, Any], batch_size: int | None = 1
) -> None:
    """Raise TypeError or ValueError for `DataLoader` options with which no batches can be made.

    `batch_size` None is valid only with a `batch_sampler`.
    """
    if worker_type not in (None, "thread", "process"):
        raise ValueError(f"worker_type must be 'thread' or 'process' (got {worker_type!r})")
    known = inspect.signature(DataLoader).parameters
    for name in options.keys() - known.keys():
        if close := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            raise TypeError(f"no option {name!r}: did you mean {close[0]!r}?")
    if batch_size is None and not options.get("batch_sampler"):
        raise ValueError("batch_size=None makes no batches: give a number or a batch_sampler")
    if "num_workers" in options:
        _check_index(options["num_workers"], "num_workers")
    if options.get("prefetch_factor") is not None:
        _check_index(options["prefetch_factor"], "prefetch_factor")
    if not isinstance(options.get("timeout", 0), Real):
        raise TypeError(f"timeout must be a number of seconds (got {options['timeout']!r})")
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None and not isinstance(options[name], Iterable):
            raise TypeError(f"{name} must be iterable (got {options[name]!r})")
    for name in _OF_PROCESSES if worker_type == "thread" else ():
        if options.get(name) is not None:
            raise ValueError(
                f"{name} is for worker processes: pass worker_type='process', or leave worker_type "
                "out"
            )


def _check_index(value: Any, name: str) -> None:
    try:
        operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer (got {value!r})") from None


def check_positive(value: object, name: str) -> None:
    """Raise TypeError unless `value` is an integer, ValueError unless it is positive.

    `name` is the argument's name in the message.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer (got {value!r})")
    if value < 1:
        raise ValueError(f"{name} must be at least 1 (got {value})")


def wants_processes(loader: object) -> bool:
    """Return True if a loader needs torch's worker processes, though its `worker_type` is None.

    It does with an argument that only processes use, such as `worker_init_fn`. PyG's
    `enable_cpu_affinity` and similar methods set such an argument for a block of code.
    """
    return any(getattr(loader, name) is not None for name in _OF_PROCESSES)


def check_hooks(**hooks: object) -> None:
    """Raise TypeError unless every hook, by argument name, is None or callable."""
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise TypeError(f"{name} must be a function of what it is applied to (got {hook!r})")


def refuse_settled(owner: object, names: Iterable[str], options: Mapping[str, object]) -> None:
    """Raise TypeError if `options` has any of `names`, which the loader class sets itself.

    `owner` is the loader, named in the message.
    """
    for name in names:
        if name in options:
            raise TypeError(f"{type(owner).__name__} has no argument {name}: leave it out")


def check_sampler(
    sampler: object, method: str, data: Any, device: str | int | torch.device | None
) -> None:
    """Raise TypeError or ValueError unless a user's `neighbor_sampler` fits the loader of `data`.

    A sampler of khop fits if its graph and `data` are both heterogeneous, or both homogeneous. Each
    sampler must have the method of this name, such as 'sample_from_nodes'. With it, the loader must
    have no `device` of its own.
    """
    if not is_cpu(device):
        raise ValueError("pass device to the sampler that is given, not to the loader")
    if isinstance(sampler, type) or not callable(getattr(sampler, method, None)):
        raise TypeError(
            "neighbor_sampler must be a sampler, such as khop.sampler.NeighborSampler(data, "
            f"[25, 10]) (got {sampler!r})"
        )
    if not isinstance(sampler, NeighborSampler):
        return
    names = ("homogeneous", "heterogeneous")
    drawn, joined = sampler.graph.is_heterogeneous, open_input(data).heterogeneous
    if drawn != joined:
        raise ValueError(
            f"neighbor_sampler draws from a {names[drawn]} graph, but data is {names[joined]}: "
            "make it of the same data"
        )


def checked_negatives(neg_sampling: Any, ratio: Any) -> NegativeSampling | None:
    """Return the negatives of a link loader in PyG's form, or None for no negatives.

    The older `ratio` is a number of binary negatives per link. None or 0 adds none. Raises
    TypeError or ValueError for malformed arguments, or for both.
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
