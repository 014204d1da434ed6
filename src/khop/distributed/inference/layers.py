"""Division of models into layers that each need one hop. Runs in trainers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch_geometric.nn.conv import EdgeConv, GATConv, GATv2Conv, GINConv, SAGEConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

Model: TypeAlias = "nn.Module | Sequence[Callable[..., object]]"
"""A PyG `BasicGNN`, or layers: an `nn.ModuleList` or a sequence of callables."""

Layer = Callable[[Any, Any, Sequence[Any], int], object]
"""(x, edge_index, edge attributes, number of seeds) -> output, with the seeds' rows first.

The number is 0 for heterogeneous graphs.
"""

# Models whose output for a node depends on more than its in-neighbours' inputs.
_DEGREES = "weights edges by the degrees of both ends, and a batch has all edges of its seeds only"
_FAR = "looks further than one hop in one layer"
_BEYOND_ONE_HOP = {
    "GCNConv": _DEGREES,
    "GCN2Conv": _DEGREES,
    "LGConv": _DEGREES,
    "FAConv": _DEGREES,
    "APPNP": _FAR,
    "ARMAConv": _FAR,
    "ChebConv": _FAR,
    "GatedGraphConv": _FAR,
    "MixHopConv": _FAR,
    "SGConv": _FAR,
    "SSGConv": _FAR,
    "TAGConv": _FAR,
    "HANConv": "averages over all nodes of a type",
}

_PAIRED = (SAGEConv, GATConv, GATv2Conv, GINConv, EdgeConv)


def as_layers(model: Model, with_edge_attrs: bool) -> list[Layer]:
    """Divide a model into layers that each need one hop.

    The model may be wrapped in `DistributedDataParallel`. With `with_edge_attrs`, layers get edge
    attributes.

    Raises:
        TypeError: another type of model.
        ValueError: a module is in training mode, or needs more than one hop.
    """
    model = _unwrapped(model)
    for module in _modules(model):
        _check_module(module)
    if isinstance(model, BasicGNN):
        return _layers_of_gnn(model, with_edge_attrs)
    if not isinstance(model, (list, tuple, nn.ModuleList)) or len(model) == 0:
        raise TypeError(
            "model must be a PyG BasicGNN, or a list of layers that are called as "
            f"layer(x, edge_index) (got '{type(model).__name__}')"
        )
    for layer in model:
        if not callable(layer):
            raise TypeError(f"a layer must be callable (got '{type(layer).__name__}')")
    return [_layer_of(layer) for layer in model]


def _layer_of(layer: Callable[..., object]) -> Layer:
    def call(x: Any, edge_index: Any, edge_attrs: Sequence[Any], num_seeds: int) -> object:
        del num_seeds
        return layer(x, edge_index, *edge_attrs)

    return call


def _layers_of_gnn(model: Any, with_edge_attrs: bool) -> list[Layer]:
    if model.jk_mode not in (None, "last"):
        raise ValueError(
            f"a model with jk='{model.jk_mode}' needs the outputs of all layers at its end: pass a "
            "list of layers, each of which hands on what is needed later"
        )
    if with_edge_attrs:
        raise ValueError(
            "PyG's BasicGNN takes no edge attributes layer by layer: pass a list of layers, "
            "[lambda x, edge_index, edge_attr: conv(x, edge_index, edge_attr), ...]"
        )

    def layer(index: int) -> Layer:
        def call(x: Any, edge_index: Any, edge_attrs: Sequence[Any], num_seeds: int) -> object:
            del edge_attrs
            output: object = model.inference_per_layer(index, x, edge_index, num_seeds)
            return output

        return call

    return [layer(index) for index in range(model.num_layers)]


def _unwrapped(model: Model) -> Model:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _modules(model: Model) -> list[nn.Module]:
    roots = model if isinstance(model, (list, tuple)) else [model]
    return [m for root in roots if isinstance(root, nn.Module) for m in root.modules()]


def _check_module(module: nn.Module) -> None:
    if module.training:
        name = type(module).__name__
        raise ValueError(f"'{name}' is in training mode: call .eval() on the model first")
    classes = [cls.__name__ for cls in type(module).__mro__]
    name = next((name for name in classes if name in _BEYOND_ONE_HOP), "")
    reason = _BEYOND_ONE_HOP.get(name)
    if reason == _DEGREES and not getattr(module, "normalize", True):
        return
    if reason is not None:
        advice = (
            "compute the weights of the whole graph beforehand (torch_geometric's gcn_norm), store "
            "them as an edge attribute, and pass normalize=False"
            if reason == _DEGREES
            else "cut it into layers of one hop"
        )
        raise ValueError(f"'{name}' {reason}, so its output would be wrong: {advice}")


def takes_pairs(model: Model) -> bool:
    """Return True if a model is a `BasicGNN` whose layers take (source rows, destination rows)."""
    model = _unwrapped(model)
    return isinstance(model, BasicGNN) and all(type(conv) in _PAIRED for conv in model.convs)


def device_of(model: Model, device: torch.device | str | int | None) -> torch.device:
    """Return the device to run a model on: `device`, else its parameters' device, else the CPU.

    Raises:
        ValueError: the model is on another device than `device`.
    """
    modules = _modules(_unwrapped(model))
    used = {p.device for module in modules for p in module.parameters(recurse=False)}
    if device is None:
        return next(iter(used)) if len(used) == 1 else torch.device("cpu")
    chosen = torch.empty(0, device=device).device  # 'cuda' is the current one
    if used and used != {chosen}:
        raise ValueError(
            f"device='{chosen}', but the model is on {sorted(map(str, used))}: move it there "
            "first (model.to(device))"
        )
    return chosen
