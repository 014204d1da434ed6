"""Trend of memory and descriptors: samples over time and a line through them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

_MIB = 1 << 20
_WARM_UP = 0.25  # share of the time in which pools and pages are still filling


class Usage(NamedTuple):
    """Memory of a process in MiB, and its number of descriptors."""

    private: float
    shared: float
    descriptors: float


BOUNDS = Usage(private=0.10, shared=0.25, descriptors=0.25)
"""Growth over the whole time that still counts as flat, as a share of the mean ..."""
LEAST = Usage(private=32.0, shared=16.0, descriptors=12.0)
"""... or this much, if it is more."""


def usage_of(pid: int) -> Usage | None:
    """Return the usage of a process now, or None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        private = re.search(r"RssAnon:\s+(\d+) kB", status)
        maps = Path(f"/proc/{pid}/maps").read_text()
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    if private is None:  # a zombie
        return None
    shared = sum(_size(line) for line in maps.splitlines() if "memfd:khop" in line)
    return Usage(int(private[1]) / 1024, shared / _MIB, descriptors)


def _size(line: str) -> int:
    first, last = line.split(None, 1)[0].split("-")
    return int(last, 16) - int(first, 16)


def shared_on_machine() -> float:
    """Return the MiB of shared memory of the whole machine, memfds included."""
    line = re.search(r"Shmem:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(line[1]) / 1024 if line else 0.0


class Trend(NamedTuple):
    """A quantity over time.

    Attributes:
        mean: mean of the samples after the warm-up.
        growth: growth of the fitted line, from the end of the warm-up to the end.
        bound: largest growth that is allowed.
    """

    mean: float
    growth: float
    bound: float

    @property
    def is_flat(self) -> bool:
        """True if the quantity has not grown beyond the bound."""
        return self.growth <= self.bound


@dataclass
class Watch:
    """Samples of some processes, by name.

    Attributes:
        samples: list of (seconds, usage) for each name.
    """

    samples: dict[str, list[tuple[float, Usage]]] = field(default_factory=dict)

    def look(self, now: float, pids: Mapping[str, int]) -> None:
        """Sample each process."""
        for name, pid in pids.items():
            with contextlib.suppress(ValueError):
                usage = usage_of(pid)
                if usage is not None:
                    self.samples.setdefault(name, []).append((now, usage))

    def trends(self) -> dict[str, dict[str, Trend]]:
        """Fit a line to each quantity of each name."""
        return {
            name: {measure: _fit(samples, i) for i, measure in enumerate(Usage._fields)}
            for name, samples in self.samples.items()
        }


def _fit(samples: list[tuple[float, Usage]], field: int) -> Trend:
    times = np.array([time for time, _ in samples])
    values = np.array([usage[field] for _, usage in samples], dtype=float)
    warm = times >= times[0] + _WARM_UP * (times[-1] - times[0])
    times, values = times[warm], values[warm]
    mean = float(values.mean())
    bound = max(LEAST[field], BOUNDS[field] * mean)
    if len(times) < 3 or times[-1] == times[0]:
        return Trend(mean, 0.0, bound)
    slope = float(np.polyfit(times - times[0], values, 1)[0])
    return Trend(mean, slope * float(times[-1] - times[0]), bound)
