"""Placement of processes and memory on NUMA nodes. Any process, no torch.

A process is bound before it loads its program: its cores, and the node whose memory it prefers.
Linux then takes memory from there at first use. It takes other memory when that node is full: a
strict binding would end the process. What the system refuses is reported, and changes no result.
Containers often refuse memory policies (they need CAP_SYS_NICE), and allow the choice of cores.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from khop.numa import MAX_CORES, Machine, format_cpus, listed_in, parse_cpus, topology

VARIABLE = "KHOP_PLACEMENT"
"""Environment variable with the placement of trainers and samplers, see `choose`."""

ANY_NODE = -1
"""Preferred node that stands for none: memory comes from the node of the core."""

# Cores of a trainer, and its cores before khop bound it.
_BOUND = "KHOP_BOUND"
# Numbers of the system calls mbind and set_mempolicy, which the C library does not have.
_CALLS = {"x86_64": (237, 238), "aarch64": (235, 237)}
_DEFAULT, _PREFERRED = 0, 1
_MAX_NODE = 1024


class Placement(NamedTuple):
    """Cores of a process, and the node of its memory.

    Attributes:
        cpus: the cores.
        node: index of the preferred node. If None, the policy stays. See also `ANY_NODE`.
    """

    cpus: tuple[int, ...]
    node: int | None


class Position(NamedTuple):
    """Position of a trainer among the trainers of its machine.

    Attributes:
        rank, size: its index there, and their number.
        gpu: PCI address of its GPU. If None, it is unknown.
    """

    rank: int
    size: int
    gpu: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Position:
        """Return the position that a launcher has set: LOCAL_RANK and LOCAL_WORLD_SIZE."""
        texts = [environment.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        if not all(text.isdecimal() and len(text) < 6 for text in texts):
            return cls(0, 1)
        rank, size = map(int, texts)
        return cls(rank, max(size, rank + 1))


def choose(
    option: str | None, position: Position, machine: Machine | None = None, num_samplers: int = 0
) -> Placement | None:
    """Return the placement of a trainer and its samplers. None if they stay as they are.

    With 'auto' that is the node of the trainer's GPU, else nodes in turn. A process that the user
    has restricted to some cores stays as it is. So does a trainer without a GPU, if there are fewer
    trainers than nodes: cores would be left idle.

    Args:
        option: 'auto', 'none', 'node:K' or 'cpus:0-15'. If None, $KHOP_PLACEMENT, or 'auto'.
        position: position of the trainer on this machine.
        machine: the machine. If None, this one.
        num_samplers: samplers of a loader. 'auto' needs a core for each.

    Raises:
        ValueError: the option is malformed, or names a node or cores that cannot be used.
    """
    source = "placement" if option is not None else VARIABLE
    text = option if option is not None else os.environ.get(VARIABLE) or "auto"
    name, _, value = text.partition(":")
    if text not in ("auto", "none") and (name not in ("node", "cpus") or not value):
        raise ValueError(
            f"{source} must be 'auto', 'none', 'node:K' or 'cpus:0-15' (got {text!r:.80})"
        )
    if text == "none":
        return None
    machine = machine or topology()
    nodes = {node.index: node for node in machine.with_cpus}
    if name == "cpus":
        cpus, usable = parse_cpus(value), {cpu for node in nodes.values() for cpu in node.cpus}
        if missing := set(cpus) - usable:
            raise ValueError(
                f"{source}: this process may not use the cores {format_cpus(missing)} (got "
                f"{text!r:.80}): it has {format_cpus(usable)}"
            )
        covered = machine.covered_by(cpus)
        single = nodes[covered[0]] if len(covered) == 1 else None
        return Placement(cpus, None if single is None else machine.nearest_memory(single))
    index: int | None
    if name == "node":
        index = int(value) if value.isdecimal() else None
        if index not in nodes:
            raise ValueError(
                f"{source}: nodes with cores of this process are {', '.join(map(str, nodes))} (got "
                f"{text!r:.80})"
            )
    else:
        if len(nodes) < 2 or not machine.is_whole:
            return None
        index = machine.gpus.get(position.gpu) if position.gpu is not None else None
        if index not in nodes:
            if position.size < len(nodes):
                return None
            index = list(nodes)[position.rank % len(nodes)]
        if num_samplers > len(nodes[index].cpus):
            return None
    return Placement(nodes[index].cpus, machine.nearest_memory(nodes[index]))


def bound_command(words: Sequence[str], environment: dict[str, str]) -> list[str]:
    """Return the command that starts a trainer at its node, or `words` if it is not placed.

    Without OMP_NUM_THREADS, `environment` gets it: the trainer's share of the cores, less one for
    its sampler. A stage without torch binds itself and executes `words`.

    Raises:
        ValueError: see `choose`.
    """
    machine, position = topology(), Position.of(environment)
    gpus, visible = list(machine.gpus), environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        indices = [int(v) for v in visible.split(",") if v.isdecimal() and len(v) < 6]
        gpus = [gpus[i] for i in indices if i < len(gpus)]
    has_each = position.size <= len(gpus)
    all_gpus: list[str | None] = [*gpus[: position.size]] if has_each else [None] * position.size
    option = environment.get(VARIABLE) or "auto"
    placements = [
        choose(option, Position(rank, position.size, gpu), machine)
        for rank, gpu in zip(range(position.size), all_gpus, strict=True)
    ]
    placement = placements[position.rank]
    if placement is None:
        return list(words)
    share = len(placement.cpus) // placements.count(placement)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, share - 1)))
    paths = [path for path in sys.path if Path(path).is_absolute()]
    program = (
        f"import sys; sys.path[:] = {paths!r}; from khop.placement import exec_bound; "
        f"exec_bound({placement.cpus}, {placement.node}, sys.argv[1:])"
    )
    return [sys.executable, "-c", program, *words]


def bind(cpus: Collection[int], node: int | None) -> list[str]:
    """Bind the calling thread, and all that it starts. Return a text for each refused call."""
    refused = []
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        refused.append(f"sched_setaffinity: {error.strerror}")
    if node is not None:
        refused.append(_call(1, *_policy(node)))
    return [text for text in refused if text]


def prefer(address: int, nbytes: int, node: int | None) -> str:
    """Prefer a node for memory that no process has used yet, also of other processes that map it.

    Returns:
        The reason if the system refuses it, else an empty text.
    """
    return "" if node is None or node < 0 else _call(0, address, nbytes, *_policy(node), 0)


def refusals(placement: Placement) -> list[str]:
    """Return a text for each call of `bind` that the system refuses to this process."""
    refused: list[str] = []
    thread = threading.Thread(target=lambda: refused.extend(bind(*placement)), name="khop-probe")
    thread.start()  # what it sets ends with it
    thread.join()
    return refused


def exec_bound(cpus: Collection[int], node: int | None, words: Sequence[str]) -> None:
    """Replace this process by a trainer's command, bound to its node. Never returns."""
    before = os.sched_getaffinity(0)
    for text in bind(cpus, node):
        print(f"khop: placement: {text}", file=sys.stderr, flush=True)
    os.environ[_BOUND] = f"{format_cpus(cpus)}/{format_cpus(before)}"
    try:
        os.execvp(words[0], list(words))
    except OSError as error:
        print(f"khop: cannot start {words[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def unbound() -> Placement | None:
    """Return the placement of a process that serves all nodes. None if it is not changed.

    A trainer that `exec_bound` has started gives it the cores that it had itself before.
    """
    try:
        bound, before = map(parse_cpus, os.environ.get(_BOUND, "").split("/"))
    except ValueError:
        return None
    return Placement(before, ANY_NODE) if os.sched_getaffinity(0) == set(bound) else None


def describe(pid: int | str = "self") -> str:
    """Return the nodes, cores and memory policy of a process, as Linux reports them.

    Example: 'node 1, cores 8-15, memory prefer:1'. Empty if the process has ended.
    """
    cpus = listed_in(f"/proc/{pid}/status", "Cpus_allowed_list")
    if not cpus:
        return ""
    nodes = _machine().covered_by(cpus)
    try:
        with Path(f"/proc/{pid}/numa_maps").open() as maps:
            policy = maps.readline().split()[1]
    except (OSError, IndexError):
        policy = "unknown"
    plural = "s" if len(nodes) > 1 else ""
    return f"node{plural} {format_cpus(nodes)}, cores {format_cpus(cpus)}, memory {policy}"


def local_pages(node: int, pids: Iterable[int | str]) -> str:
    """Return the shares of processes' pages at a node, by bytes.

    Memory that processes share is memory. Files are the mapped ones, of folders and programs.
    Example: '98 % of memory and 51 % of files on node 1'. Empty if nothing is known.
    """
    sums: dict[str, Counter[bool]] = {"memory": Counter(), "files": Counter()}
    for pid in pids:
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/numa_maps").open() as maps:
            for line in maps:
                is_file = " file=" in line and "/memfd:" not in line
                size = re.search(r" kernelpagesize_kB=(\d+)", line)
                for index, count in re.findall(r" N(\d+)=(\d+)", line):
                    nbytes = int(count) * (int(size[1]) if size else 4)
                    sums["files" if is_file else "memory"][int(index) == node] += nbytes
    shares = [
        f"{100 * bytes_of[True] / bytes_of.total():.0f} % of {name}"
        for name, bytes_of in sums.items()
        if bytes_of
    ]
    return f"{' and '.join(shares)} on node {node}" if shares else ""


@cache
def _machine() -> Machine:
    """Return the topology with all cores, also cores that this process may not use."""
    return topology(cpus=range(MAX_CORES))


def _policy(node: int) -> tuple[int, int, int]:
    """Return a policy as arguments of its system call: mode, address and bits of the nodes."""
    if node < 0:
        return _DEFAULT, 0, 0
    mask = _masks(node)
    return _PREFERRED, ctypes.addressof(mask), _MAX_NODE + 1


@cache
def _masks(node: int) -> ctypes.Array[ctypes.c_ulong]:
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    mask = (ctypes.c_ulong * (_MAX_NODE // bits))()
    mask[node // bits] = 1 << node % bits
    return mask


def _call(index: int, *arguments: int) -> str:
    """Make mbind (0) or set_mempolicy (1). Return the reason if it fails, else an empty text."""
    name = ("mbind", "set_mempolicy")[index]
    calls = _CALLS.get(platform.machine())
    if calls is None:
        return f"{name}: its number is unknown on {platform.machine()}"
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    if syscall(ctypes.c_long(calls[index]), *map(ctypes.c_ulong, arguments)) == 0:
        return ""
    return f"{name}: {os.strerror(ctypes.get_errno())}"
