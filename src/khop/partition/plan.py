"""Estimates of what partitioning takes, made before it begins. Imports no torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from khop.data.arrays import narrowest_int
from khop.partition.draws import DrawAttrs
from khop.partition.resources import Resources
from khop.partition.source import GraphSource, feature_bytes
from khop.typing import EdgeDir

# Measured by benchmarks/partitioning.py on one core: an edge read twice, split and sorted; a byte
# that is read or written.
_SECONDS_AN_EDGE = 100e-9
_SECONDS_A_BYTE = 3e-9
# Fewer bytes for each thread hold no more than a few rows.
_LEAST_BUFFER = 1024


class Planned(Protocol):
    """Partitioner, as far as plans and workspaces know it."""

    source: GraphSource
    output_dir: str | os.PathLike[str]
    num_parts: int
    edge_dir: EdgeDir
    overwrite: bool
    draws: DrawAttrs
    neighbor_ids: bool
    effort: Any

    def identity(self) -> dict[str, Any]:
        """Return all that the assignment depends on, beside the graph."""

    def assignment_bytes(self) -> int:
        """Return about how much memory the assignment takes."""


@dataclass(frozen=True)
class Plan:
    """Memory, disk and time that a partitioner will take, if its memory is bounded.

    Attributes:
        method: how it is called on the command line.
        memory: bytes that may be used.
        state_bytes: bytes that grow with the number of nodes: parts, new ids, row pointers.
        assignment_bytes: bytes that the method takes to assign nodes.
        buffer_bytes: bytes of the least buffers.
        read_bytes: bytes of the input, edges read twice.
        stage_bytes: bytes of stage files.
        output_bytes: bytes of the folder.
        stage_folder, output_folder: where these are written.
        num_nodes, num_edges: of all types.
        jobs: threads.
    """

    method: str
    memory: int
    state_bytes: int
    assignment_bytes: int
    buffer_bytes: int
    read_bytes: int
    stage_bytes: int
    output_bytes: int
    stage_folder: Path
    output_folder: Path
    num_nodes: int
    num_edges: int
    jobs: int

    @classmethod
    def of(cls, partitioner: Planned) -> Plan:
        """Return the plan of a partitioner whose memory is bounded."""
        source, effort, draws = partitioner.source, partitioner.effort, partitioner.draws
        assert effort.memory is not None
        output = Path(partitioner.output_dir).absolute()
        counts = {t: node.count for t, node in source.nodes.items()}
        ids = {t: narrowest_int(count).itemsize for t, count in counts.items()}
        state = sum(count * (4 + 2 * ids[t]) for t, count in counts.items())
        state += 8 * sum(counts[t] for t in draws.node_times)
        state += 8 * max(counts.values(), default=0)
        written = sum(
            n * (2 * ids[t] + feature_bytes(source.nodes[t].attrs)) for t, n in counts.items()
        )
        stages, read, rows = [0], written, [_LEAST_BUFFER]
        for edge_type, edge in source.edges.items():
            number = narrowest_int(edge.num_edges).itemsize
            column = max(ids[edge_type[0]], ids[edge_type[2]])
            attrs = feature_bytes(edge.attrs)
            extra = 12 if edge_type in draws.weighted else 0
            extra += 8 if edge_type in draws.timed or draws.node_times else 0
            extra += column if partitioner.neighbor_ids else 0
            stages.append(edge.num_edges * (2 * column + number + attrs))
            written += edge.num_edges * (column + number + attrs + extra)
            written += 8 * sum(counts[t] for t in edge_type[::2])
            read += edge.num_edges * (2 * 16 + attrs)
            rows.append(8 * attrs)
        rows += [2 * feature_bytes(node.attrs) for node in source.nodes.values()]
        resources = Resources(effort.memory, effort.jobs)
        return cls(
            type(partitioner).__name__.removesuffix("Partitioner").lstrip("_"),
            effort.memory,
            state,
            partitioner.assignment_bytes(),
            2 * resources.in_flight * max(rows),
            read,
            max(stages) + 16 * sum(counts.values()),
            written,
            _existing(effort.folder_of(output)),
            _existing(output.parent),
            sum(counts.values()),
            sum(edge.num_edges for edge in source.edges.values()),
            resources.jobs,
        )

    @property
    def seconds(self) -> float:
        """About how long it takes, without the method's assignment."""
        moved = self.read_bytes + 2 * self.stage_bytes + self.output_bytes
        return self.num_edges * _SECONDS_AN_EDGE + moved * _SECONDS_A_BYTE

    def check_memory(self) -> None:
        """Raise ValueError if the memory does not suffice."""
        least = self.state_bytes + self.buffer_bytes
        if self.memory < least:
            raise ValueError(
                f"memory of {_bytes(self.memory)} is too small: {self.num_nodes:,} nodes take "
                f"{_bytes(self.state_bytes)} for their parts, new ids and row pointers, buffers "
                f"{_bytes(self.buffer_bytes)} or more; give {_bytes(2 * least)}"
            )
        if self.assignment_bytes > self.memory - self.state_bytes:
            raise ValueError(
                f"the method ({self.method}) takes about {_bytes(self.assignment_bytes)} beside "
                f"{_bytes(self.state_bytes)} for nodes, but memory is {_bytes(self.memory)}: give "
                f"{_bytes(self.assignment_bytes + 2 * least)}, or take --method random, or "
                "--assignment with parts found elsewhere, whose edges need not be in memory"
            )

    def check_disk(self, begun: Sequence[Path] = ()) -> None:
        """Raise ValueError if a disk has no room for what is written.

        Args:
            begun: folders of an earlier run, whose files are taken up.
        """
        stage, output = (_used(path) for path in begun) if begun else (0, 0)
        wanted: dict[int, tuple[Path, int]] = {}
        for folder, nbytes in (
            (self.stage_folder, self.stage_bytes - stage),
            (self.output_folder, self.output_bytes - output),
        ):
            device = folder.stat().st_dev
            known = wanted.get(device, (folder, 0))
            wanted[device] = known[0], known[1] + max(0, nbytes)
        for folder, nbytes in wanted.values():
            free = shutil.disk_usage(folder).free
            if free < nbytes:
                raise ValueError(
                    f"the disk of '{folder}' has {_bytes(free)} free, but partitioning writes "
                    f"{_bytes(nbytes)} there: {_bytes(self.stage_bytes)} of stage files, which "
                    f"--tmp places elsewhere, and {_bytes(self.output_bytes)} of the folder"
                )

    def __str__(self) -> str:
        minutes = self.seconds / 60
        time = f"{minutes:.0f} minutes" if minutes >= 2 else f"{self.seconds:.0f} seconds"
        return (
            f"{self.num_nodes:,} nodes, {self.num_edges:,} edges: reads {_bytes(self.read_bytes)}, "
            f"writes {_bytes(self.stage_bytes)} of stage files to '{self.stage_folder}' and "
            f"{_bytes(self.output_bytes)} to '{self.output_folder}'; memory "
            f"{_bytes(self.state_bytes + self.assignment_bytes)} for nodes, the rest of "
            f"{_bytes(self.memory)} for buffers of {self.jobs} threads; about {time}"
        )


def _existing(folder: Path) -> Path:
    """Return the nearest folder above, or this one, that exists."""
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


def _bytes(count: int) -> str:
    """Return a number of bytes as a user writes it."""
    for unit, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
