"""Limits that a user sets for partitioning, and the estimate of memory, disk and time.

Imports no torch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from khop.data import RowStore
from khop.data.arrays import narrowest_int
from khop.data.hot_rows import parse_bytes
from khop.partition.draws import DrawAttrs
from khop.partition.out_of_core.engines import check_engine
from khop.partition.out_of_core.resources import Resources
from khop.partition.source import GraphSource, feature_bytes
from khop.tables import human_bytes, text_table
from khop.typing import EdgeDir

# Measured by benchmarks/partitioning.py on one core: an edge is read twice, split and sorted, a
# byte is read or written.
_SECONDS_PER_EDGE = 100e-9
_SECONDS_PER_BYTE = 3e-9
# Smaller buffers of a thread hold no more than a few rows.
_LEAST_BUFFER = 1024


class ClusterEffort(NamedTuple):
    """Share of a cluster that partitioning may take: arguments of the engine's workspace.

    Attributes:
        on: engine, with the cluster's address if the user named it: 'ray:ADDRESS'.
        memory: bytes that a task takes for edges. If None, the engine's default.
        jobs: tasks at a time. If None, one per CPU.
    """

    on: str
    memory: int | None
    jobs: int | None


@dataclass(frozen=True)
class Effort:
    """Memory, disk, threads and machines that a user allows a partitioner.

    Attributes:
        memory: bytes. If None, edges are kept in memory without a limit.
        tmp: folder of temporary files with edges. If None, the output's parent.
        jobs: threads. If None, one per core, at most 8.
        clean: first remove the temporary folders of interrupted runs.
        on_plan: called with the plan, before anything is written.
        cluster: machines that cut and write, after nodes are assigned. If None, this machine.
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
        """Check a user's options, and create the limits from them.

        `PartitionOptions` explains them.

        Raises:
            ValueError: `memory` or `jobs` is out of range, `tmp` comes without `memory`, or `on`
                names no engine.
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
        return output.parent if self.tmp is None else self.tmp


class PlannablePartitioner(Protocol):
    """Attributes and methods of `PartitionerBase` that plans and workspaces use."""

    source: GraphSource
    output_dir: str | os.PathLike[str]
    num_parts: int
    edge_dir: EdgeDir
    overwrite: bool
    draws: DrawAttrs
    neighbor_ids: bool
    edge_ids: bool
    effort: Effort

    def identity(self) -> dict[str, Any]: ...
    def assignment_bytes(self) -> int: ...
    def scratch_bytes(self) -> int: ...
    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class PlannedType:
    """Size and attributes of a node or edge type in a plan.

    Attributes:
        name: name of the type. Names of an edge type are joined by spaces.
        count: number of nodes or edges.
        attrs: {attribute: dtype and shape of a row, such as 'float32 [16]'}.
        num_bytes: bytes of all attributes.

    Example:
        >>> plan = make_partitioner(data, path / "parts", 2).plan()
        >>> plan.node_types[0].name, plan.node_types[0].attrs["x"]
        ('node', 'float32 [4]')
    """

    name: str
    count: int
    attrs: dict[str, str]
    num_bytes: int

    @classmethod
    def of(cls, name: str, count: int, attrs: Mapping[str, RowStore]) -> PlannedType:
        """Describe the nodes or edges of one type: name, number, and attributes by name.

        :meta private:
        """
        shown = {
            name: f"{attr.dtype} {list(attr.row_shape)}" if attr.row_shape else attr.dtype
            for name, attr in attrs.items()
        }
        return cls(name, count, shown, count * feature_bytes(attrs))

    def __str__(self) -> str:
        attrs = ", ".join(f"{name} {rows}" for name, rows in self.attrs.items())
        return f"{self.count:,}" + (f"; {attrs}: {human_bytes(self.num_bytes)}" if attrs else "")


@dataclass(frozen=True)
class Plan:
    """Memory, disk and time that a partitioner will take, estimated by `PartitionerBase.plan`.

    Attributes:
        method: name of the method on the command line.
        num_parts: number of parts.
        node_types, edge_types: types of the input graph.
        memory: bytes that may be used. If None, edges are kept in memory.
        state_bytes: bytes that grow with the number of nodes: parts, new ids, row pointers.
        assignment_bytes: bytes that the method takes to assign nodes.
        buffer_bytes: least bytes that buffers take.
        edge_bytes: bytes of the edges in memory or in temporary files, in the step that takes most.
        read_bytes: bytes that are read: the input, with edges counted twice.
        output_bytes: bytes of the folder.
        stage_folder, output_folder: folders of temporary files (stage files) and of the output.
        jobs: threads.

    Example:
        >>> plan = make_partitioner(data, path / "parts", 2, memory="1GB").plan()
        >>> plan.num_nodes, plan.num_edges, plan.stage_bytes > 0
        (6, 12, True)
    """

    method: str
    num_parts: int
    node_types: tuple[PlannedType, ...]
    edge_types: tuple[PlannedType, ...]
    memory: int | None
    state_bytes: int
    assignment_bytes: int
    buffer_bytes: int
    edge_bytes: int
    read_bytes: int
    output_bytes: int
    stage_folder: Path
    output_folder: Path
    jobs: int

    @classmethod
    def of(cls, partitioner: PlannablePartitioner) -> Plan:
        """Estimate the memory, disk and time that a partitioner will take.

        :meta private:
        """
        source, effort, draws = partitioner.source, partitioner.effort, partitioner.draws
        output = Path(partitioner.output_dir).absolute()
        counts = {t: node.count for t, node in source.nodes.items()}
        ids = {t: narrowest_int(count).itemsize for t, count in counts.items()}
        state = sum(count * (4 + 2 * ids[t]) for t, count in counts.items())
        state += 8 * sum(counts[t] for t in draws.node_times)
        state += 8 * max(counts.values(), default=0)
        written = sum(
            n * (2 * ids[t] + feature_bytes(source.nodes[t].attrs)) for t, n in counts.items()
        )
        staged, read, rows = [0], written, [_LEAST_BUFFER]
        for edge_type, edge in source.edges.items():
            edge_id = narrowest_int(edge.num_edges).itemsize
            column = max(ids[edge_type[0]], ids[edge_type[2]])
            attrs = feature_bytes(edge.attrs)
            in_stage = attrs if effort.memory is not None else 0
            staged.append(edge.num_edges * (2 * column + edge_id + in_stage))
            in_folder = column + attrs + (12 if edge_type in draws.weighted else 0)
            in_folder += 8 if edge_type in draws.timed or draws.node_times else 0
            in_folder += column if partitioner.neighbor_ids else 0
            in_folder += edge_id if partitioner.edge_ids else 0
            written += edge.num_edges * in_folder + 8 * sum(counts[t] for t in edge_type[::2])
            read += edge.num_edges * (2 * 16 + attrs)
            rows.append(8 * attrs)
        rows += [2 * feature_bytes(node.attrs) for node in source.nodes.values()]
        resources = Resources(effort.memory, effort.jobs)
        return cls(
            method=_command_line_name(partitioner.describe()["name"]),
            num_parts=partitioner.num_parts,
            node_types=tuple(PlannedType.of(t, n.count, n.attrs) for t, n in source.nodes.items()),
            edge_types=tuple(
                PlannedType.of(" ".join(t), e.num_edges, e.attrs) for t, e in source.edges.items()
            ),
            memory=effort.memory,
            state_bytes=state,
            assignment_bytes=partitioner.assignment_bytes(),
            buffer_bytes=2 * resources.in_flight * max(rows),
            edge_bytes=max(*staged, partitioner.scratch_bytes()) + 16 * sum(counts.values()),
            read_bytes=read,
            output_bytes=written,
            stage_folder=_existing(effort.folder_of(output)),
            output_folder=_existing(output.parent),
            jobs=resources.jobs,
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(node_type.count for node_type in self.node_types)

    @property
    def num_edges(self) -> int:
        """Number of edges of all types."""
        return sum(edge_type.count for edge_type in self.edge_types)

    @property
    def stage_bytes(self) -> int:
        """Bytes of temporary files with edges. 0 if edges are kept in memory."""
        return 0 if self.memory is None else self.edge_bytes

    @property
    def seconds(self) -> float:
        """Estimated seconds of cutting and writing. Assigning nodes to parts is not included."""
        moved = self.read_bytes + 2 * self.stage_bytes + self.output_bytes
        return self.num_edges * _SECONDS_PER_EDGE + moved * _SECONDS_PER_BYTE

    def check_memory(self) -> None:
        """Raise ValueError if `memory` is too small for nodes, buffers or the assignment."""
        if self.memory is None:
            return
        least = self.state_bytes + self.buffer_bytes
        if self.memory < least:
            raise ValueError(
                f"memory of {human_bytes(self.memory)} is too small: {self.num_nodes:,} nodes take "
                f"{human_bytes(self.state_bytes)} for their parts, new ids and row pointers, "
                f"buffers {human_bytes(self.buffer_bytes)} or more; give {human_bytes(2 * least)}"
            )
        if self.assignment_bytes > self.memory - self.state_bytes:
            enough = human_bytes(self.assignment_bytes + 2 * least)
            raise ValueError(
                f"the method ({self.method}) takes about {human_bytes(self.assignment_bytes)} "
                f"beside {human_bytes(self.state_bytes)} for nodes, but memory is "
                f"{human_bytes(self.memory)}: give {enough}, or take --method random or stream, or "
                "--assignment with parts found elsewhere, whose edges need not be in memory"
            )

    def check_disk(self, begun: Sequence[Path] = ()) -> None:
        """Raise ValueError if a disk has no space for the temporary files or the output.

        Args:
            begun: temporary folder and unfinished output of an earlier run, whose files are kept.
        """
        stage, output = (_used(path) for path in begun) if begun else (0, 0)
        needed: dict[int, tuple[Path, int]] = {}
        for folder, nbytes in (
            (self.stage_folder, self.stage_bytes - stage),
            (self.output_folder, self.output_bytes - output),
        ):
            device = folder.stat().st_dev
            known = needed.get(device, (folder, 0))
            needed[device] = known[0], known[1] + max(0, nbytes)
        for folder, nbytes in needed.values():
            free = shutil.disk_usage(folder).free
            if free < nbytes:
                raise ValueError(
                    f"the disk of '{folder}' has {human_bytes(free)} free, but partitioning writes "
                    f"{human_bytes(nbytes)} there: {human_bytes(self.stage_bytes)} of stage files, "
                    f"which --tmp places elsewhere, and {human_bytes(self.output_bytes)} of the "
                    "folder"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes and properties, as values that can be written as JSON."""
        return {
            **asdict(self),
            "stage_bytes": self.stage_bytes,
            "stage_folder": str(self.stage_folder),
            "output_folder": str(self.output_folder),
            "seconds": self.seconds,
        }

    def table(self) -> str:
        """Return the plan as lines of text, as `khop partition --plan` prints it."""
        files = (
            f"{human_bytes(self.output_bytes)} to '{self.output_folder}', {self.num_parts} parts"
        )
        for_nodes = f"{human_bytes(self.state_bytes)} for parts, ids and row pointers of nodes"
        if self.assignment_bytes:
            for_nodes += f", {human_bytes(self.assignment_bytes)} to assign them"
        rest = f"{human_bytes(self.edge_bytes)} for edges"
        if self.memory is not None:
            files += f"; {human_bytes(self.stage_bytes)} of stage files to '{self.stage_folder}'"
            rest = f"the rest of {human_bytes(self.memory)} for buffers"
        method = self.method
        if self.assignment_bytes:
            method += ", whose time to assign nodes is not estimated"
        return text_table(
            [
                ("method", method),
                *((f"nodes '{t.name}'", str(t)) for t in self.node_types),
                *((f"edges '{t.name}'", str(t)) for t in self.edge_types),
                ("reads", f"{human_bytes(self.read_bytes)}, edges twice"),
                ("writes", files),
                ("memory", f"{for_nodes}, {rest}"),
                ("time", f"about {self._time()} with {self.jobs} threads"),
            ]
        )

    def __str__(self) -> str:
        for_nodes = human_bytes(self.state_bytes + self.assignment_bytes)
        return (
            f"{self.num_nodes:,} nodes, {self.num_edges:,} edges: reads "
            f"{human_bytes(self.read_bytes)}, writes {human_bytes(self.stage_bytes)} of stage "
            f"files to '{self.stage_folder}' and {human_bytes(self.output_bytes)} to "
            f"'{self.output_folder}'; memory {for_nodes} for nodes, the rest of "
            f"{human_bytes(self.memory or 0)} for buffers of {self.jobs} threads; about "
            f"{self._time()}"
        )

    def _time(self) -> str:
        minutes = self.seconds / 60
        return f"{minutes:.0f} minutes" if minutes >= 2 else f"{self.seconds + 1:.0f} s"


def _command_line_name(class_name: str) -> str:
    """Return the name of a partitioner class on the command line, such as 'cluster-metis'."""
    words = re.findall(r"[A-Z][a-z0-9]*|.+", class_name.removesuffix("Partitioner"))
    return "-".join(words).lower()


def _existing(folder: Path) -> Path:
    """Return a folder, or its nearest parent that exists."""
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def _used(folder: Path) -> int:
    """Return the bytes that a folder's files take on the disk."""
    return sum(
        (Path(path) / name).stat().st_blocks * 512
        for path, _, names in os.walk(folder)
        for name in names
    )
