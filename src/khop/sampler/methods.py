"""Sampling methods: what a loader takes where it takes `num_neighbors`, and their registry.

A method is a class here and a value of `HopMethod` in the kernels (`khop/hop_options.hpp`), known
by one name on both sides. What engines and servers need of it is its `MethodSpec`, which is part of
`SamplingSpec` and of every request for neighbours, and so of fingerprints. Imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar, TypeVar

from khop.codec import Name

METHODS: dict[str, type[SamplingMethod]] = {}
"""All methods, by name."""

_M = TypeVar("_M", bound="type[SamplingMethod]")


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method's name and options, as they travel; the kernels' `HopOptions` has the same fields.

    Attributes:
        name: of a registered method.
        layer_dependency: of LABOR: all hops share the numbers that decide.
    """

    name: Name = "neighbor"
    layer_dependency: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError if no method has this name."""
        if self.name not in METHODS:
            raise ValueError(f"no sampling method '{self.name}': there are {sorted(METHODS)}")

    @property
    def needs_neighbor_ids(self) -> bool:
        """True if draws are keyed by neighbours' original ids, which a folder has on request."""
        return METHODS[self.name].needs_neighbor_ids

    def kernel_options(self) -> dict[str, Any]:
        """Keyword arguments of `_native.HopOptions`."""
        fields = asdict(self)
        return {"method": fields.pop("name"), **fields}


class SamplingMethod(ABC):
    """Base of all sampling methods.

    Attributes:
        name: the method's name, in specs and kernels.
        needs_neighbor_ids: whether draws are keyed by neighbours' original ids.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.

    Example:
        >>> method = METHODS["labor"]([15, 10])
        >>> isinstance(method, SamplingMethod), method.needs_neighbor_ids
        (True, True)
    """

    name: ClassVar[str]
    needs_neighbor_ids: ClassVar[bool] = False
    num_neighbors: Any

    @abstractmethod
    def spec(self) -> MethodSpec:
        """Return what engines and servers need of the method."""

    def settle(self, replace: bool, weight_attr: str | None) -> tuple[bool, str | None]:
        """Return whether to draw with replacement, and by which weights.

        Args:
            replace: what the loader was asked for.
            weight_attr: likewise.

        Raises:
            ValueError: the loader's option and the method's differ, or the method knows no such.
        """
        return replace, weight_attr

    def check_strategy(self, temporal_strategy: str) -> None:  # noqa: B027 (most go with all)
        """Raises ValueError if the method does not go with a loader's `temporal_strategy`."""


def register(method: _M) -> _M:
    """Adds a class of methods to the registry; a decorator."""
    METHODS[method.name] = method
    return method


@register
@dataclass(frozen=True)
class NeighborSampling(SamplingMethod):
    """Neighbours drawn for each row by itself, uniformly or by weight; what a list stands for.

    Method: GraphSAGE (https://arxiv.org/abs/1706.02216).

    Args:
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.

    Example:
        >>> loader = NeighborLoader(data, NeighborSampling([2, 2]), batch_size=6)
        >>> next(iter(loader)).num_edges  # as with [2, 2]
        12
    """

    name: ClassVar[str] = "neighbor"

    num_neighbors: Any

    def spec(self) -> MethodSpec:
        """See `SamplingMethod`."""
        return MethodSpec(self.name)


@register
@dataclass(frozen=True)
class Labor(SamplingMethod):
    """Neighbours that rows of a hop agree on where they can, so that a batch has fewer nodes.

    Each neighbour t has one uniform number r_t in a hop, and a row takes the k neighbours of
    smallest r_t (by weight: r_t / w_t), or all if it has no more than k. Each row by itself draws
    exactly min(k, degree) neighbours, every k-subset as likely as any other; rows that share
    neighbours tend to take the same ones. Partitions need the neighbours' original ids: partition
    with `neighbor_ids=True` (`khop partition --neighbor-ids`).

    Cost: whole rows are read, where a list's sampling reads k entries of each. Seeds with 40
    neighbours take about three times as long to draw, and hubs with thousands tens of times (20 ms
    a batch against less than 1 ms); fewer nodes save time in gathering, copying and the model.
    `docs/extending.md` has measurements.

    Method: LABOR-0 with sequential Poisson sampling (https://arxiv.org/abs/2210.13339).

    Args:
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}; -1 takes all neighbours.
        importance: iterations of importance sampling; 0, none, is what there is.
        layer_dependency: use the same numbers in all hops, so that hops, too, tend to take the same
            nodes; False: each hop has numbers of its own, and hops are independent.
        replace: False; draws with replacement are not supported.
        weight_attr: edge attribute to draw by; edges of weight 0 are never drawn. As the loader's
            own `weight_attr`.

    Raises:
        ValueError: an option that is not supported.

    Example:
        >>> loader = NeighborLoader(data, Labor([2, 2]), torch.tensor([0, 3]), batch_size=2)
        >>> batch = next(iter(loader))
        >>> batch.num_edges  # two for each of the six nodes, as with [2, 2]
        12
    """

    name: ClassVar[str] = "labor"
    needs_neighbor_ids: ClassVar[bool] = True

    num_neighbors: Any
    _: KW_ONLY
    importance: int = 0
    layer_dependency: bool = True
    replace: bool = False
    weight_attr: str | None = None

    def __post_init__(self) -> None:
        """Checks options."""
        if self.importance != 0:
            raise ValueError(
                "Labor has importance=0 alone (LABOR-0), no iterations of importance sampling (got "
                f"{self.importance!r})"
            )
        if self.replace:
            raise ValueError("Labor draws without replacement alone: leave replace=True out")

    def spec(self) -> MethodSpec:
        """See `SamplingMethod`."""
        return MethodSpec(self.name, bool(self.layer_dependency))

    def settle(self, replace: bool, weight_attr: str | None) -> tuple[bool, str | None]:
        """See `SamplingMethod`."""
        if replace:
            raise ValueError("Labor draws without replacement: leave replace=True out")
        if None not in (weight_attr, self.weight_attr) and weight_attr != self.weight_attr:
            raise ValueError(
                f"weight_attr is '{weight_attr}' of the loader and '{self.weight_attr}' of Labor: "
                "name it once"
            )
        return replace, weight_attr if self.weight_attr is None else self.weight_attr

    def check_strategy(self, temporal_strategy: str) -> None:
        """See `SamplingMethod`."""
        if temporal_strategy == "last":
            raise ValueError(
                "Labor draws at random among the neighbours that a seed may see: with "
                "temporal_strategy='last', which takes the latest, pass a list"
            )


NEIGHBOR = MethodSpec()
"""That of `NeighborSampling`."""


def as_method(num_neighbors: Any) -> SamplingMethod:
    """The method that a loader's `num_neighbors` is: itself, or uniform neighbour sampling."""
    if isinstance(num_neighbors, SamplingMethod):
        return num_neighbors
    if isinstance(num_neighbors, type) and issubclass(num_neighbors, SamplingMethod):
        name = num_neighbors.__name__
        raise TypeError(f"num_neighbors is the class {name}: pass an object, {name}([15, 10])")
    return NeighborSampling(num_neighbors)
