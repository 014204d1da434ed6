"""The registry of sampling methods, and their base classes. Imports no torch.

A method that the kernels draw is a class here and a value of `HopMethod` in the kernels
(`khop/core/hop_options.hpp`), with the same name. A *program* (`ProgramMethod`) requests neighbours
and builds batches in Python. Engines and servers get a `MethodSpec` of either. It is part of
`SamplingSpec`, of every request for neighbours, and so of loaders' fingerprints.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from khop import codec
from khop.codec import Between, Name
from khop.sampler.methods.access import GraphAccess, Waiting

METHODS: dict[str, type[SamplingMethod]] = {}
"""All methods, by name."""

_M = TypeVar("_M", bound="type[SamplingMethod]")


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method's name and options, as sent to other processes.

    Attributes:
        name: name of a registered method.
        layer_dependency: for LABOR: all hops share their random numbers.
        program: the method itself, if it is a program. In JSON: its fields.
        layer_wise: all nodes draw in each hop, not only the nodes that the last hop added. Batches
            then have `layer_wise`, True.

    Example:
        >>> Labor([2]).spec().name
        'labor'
    """

    name: Name = "neighbor"
    layer_dependency: bool = False
    program: Any = None
    layer_wise: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if no method has this name, ProtocolError for malformed options."""
        if self.name not in METHODS:
            raise ValueError(
                f"no sampling method {self.name!r} here: there are {sorted(METHODS)}. A user's own "
                "is there once its module is imported; graph servers import what they are started "
                "with: khop serve --methods my_package.methods"
            )
        method = METHODS[self.name]
        if issubclass(method, ProgramMethod) and not isinstance(self.program, method):
            program = codec.from_json(method, self.program, f"method '{self.name}'")
            object.__setattr__(self, "program", program)
        elif self.program is not None and not issubclass(method, ProgramMethod):
            raise ValueError(f"the method '{self.name}' is no program, and has no options of one")

    def value_names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of a batch's float32 values per node ('n') or per edge ('e')."""
        return () if self.program is None else tuple(self.program.value_names(prefix))

    @property
    def marks(self) -> dict[str, bool]:
        """Values of a whole batch by name, equal for all batches of the method: 'layer_wise'."""
        return {"layer_wise": True} if self.layer_wise else {}

    @property
    def delivered(self) -> list[str]:
        """Names of all values that batches have beside nodes and edges."""
        return [*self.value_names("n"), *self.value_names("e"), *self.marks]

    @property
    def needs_neighbor_ids(self) -> bool:
        """True if draws need neighbours' original ids, which a folder stores on request."""
        return METHODS[self.name].needs_neighbor_ids

    def kernel_options(self) -> dict[str, Any]:
        """Return the method's keyword arguments for `_native.HopOptions`."""
        return {"method": self.name, "layer_dependency": self.layer_dependency}


class SamplingMethod(ABC):
    """Base of all sampling methods.

    Attributes:
        name: the method's name, in specs and kernels.
        needs_neighbor_ids: whether draws are keyed by neighbours' original ids.
        subgraph_type: the only `subgraph_type` that the method makes. If None, all of them.
        draws_edges: whether a batch's edges are the graph's, which have ids and attributes.
        num_neighbors: fan-out of each hop, or {edge type: fan-outs}. -1 takes all neighbours.

    Example:
        >>> method = METHODS["labor"]([15, 10])
        >>> isinstance(method, SamplingMethod), method.needs_neighbor_ids
        (True, True)
    """

    name: ClassVar[str]
    needs_neighbor_ids: ClassVar[bool] = False
    subgraph_type: ClassVar[str | None] = None
    draws_edges: ClassVar[bool] = True
    num_neighbors: Any

    @abstractmethod
    def spec(self) -> MethodSpec:
        """Return the method's name and options as plain values, for engines and other processes."""

    def settle(self, replace: bool, weight_attr: str | None) -> tuple[bool, str | None]:
        """Return `replace` and `weight_attr` for draws, from the loader's options and the method's.

        Raises:
            ValueError: an option of the loader contradicts the method's, or the method does not
                support it.
        """
        return replace, weight_attr

    def settle_subgraph_type(self, subgraph_type: str | Enum) -> str | Enum:
        """Return the type of subgraphs to make.

        Args:
            subgraph_type: the loader's option, a text or PyG's `SubgraphType`.

        Raises:
            ValueError: the method makes only another type.
        """
        asked = getattr(subgraph_type, "value", subgraph_type)
        if self.subgraph_type is None or asked == self.subgraph_type:
            return subgraph_type
        if asked != "directional":  # the loaders' default
            raise ValueError(
                f"{type(self).__name__} makes '{self.subgraph_type}' subgraphs (got subgraph_type="
                f"{asked!r}): leave it out"
            )
        return self.subgraph_type

    def check_strategy(self, temporal_strategy: str) -> None:  # noqa: B027 (most support all)
        """Raise ValueError if the method does not support a loader's `temporal_strategy`."""

    def check_node_types(self, node_types: Sequence[str]) -> None:  # noqa: B027
        """Raise ValueError if the method's options do not match a graph's node types."""

    def check_form(self, heterogeneous: bool, disjoint: bool) -> None:  # noqa: B027
        """Raise ValueError if the method does not support such graphs or disjoint batches."""


class ProgramMethod(SamplingMethod):
    """Base of programs: methods that request neighbours and build batches in Python.

    A program is a frozen dataclass whose annotations `khop.codec` can check. Its fields are sent to
    samplers and graph servers. They run `draw` over the part of the graph that they have. The
    result must depend on the batch's key, original ids and the graph alone. See
    `docs/extending/methods.md`. `StepMethod` is simpler and suits most methods.

    Attributes:
        edge_values: names of the [num_edges] float32 arrays that batches have for each edge type.
        node_values: names of the [num_nodes] float32 arrays that batches have for each node type.
        layer_wise: True if all nodes draw in each hop, not only the nodes that the last hop added.
            A class attribute or a field. Default: False. Batches then have `layer_wise`, by which
            `khop.loader.ToLayers` splits them.

    Example:
        >>> class SeedsAlone(ProgramMethod):
        ...     num_neighbors, subgraph_type = [], "induced"
        ...     def draw(self, graph):
        ...         graph.subgraph.add_seeds(0, graph.seeds[0][1])
        ...         yield from ()  # no request to other partitions
    """

    edge_values: ClassVar[tuple[str, ...]] = ()
    node_values: ClassVar[tuple[str, ...]] = ()
    _is_homogeneous: ClassVar[bool] = False  # draws from graphs of one node and edge type alone

    def value_names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of a batch's values per edge ('e') or per node ('n')."""
        return self.edge_values if prefix == "e" else self.node_values

    @abstractmethod
    def draw(self, graph: GraphAccess) -> Waiting[None]:
        """Draw one batch: add nodes and edges to `graph.subgraph`. Yield tickets to wait for."""

    def spec(self) -> MethodSpec:
        """Return the method's name and fields, for engines and servers.

        Raises:
            TypeError: the class is not registered, or a field cannot be encoded.
            ProtocolError: a field does not match its annotation.
        """
        method = type(self)
        if METHODS.get(getattr(self, "name", "")) is not method:
            raise TypeError(
                f"{method.__name__} is not registered: decorate the class with "
                "@khop.sampler.register, above @dataclass(frozen=True)"
            )
        codec.from_json(method, codec.to_json(self), f"fields of {method.__name__}")
        return MethodSpec(
            self.name, program=self, layer_wise=bool(getattr(self, "layer_wise", False))
        )

    def settle(self, replace: bool, weight_attr: str | None) -> tuple[bool, str | None]:
        for option, value in (("replace", replace), ("weight_attr", weight_attr)):
            if value:
                raise ValueError(
                    f"{type(self).__name__} has no {option} (got {value!r}): leave it out"
                )
        return False, None

    def settle_subgraph_type(self, subgraph_type: str | Enum) -> str | Enum:
        """Check and return the subgraph type. With edge values, it must be 'directional'."""
        settled = super().settle_subgraph_type(subgraph_type)
        if self.edge_values and getattr(settled, "value", settled) != "directional":
            raise ValueError(
                f"{type(self).__name__} makes 'directional' subgraphs (got subgraph_type="
                f"{subgraph_type!r}): leave it out"
            )
        return settled

    def check_form(self, heterogeneous: bool, disjoint: bool) -> None:
        """Raise ValueError for disjoint batches, or types that a program does not support."""
        if heterogeneous and self._is_homogeneous:
            raise ValueError(
                f"{type(self).__name__} draws from graphs of one node and edge type: this one is "
                "heterogeneous"
            )
        if disjoint:
            raise ValueError(
                f"{type(self).__name__} makes no disjoint batches, and so knows no times: leave "
                "disjoint and time_attr out"
            )

    def check_strategy(self, temporal_strategy: str) -> None:
        if temporal_strategy != "uniform":
            raise ValueError(
                f"{type(self).__name__} has no temporal_strategy (got {temporal_strategy!r}): "
                "leave it out"
            )


def check_numbers(program: ProgramMethod) -> None:
    """Raise ValueError unless a program's numbers are within the bounds of their annotations."""
    for name, number_type, bounds in _bounded_fields(type(program)):
        value = getattr(program, name)
        types = int if number_type is int else (int, float)
        is_number = isinstance(value, types) and not isinstance(value, bool)
        if not is_number or not bounds.low <= value <= bounds.high:
            unit = "an integer" if number_type is int else "a number"
            raise ValueError(
                f"{name} must be {unit} from {bounds.low:,} to {bounds.high:,} (got {value!r})"
            )


@functools.cache
def _bounded_fields(method: type[ProgramMethod]) -> list[tuple[str, type, Between]]:
    """Return name, type and bounds of the fields `Annotated[int or float, Between(...)]`."""
    hints = get_type_hints(method, include_extras=True)
    bounded = []
    for name in (field.name for field in fields(method)):  # type: ignore[arg-type]
        if get_origin(hints[name]) is Annotated and get_args(hints[name])[0] in (int, float):
            bounded.append((name, *get_args(hints[name])))
    return bounded


def counts_within(values: object, most_entries: int, low: int, high: int) -> list[int] | None:
    """Return values as a list if they are 1 to `most_entries` integers within bounds, else None."""
    if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= most_entries:
        return None
    is_valid = all(type(value) is int and low <= value <= high for value in values)
    return list(values) if is_valid else None


def register(method: _M) -> _M:
    """Add a method's class to the registry. For use as a decorator.

    A class without a `name` gets the name of its module and class. Specs and states of loaders have
    the name and the fields.

    Args:
        method: the class. A program is a frozen dataclass.

    Returns:
        The class.

    Raises:
        TypeError: a program that is no frozen dataclass.
        ValueError: another class has this name. A class that is defined again replaces its earlier
            definition.

    Example:
        >>> class Fewest(khop.sampler.SaintWalks):
        ...     "Walks of one step."
        >>> register(dataclass(frozen=True)(Fewest)).name.endswith(".Fewest")
        True
    """
    parameters = vars(method).get("__dataclass_params__")
    if issubclass(method, ProgramMethod) and (parameters is None or not parameters.frozen):
        raise TypeError(
            f"{method.__name__} is no dataclass of its own that is frozen: a program travels by "
            "its fields. Decorate the class with @dataclass(frozen=True), below @register"
        )
    if "name" not in vars(method):
        method.name = _path_of(method)
    known = METHODS.get(method.name, method)
    if _path_of(known) != _path_of(method):
        raise ValueError(
            f"the sampling method '{method.name}' is {_path_of(known)}: give {_path_of(method)} "
            "another name"
        )
    METHODS[method.name] = method
    return method


def _path_of(method: type[SamplingMethod]) -> str:
    # A script is '__mp_main__' where multiprocessing has imported it in a process that it spawned.
    module = method.__module__.replace("__mp_main__", "__main__")
    return f"{module}.{method.__qualname__}"
