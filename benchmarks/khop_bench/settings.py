"""Suites, settings of a run, and constants that all suites share. Imports no torch."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUITES = {
    "kernels": "sampling alone on one thread: uniform, weighted, temporal, disjoint, heterogeneous",
    "gather": "the feature rows of a batch on one thread",
    "loaders": "batches with features, end to end",
    "small": "cost of a small batch without its kernels",
    "startup": "time to the first batch, and samplers' private memory",
    "growth": "the same at ten times the edges",
    "partitions": "cost of a second partition on the same machine, by phase",
    "options": "cost of each sampling option",
    "draws": "cost of a draw, by degree",
    "device": "sampling, gathering and training on a GPU, and equality with the CPU's batches",
}
"""Suite (and its module) -> its description."""

DEFAULT = tuple(SUITES)[:7]
"""The suites that run if none are named."""

FANOUTS = (15, 10, 5)
"""Fan-outs of the batches of the products-shaped graph."""

DEVICE_SUITE = "device"
"""The suite that `--device` runs."""

DEVICE_PARTS = ("batch equality", "sampling", "gathering", "hot cache", "training")
"""The parts of the suite `device`, in order."""

BATCH_SIZE = 1024
"""Seeds of a batch of the products-shaped graph. Smaller graphs have fewer."""

_LARGE = 0.5
_BATCHES = {True: 10, False: 2}
_DEVICE = re.compile(r"cuda(:\d+)?|emulated")


def default_cache() -> Path:
    """Return `$XDG_CACHE_HOME/khop/bench`, or `~/.cache/khop/bench`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "khop" / "bench"


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        scale: size of the graphs, 1 for ogbn-products's.
        repeat: turns of each case.
        batches: batches that a turn times. If 0, a number that suits the scale.
        cache: folder of graphs.
        trace: file for a trace of the loaders of khop. If None, there is none.
        device: device of the suite 'device': 'cuda', 'cuda:1', ..., or 'emulated' (on the CPU: its
            times mean nothing). If None, that suite does not run.
        configurations: random batches that the suite 'device' draws on CPU and device alike.
        parts: parts of the suite 'device' that run. If empty, all.

    Raises:
        ValueError: a value out of its range.
        FileNotFoundError: the trace's folder does not exist.
    """

    scale: float = 0.05
    repeat: int = 5
    batches: int = 0
    cache: Path = field(default_factory=default_cache)
    trace: Path | None = None
    device: str | None = None
    configurations: int = 1000
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values, and choose the number of batches if it is 0."""
        if not 0.0005 <= self.scale <= 100:
            raise ValueError(f"--scale must be in 0.0005 ... 100 (got {self.scale:g})")
        if self.repeat < 1:
            raise ValueError(f"--repeat must be 1 or more (got {self.repeat})")
        if self.batches < 0:
            raise ValueError(f"--batches must be 1 or more (got {self.batches})")
        if self.trace is not None and not self.trace.absolute().parent.is_dir():
            raise FileNotFoundError(f"--trace: '{self.trace.parent}' is no folder: make it first")
        if self.device is not None and _DEVICE.fullmatch(self.device) is None:
            raise ValueError(
                f"--device must be 'cuda', 'cuda:N' or 'emulated' (got '{self.device}')"
            )
        if self.configurations < 1:
            raise ValueError(f"--configurations must be 1 or more (got {self.configurations})")
        for part in self.parts:
            if part not in DEVICE_PARTS:
                raise ValueError(f"no part '{part}': there are {', '.join(DEVICE_PARTS)}")
        if self.parts and self.device is None:
            raise ValueError(f"--part is of the suite '{DEVICE_SUITE}': pass --device, too")
        if self.batches == 0:
            object.__setattr__(self, "batches", _BATCHES[self.scale >= _LARGE])

    def to_json(self) -> dict[str, Any]:
        """Return the settings for the JSON report."""
        content: dict[str, Any] = {
            "scale": self.scale,
            "repeat": self.repeat,
            "batches": self.batches,
        }
        if self.device is None:
            return content
        if self.parts:
            content["parts"] = list(self.parts)
        return {**content, "device": self.device, "configurations": self.configurations}
