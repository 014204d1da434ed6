"""NUMA nodes of this machine: cores, memory, distances and GPUs. Any process, no torch.

Linux describes them in `/sys/devices/system/node`. A process sees the cores of its affinity, and
the memory of its control group (`Mems_allowed_list`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Machine", "NumaNode", "topology"]

MAX_CORES = 1 << 16
"""Bound of the indices of cores."""
_NVIDIA, _DISPLAY = "0x10de", "0x03"


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node: cores and memory that are near each other.

    Attributes:
        index: its index in Linux. Indices may have gaps.
        cpus: cores that this process may use, ascending. A node of CXL or HBM memory has none.
        memory: bytes of its memory. 0 if it has none, or this process may not use it.
        distances: {index of a node: distance}. 10 is the node itself, 20 takes twice the time.

    Example:
        >>> khop.numa.NumaNode(1, (4, 5), 64 << 30, {0: 21, 1: 10}).cpus
        (4, 5)
    """

    index: int
    cpus: tuple[int, ...]
    memory: int
    distances: dict[int, int]


@dataclass(frozen=True)
class Machine:
    """NUMA nodes of a machine, as far as this process may use them.

    Attributes:
        nodes: nodes with cores or memory that this process may use, by index. At least one.
        gpus: {PCI address: index of the node} of NVIDIA's GPUs. None if the node is unknown.
        is_whole: True if this process may use all cores that Linux gives to any process.

    Example:
        >>> machine = khop.numa.topology()
        >>> len(machine.nodes) >= 1
        True
    """

    nodes: tuple[NumaNode, ...]
    gpus: dict[str, int | None]
    is_whole: bool

    @property
    def with_cpus(self) -> tuple[NumaNode, ...]:
        """Nodes with cores that this process may use."""
        return tuple(node for node in self.nodes if node.cpus)

    def nearest_memory(self, node: NumaNode) -> int | None:
        """Return the index of the node with memory that is nearest to `node`. None if unknown.

        It is the node itself if it has memory.
        """
        indices = [other.index for other in self.nodes if other.memory]
        return min(indices, key=lambda i: (node.distances.get(i, 255), i), default=None)

    def covered_by(self, cpus: Collection[int]) -> list[int]:
        """Return the indices of the nodes that have some of these cores."""
        return [node.index for node in self.nodes if not set(cpus).isdisjoint(node.cpus)]


def topology(
    root: str | os.PathLike[str] = "/sys",
    cpus: Collection[int] | None = None,
    memory_nodes: Collection[int] | None = None,
) -> Machine:
    """Return the NUMA nodes of this machine that this process may use.

    Without a description there is one node, index 0, with all cores that may be used.

    Args:
        root: folder that has Linux's description, or a copy of it.
        cpus: cores that may be used. If None, this process's affinity.
        memory_nodes: nodes whose memory may be used. If None, `Mems_allowed_list` of this process.

    Example:
        >>> for node in khop.numa.topology().nodes:
        ...     print(f"node {node.index}: {len(node.cpus)} cores")
        node 0: ...
    """
    system = Path(root) / "devices/system"
    allowed = set(os.sched_getaffinity(0) if cpus is None else cpus)
    if memory_nodes is None:
        memory_nodes = listed_in("/proc/self/status", "Mems_allowed_list")
    nodes = []
    online = _listed(system / "node/online")
    for index in online:
        folder = system / f"node/node{index}"
        total = re.search(r"MemTotal: +(\d+) kB", _text(folder / "meminfo"))
        memory = int(total[1]) << 10 if total and index in memory_nodes else 0
        near = tuple(cpu for cpu in _listed(folder / "cpulist") if cpu in allowed)
        if memory or near:
            distances = map(int, _text(folder / "distance").split())
            # A value for each node that is online.
            nodes.append(NumaNode(index, near, memory, dict(zip(online, distances, strict=False))))
    if not any(node.cpus for node in nodes):
        nodes = [NumaNode(0, tuple(sorted(allowed)), 0, {0: 10})]
    usable = set(_listed(system / "cpu/online")) - set(_listed(system / "cpu/isolated"))
    return Machine(tuple(nodes), _gpus(Path(root) / "bus/pci/devices"), usable <= allowed)


def parse_cpus(text: str) -> tuple[int, ...]:
    """Return the cores of a list such as '0-3,8', ascending.

    Raises:
        ValueError: the text is no such list, or is empty.
    """
    cpus = set[int]()
    for entry in text.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", entry.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < MAX_CORES:
            raise ValueError(f"cores must be a list such as 0-3,8 (got '{text:.80}')")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpus(cpus: Collection[int]) -> str:
    """Return cores as a list such as '0-3,8'."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in runs)


def _gpus(devices: Path) -> dict[str, int | None]:
    try:
        addresses = sorted(device.name for device in devices.iterdir())
    except OSError:
        return {}
    gpus: dict[str, int | None] = {}
    for address in addresses:
        device = devices / address
        if _text(device / "vendor") == _NVIDIA and _text(device / "class").startswith(_DISPLAY):
            node = _text(device / "numa_node")
            gpus[address] = int(node) if node.isdecimal() else None  # -1: unknown
    return gpus


def _listed(path: Path) -> tuple[int, ...]:
    text = _text(path)
    return parse_cpus(text) if text else ()


def listed_in(path: str, name: str) -> tuple[int, ...]:
    """Return a list in a file of lines 'name: value', such as `/proc/self/status`."""
    line = re.search(rf"^{name}:\s*(\S+)$", _text(Path(path)), re.MULTILINE)
    return parse_cpus(line[1]) if line else ()


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
