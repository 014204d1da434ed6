"""Upgrade of a folder to the format version that this khop writes, in place or as a copy.

Arrays stay as they are, bit for bit. Only meta.json and checksums by ranges are new. For these
checksums, every file is read once. Imports no torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from khop.data.files import release_pages
from khop.errors import FolderError
from khop.partition.out_of_core.folder_checksums import FolderChecksums
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import DiskWorkspace, run_name
from khop.partition.source import no_progress
from khop.partition.summary import FolderSummary
from khop.storage.folder import (
    VERSION_RANGES,
    FolderWriter,
    PartitionFolder,
    Written,
    check_output,
    describe,
    temporary_of,
)
from khop.tables import human_bytes
from khop.typing import Progress

# Bytes copied at a time.
_CHUNK_BYTES = 16 << 20
# Most bytes per file in meta.json and the journal, beside its path.
_ENTRY_BYTES = 512


@dataclass(frozen=True)
class UpgradePlan:
    """Bytes that an upgrade of a folder will read and write. `upgrade_folder` makes it.

    Attributes:
        folder: the folder that is upgraded.
        output: the folder that is written, or `folder` for an upgrade in place.
        version: format version of `folder`.
        read_bytes: bytes that are read.
        disk_bytes: most bytes that are written to the disk of `output`.
        free_bytes: free bytes of that disk.

    Example:
        >>> UpgradePlan(path / "parts", path / "new", 2, 20, 10, 5).check_disk()
        Traceback (most recent call last):
        ...
        ValueError: the disk is too full for ...
    """

    folder: Path
    output: Path
    version: int
    read_bytes: int
    disk_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        """Return one line of text for users: bytes to read and to write."""
        return (
            f"'{self.folder}', format version {self.version} to {VERSION_RANGES}: reads "
            f"{human_bytes(self.read_bytes)}, needs {human_bytes(self.disk_bytes)} of disk at "
            f"'{self.output.parent}' ({human_bytes(self.free_bytes)} are free)"
        )

    def check_disk(self) -> None:
        """Raise ValueError if `disk_bytes` is more than `free_bytes`."""
        if self.disk_bytes > self.free_bytes:
            raise ValueError(
                f"the disk is too full for {self}: make space, choose another folder, or upgrade "
                "in place, which takes almost none"
            )


def upgrade_folder(
    folder: str | os.PathLike[str],
    output_dir: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
    on_plan: Callable[[UpgradePlan], None] | None = None,
) -> FolderSummary:
    """Upgrade a folder of format version 1 or 2 to the version that this khop writes.

    All files are read, and checked against their old checksums. The new folder has the same arrays
    and fingerprint. So a job may use the new folder on some machines, and the old one on others. A
    copy leaves the old folder as it is. In place, the old folder stays valid until its meta.json is
    replaced. An interrupted run resumes if it is started again with the same arguments.

    Args:
        folder: the folder, with all parts on this machine.
        output_dir: the folder to write, a copy. If None, `folder` is upgraded in place, which needs
            almost no disk.
        overwrite: replace `output_dir` if it exists.
        jobs: threads that compute checksums. If None, one per core, at most 8.
        progress: called as progress(step, done, total).
        on_plan: called with the `UpgradePlan`, before anything is written.

    Returns:
        The summary of the folder.

    Raises:
        FolderError: the folder is missing or damaged, or parts are on other machines.
        FileExistsError: `output_dir` exists and `overwrite` is False.
        ValueError: the folder needs no upgrade, or the disk is too full.
        BlockingIOError: another process upgrades the same folder.

    Example:
        >>> upgrade_folder(folder)
        Traceback (most recent call last):
        ...
        ValueError: ... has format version 3 already: nothing is to be done
    """
    opened = PartitionFolder(folder)
    if opened.version >= VERSION_RANGES:
        raise ValueError(
            f"'{opened.root}' has format version {opened.version} already: nothing is to be done"
        )
    output = opened.root if output_dir is None else Path(output_dir).absolute()
    if output_dir is not None:
        if output.is_relative_to(opened.root) or opened.root.is_relative_to(output):
            raise ValueError(
                f"'{output}' and '{opened.root}' lie within each other: choose another place, or "
                "leave it out to upgrade in place"
            )
        check_output(output, overwrite)
        output.parent.mkdir(parents=True, exist_ok=True)
    name = run_name([str(opened.root), opened.fingerprint, str(output)])
    plan = _plan(opened, output, name)
    plan.check_disk()
    if on_plan is not None:
        on_plan(plan)
    report = progress or no_progress
    with FolderChecksums(opened, jobs, output.parent, report) as checksums:
        files = checked_files(opened, checksums)
        if output_dir is None:
            describe(opened.root, opened.meta, files, opened.fingerprint)
        else:
            _copy(opened, output, overwrite, name, files, report)
    return FolderSummary.of(PartitionFolder(output))


def _plan(folder: PartitionFolder, output: Path, name: str) -> UpgradePlan:
    size = sum(known.bytes for known in folder.files.values())
    described = sum(2 * len(path) + _ENTRY_BYTES for path in folder.files) + size // 2**17
    is_copy = output != folder.root
    begun = temporary_of(output, name)
    there = sum(f.stat().st_size for f in begun.rglob("*") if f.is_file()) if is_copy else 0
    needed = described + max(0, size - there if is_copy else 0)
    free = shutil.disk_usage(output.parent).free
    return UpgradePlan(folder.root, output, folder.version, size * (1 + is_copy), needed, free)


def checked_files(folder: PartitionFolder, checksums: FolderChecksums) -> dict[str, Written]:
    """Check the old checksum of every file of a folder.

    Returns:
        {path: length and new digests of the file}.

    Raises:
        FolderError: a file is missing or has changed.
    """
    files = {}
    for file in checksums.compute():
        if file.written is None or file.sha256 != folder.files[file.path].sha256:
            problem = file.problem or f"{file.path}: its bytes have changed (checksum differs)"
            raise FolderError(
                f"'{folder.root}' cannot be converted: {problem}. All parts must be on this "
                "machine and sound: khop verify says what else is wrong"
            )
        files[file.path] = file.written
    return files


def _copy(
    folder: PartitionFolder,
    output: Path,
    overwrite: bool,
    name: str,
    files: dict[str, Written],
    progress: Progress,
) -> None:
    """Copy the arrays of a folder into a new one, or resume an interrupted copy.

    Args:
        folder: the old folder.
        output: the new folder.
        overwrite: replace `output` if it exists.
        name: name of the run, by which a later run finds the unfinished copy.
        files: length and digests of each file, by path.
        progress: called as progress("copying", bytes done, all bytes).
    """
    total, done = sum(known.bytes for known in files.values()), 0
    stage = output.parent / f".khop-{output.name}-{name}.stage"
    with (
        DiskWorkspace(Resources(), stage, name, output) as workspace,
        FolderWriter(output, overwrite, workspace.unfinished) as writer,
    ):
        workspace.attach(writer)
        for path, known in files.items():
            if not writer.has(path):
                array = folder.open(path)
                width = max(1, array[:1].nbytes)
                step = max(1, _CHUNK_BYTES // width)
                with writer.array(path, array.dtype, array.shape) as file:
                    for first in range(file.rows, len(array), step):
                        file.append(array[first : first + step])
                        release_pages(array)
                        progress("copying", done + first * width, total)
                        workspace.checkpoint(step * width)
            if writer.written(path) != known:
                raise FolderError(f"'{folder.root / path}' has changed while it was copied")
            done += known.bytes
        progress("copying", total, total)
        writer.finish(folder.meta, folder.fingerprint)
