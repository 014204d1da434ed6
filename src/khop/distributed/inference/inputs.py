"""Inputs of layers from the partition folder: rows of nodes, attributes of edges.

Runs in trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from khop.data import RowStore
from khop.distributed.graph import PartitionedGraph
from khop.loader.batches.collate import to_tensor
from khop.typing import Array, EdgeType, NodeType

NodeInput: TypeAlias = "str | Callable[[Tensor], Tensor]"
"""Name of a node attribute, or a callable from [n] int64 original ids to rows."""


class LayerInput(NamedTuple):
    """Input of a layer for one node type: a reader of rows, and a function that converts them."""

    reader: RowStore
    finish: Callable[[Tensor], Tensor]


class NodeInputs:
    """Inputs of the first layer, from arguments `data` and `x` of `layerwise_inference`.

    Raises:
        KeyError: no such node type or attribute.
        TypeError: an input is neither a name nor a callable.
    """

    def __init__(self, data: PartitionedGraph, x: NodeInput | Mapping[NodeType, NodeInput]) -> None:
        node_types = data.meta.node_types
        sources: list[NodeInput | None]
        if isinstance(x, Mapping):
            for name in x:
                data.meta.node_type(name)  # KeyError if there is none
            sources = [x.get(t.name) for t in node_types]
        elif isinstance(x, str):
            sources = [x if x in t.attrs else None for t in node_types]
            if not any(sources):
                known = {t.name: list(t.attrs) for t in node_types}
                raise KeyError(f"no node type has an attribute '{x}': there are {known}")
        else:
            sources = [x for _ in node_types]
        for node_type, source in zip(node_types, sources, strict=True):
            if isinstance(source, str) and source not in node_type.attrs:
                raise KeyError(
                    f"node type '{node_type.name}' has no attribute '{source}': there are "
                    f"{list(node_type.attrs)}"
                )
            if source is not None and not isinstance(source, str) and not callable(source):
                raise TypeError(
                    "x must be the name of a node attribute, a callable, or a dictionary of such "
                    f"(got '{type(source).__name__}')"
                )
        self._sources = sources

    def of_first_layer(self, rows_of: Callable[[int, str], RowStore]) -> list[LayerInput | None]:
        """Return the first layer's input for each node type, None for types without input.

        `rows_of` opens the rows of a node type, by its index, and an attribute. 'id': original ids.
        """
        inputs: list[LayerInput | None] = []
        for i, source in enumerate(self._sources):
            if source is None:
                inputs.append(None)
                continue
            name = source if isinstance(source, str) else "id"
            finish = _as_read if isinstance(source, str) else partial(_rows_of_ids, source)
            inputs.append(LayerInput(rows_of(i, name), finish))
        return inputs


def _as_read(rows: Tensor) -> Tensor:
    return rows


def _rows_of_ids(make: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    made = make(ids.to(torch.int64))
    if not isinstance(made, Tensor) or made.dim() == 0 or made.size(0) != ids.numel():
        raise ValueError(f"x was called with {ids.numel()} ids and returned {described(made)}")
    return made


class EdgeAttrs:
    """Edge attributes that the layers of layer-wise inference get, by name.

    Raises:
        KeyError: no edge type has one of the attributes.
        TypeError: `names` is a string, not a list of strings.
    """

    def __init__(self, data: PartitionedGraph, names: Sequence[str]) -> None:
        if isinstance(names, str):
            raise TypeError(f"edge_attrs must be a list of names (got '{names}')")
        self._names = list(names)
        self._types = data.meta.edge_types
        self._is_heterogeneous = data.meta.heterogeneous
        self.by_type = [[n for n in self._names if n in t.attrs] for t in self._types]
        for name in self._names:
            if not any(name in of_type for of_type in self.by_type):
                known = {t.name: list(t.attrs) for t in self._types}
                raise KeyError(f"no edge type has an attribute '{name}': there are {known}")

    def arguments(
        self, read: Sequence[Mapping[str, Array]], device: torch.device
    ) -> list[Tensor | dict[EdgeType, Tensor]]:
        """Convert rows of edge attributes to a layer's arguments, on a device.

        `read` has {attribute: rows} for each edge type. In a heterogeneous graph, each argument is
        a dictionary by edge type.
        """
        arguments: list[Tensor | dict[EdgeType, Tensor]] = []
        for name in self._names:
            by_type = {
                t.name: to_tensor(rows[name], t.attrs[name].dtype).to(device)
                for t, rows in zip(self._types, read, strict=True)
                if name in rows
            }
            arguments.append(by_type if self._is_heterogeneous else next(iter(by_type.values())))
        return arguments


def described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"'{type(value).__name__}'"
