"""Memory, disk and threads that a user grants a partitioner, and the workspace that follows.

Imports no torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.data import RowStore
from khop.data.arrays import checksum
from khop.data.files import file_region_of
from khop.data.hot_rows import parse_bytes
from khop.partition.out_of_core.engines import check_engine
from khop.partition.out_of_core.plan import Plan, Planned
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import DiskWorkspace, Workspace, run_name
from khop.private_folders import is_own_folder
from khop.storage.folder import check_output, is_locked, temporary_of
from khop.typing import Array


@dataclass(frozen=True)
class ClusterEffort:
    """Share of a cluster that partitioning may take.

    Attributes:
        engine: one of `engines.ENGINES`, with the cluster's address if it was given.
        memory: bytes that a task takes for edges. If None, the engine's default.
        jobs: tasks at a time. If None, one for each CPU.
    """

    engine: str
    memory: int | None
    jobs: int | None


@dataclass(frozen=True)
class Effort:
    """Memory, disk and threads that a partitioner may use.

    Attributes:
        memory: bytes. If None, edges are kept in memory.
        tmp: folder of stage files. If None, that of the output.
        jobs: threads. If None, one for each core, at most 8.
        clean: first remove what ended runs left.
        on_plan: called with the plan, before anything is written.
        cluster: machines that do the work, once nodes are assigned. If None, this one does.
    """

    memory: int | None = None
    tmp: Path | None = None
    jobs: int | None = None
    clean: bool = False
    on_plan: Callable[[Plan], None] | None = None
    cluster: ClusterEffort | None = None

    @classmethod
    def of(
        cls,
        memory: int | str | None,
        tmp: str | os.PathLike[str] | None,
        jobs: int | None,
        clean: bool,
        on_plan: Callable[[Plan], None] | None = None,
        on: str | None = None,
    ) -> Effort:
        """Check a user's options.

        Raises:
            ValueError: no number of bytes, no threads, `tmp` without `memory`, or no engine.
            NotADirectoryError: `tmp` is no folder.
            ModuleNotFoundError: the engine is not installed.
        """
        check_engine(on)
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1 (got {jobs})")
        if tmp is not None and memory is None:
            raise ValueError("tmp is where edges go if memory is bounded: give memory, too")
        if tmp is not None and not Path(tmp).is_dir():
            raise NotADirectoryError(f"tmp must be a folder that exists (got '{tmp}')")
        folder = None if tmp is None else Path(tmp).absolute()
        size = None if memory is None else parse_bytes(memory)
        if on is not None:
            return cls(None, folder, None, clean, on_plan, ClusterEffort(on, size, jobs))
        return cls(size, folder, jobs, clean, on_plan)

    def folder_of(self, output: Path) -> Path:
        """Return the folder in which workspaces lie."""
        return output.parent if self.tmp is None else self.tmp


def open_workspace(partitioner: Planned) -> Workspace:
    """Return the workspace of a partitioner; of an earlier run, if one was ended.

    Raises:
        ValueError: memory or disk do not suffice; the message says what would do.
        ConnectionError: there is no cluster.
        BlockingIOError: another process is at work on the same.
    """
    effort, output = partitioner.effort, Path(partitioner.output_dir).absolute()
    check_output(output, partitioner.overwrite)
    if effort.clean:
        for left in left_overs(output, effort.tmp):
            shutil.rmtree(left)
    if effort.cluster is not None:
        from khop.partition.out_of_core.on_ray import RayWorkspace

        return RayWorkspace(effort.cluster.engine, effort.cluster.memory, effort.cluster.jobs)
    if effort.memory is None:
        return Workspace(Resources(None, effort.jobs))
    plan = Plan.of(partitioner)
    plan.check_memory()
    run = identity_of(partitioner)
    name = run_name(run)
    folder = effort.folder_of(output) / f".khop-{output.name}-{name}.stage"
    plan.check_disk([folder, temporary_of(output, name)])
    if effort.on_plan is not None:
        effort.on_plan(plan)
    output.parent.mkdir(parents=True, exist_ok=True)
    resources = Resources(effort.memory - plan.state_bytes, effort.jobs)
    return DiskWorkspace(resources, folder, name, output)


def left_overs(output: Path, tmp: Path | None = None) -> list[Path]:
    """Return this user's folders that ended runs for an output left; not those at work.

    Args:
        output: path of the partition folder.
        tmp: folder of stage files, if not that of the output.
    """
    output = output.absolute()
    found = {*output.parent.glob(f".{_escaped(output.name)}.*.tmp")}
    for folder in {output.parent, tmp or output.parent}:
        found |= {*folder.glob(f".khop-{_escaped(output.name)}-*.stage")}
    return sorted(path for path in found if is_own_folder(path) and not is_locked(path))


def identity_of(partitioner: Planned) -> dict[str, Any]:
    """Return all that the content of a folder depends on, and what the stage files depend on."""
    source, draws, effort = partitioner.source, partitioner.draws, partitioner.effort
    return {
        "output": os.fspath(Path(partitioner.output_dir).absolute()),
        "method": partitioner.identity(),
        "num_parts": partitioner.num_parts,
        "edge_dir": partitioner.edge_dir,
        "time": None if draws.time is None else draws.time.name,
        "weight": draws.weight_attr,
        "neighbor_ids": partitioner.neighbor_ids,
        "edge_ids": partitioner.edge_ids,
        "memory": effort.memory,
        "jobs": Resources(None, effort.jobs).jobs,
        "nodes": [[t, n.count, _attrs(n.attrs)] for t, n in source.nodes.items()],
        "edges": [
            [t, e.num_edges, *map(content_identity, e.content()), _attrs(e.attrs)]
            for t, e in source.edges.items()
        ],
    }


def _attrs(attrs: dict[str, RowStore]) -> dict[str, Any]:
    return {
        name: [feature.dtype, *map(content_identity, feature.content())]
        for name, feature in attrs.items()
    }


def content_identity(array: Array) -> list[Any]:
    """Return what tells an array from others: of a mapped file its place, size and time."""
    about = [str(array.dtype), list(array.shape)]
    region = file_region_of(array)
    if region is None:
        return [*about, checksum(array)]
    time = Path(region.path).stat().st_mtime_ns
    return [*about, region.path, region.file_bytes, time, region.offset, list(region.strides)]


def _escaped(name: str) -> str:
    """Return a pattern that matches a name alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
