"""Pytest plugin: PyG's own tests meet khop under PyG's names. Runs in the pytest of `__main__`.

`KHOP_SWAP` says what PyG's names mean in the tests:

- 'loaders': `torch_geometric.loader.NeighborLoader` and all other loaders that khop has are khop's,
  and so are Lightning's data modules of nodes and links;
- 'samplers': the loaders are PyG's, but each draws with khop's sampler.

Neither pyg-lib nor torch-sparse is needed then, so skips that ask for them are lifted. Citation
graphs, which PyG downloads, are the small one that `pyg_examples.datasets` makes.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest
import torch_geometric.data.lightning.datamodule
import torch_geometric.datasets
import torch_geometric.loader
import torch_geometric.sampler
from pyg_examples import datasets

import khop.lightning
import khop.loader
import khop.sampler
from pyg_tests.left_out import LEFT_OUT

# Why PyG skips what khop can do.
LIFTED = {
    "No neighbor sampler installed",
    "Package pyg_lib not found",
    "Package torch_sparse not found",
    "'pyg-lib' does not support weighted neighbor sampling",
    "METIS not enabled",
    "Fast test run",
}
# Asks for a GPU and uses none.
NEEDS_NO_GPU = "test_lightning_hetero_link_data"


def _hgt_sampler(data: Any, num_samples: Any, is_sorted: bool = False, **_: Any) -> Any:
    return khop.sampler.NeighborSampler(data, khop.sampler.Hgt(num_samples), is_sorted=is_sorted)


def replacements(swapped: str) -> dict[str, Any]:
    """Return {module and name: what stands there instead}."""
    found: dict[str, Any] = {"sampler.NeighborSampler": khop.sampler.NeighborSampler}
    if swapped == "loaders":
        for name in khop.loader.__all__:
            if hasattr(torch_geometric.loader, name):
                found[f"loader.{name}"] = getattr(khop.loader, name)
        for name in ("LightningNodeData", "LightningLinkData"):
            found[f"data.lightning.{name}"] = getattr(khop.lightning, name)
        return found
    for module in (
        "sampler.neighbor_sampler",
        "loader.neighbor_loader",
        "loader.link_neighbor_loader",
        "data.lightning.datamodule",
    ):
        found[f"{module}.NeighborSampler"] = khop.sampler.NeighborSampler
    found["loader.hgt_loader.HGTSampler"] = _hgt_sampler
    return found


def pytest_configure() -> None:
    """Replace the names before tests import them."""
    for path, value in replacements(os.environ["KHOP_SWAP"]).items():
        module, name = f"torch_geometric.{path}".rsplit(".", 1)
        setattr(importlib.import_module(module), name, value)
    torch_geometric.datasets.Planetoid = datasets.Planetoid


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lift the skips that khop makes needless, and expect those that are left out to fail."""
    reasons = LEFT_OUT[os.environ["KHOP_SWAP"]]
    for item in items:
        test = getattr(item, "originalname", item.name)
        lifted = LIFTED | ({"CUDA not available"} if test == NEEDS_NO_GPU else set())
        item.own_markers = [
            mark
            for mark in item.own_markers
            if not (mark.name == "skipif" and mark.kwargs.get("reason") in lifted)
        ]
        reason = reasons.get(item.name, reasons.get(test))
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
