"""Opens the temporary storage of a partitioner, and finds what an interrupted run left.

A run resumes another if both have the same identity: all values that the result depends on. Imports
no torch.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from khop.data import RowStore
from khop.data.arrays import checksum
from khop.data.files import file_region_of
from khop.partition.out_of_core.plan import Plan, PlannablePartitioner
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import DiskWorkspace, Workspace, run_name
from khop.private_folders import is_own_folder
from khop.storage.folder import check_output, is_locked, temporary_of
from khop.typing import Array


def open_workspace(partitioner: PlannablePartitioner) -> Workspace:
    """Open the storage in which a partitioner keeps edges between its steps.

    If an interrupted run of the same input and options left storage, it is used, so that the run
    resumes.

    Raises:
        ValueError: memory or disk do not suffice. The message states how much does.
        ConnectionError: the Ray cluster of option `on` is unreachable.
        BlockingIOError: another process runs the same input and options.
    """
    effort, output = partitioner.effort, Path(partitioner.output_dir).absolute()
    check_output(output, partitioner.overwrite)
    if effort.clean:
        for left in left_overs(output, effort.tmp):
            shutil.rmtree(left)
    if effort.cluster is not None:
        from khop.partition.out_of_core.on_ray import RayWorkspace

        return RayWorkspace(*effort.cluster)
    if effort.memory is None:
        return Workspace(Resources(None, effort.jobs))
    plan = Plan.of(partitioner)
    plan.check_memory()
    name = run_name(identity_of(partitioner))
    folder = effort.folder_of(output) / f".khop-{output.name}-{name}.stage"
    plan.check_disk([folder, temporary_of(output, name)])
    if effort.on_plan is not None:
        effort.on_plan(plan)
    output.parent.mkdir(parents=True, exist_ok=True)
    resources = Resources(effort.memory - plan.state_bytes, effort.jobs)
    return DiskWorkspace(resources, folder, name, output)


def left_overs(output: Path, tmp: Path | None = None) -> list[Path]:
    """Return temporary folders of interrupted runs that wrote `output`. No process uses them.

    Only folders of this user count. They are in the parent of `output` and, if not None, in `tmp`.
    """
    output = output.absolute()
    # A pattern that matches this name alone.
    name = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in output.name)
    folders = {*output.parent.glob(f".{name}.*.tmp")}
    for parent in {output.parent, tmp or output.parent}:
        folders |= {*parent.glob(f".khop-{name}-*.stage")}
    return sorted(path for path in folders if is_own_folder(path) and not is_locked(path))


def identity_of(partitioner: PlannablePartitioner) -> dict[str, Any]:
    """Return the input and options of a partitioner, as values that can be written as JSON.

    Runs with equal values write equal files.
    """
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


def content_identity(array: Array) -> list[object]:
    """Return values for JSON that identify an array: checksum, or its file's path, size, time."""
    about: list[object] = [str(array.dtype), list(array.shape)]
    mapped = file_region_of(array)
    if mapped is None:
        return [*about, checksum(array)]
    time = Path(mapped.path).stat().st_mtime_ns
    return [*about, mapped.path, mapped.file_bytes, time, mapped.offset, list(mapped.strides)]
