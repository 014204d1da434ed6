"""Copy of a partition folder whose attributes are stored with other dtypes. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from khop.data import Feature, RowStore
from khop.data.joined import JoinedFeature
from khop.partition.formats.upgrade import checked_files
from khop.partition.out_of_core.folder_checksums import FolderChecksums
from khop.partition.out_of_core.resources import Resources
from khop.partition.out_of_core.workspace import Workspace
from khop.partition.source import no_progress
from khop.partition.summary import FolderSummary
from khop.partition.writing.narrowed import NarrowedRows, fit_narrowed, narrowed
from khop.partition.writing.nodes import save_rows
from khop.storage.folder import (
    AttrMeta,
    FolderMeta,
    FolderWriter,
    PartitionFolder,
    cache_attr_path,
    check_output,
    edge_attr_path,
    node_attr_path,
)
from khop.storage.part import Part
from khop.typing import FeatureKey, Progress


def convert_features(
    folder: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    feature_dtype: Mapping[FeatureKey, object],
    *,
    deliver: str = "float32",
    overwrite: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> FolderSummary:
    """Copy a folder, with attributes stored in fewer bits, or as float32 again.

    Parts, ids and all other arrays are the same. All files are checked against their checksums
    first. Numbers that an encoding has lost do not come back.

    Args:
        folder: the folder, with all parts on this machine.
        output_dir: the folder to write.
        feature_dtype: as for `partition_graph`.
        deliver: as for `partition_graph`.
        overwrite: replace `output_dir` if it exists.
        jobs: threads. If None, one per core, at most 8.
        progress: called as progress(step, done, total).

    Returns:
        The summary of the new folder.

    Raises:
        FolderError: the folder is missing, damaged or of an earlier format version, or parts are
            on other machines.
        FileExistsError: `output_dir` exists and `overwrite` is False.
        TypeError, ValueError: an attribute cannot be stored so.

    Example:
        >>> convert_features(folder, path / "small", {"x": "bfloat16"}).encoded
        {'x of node': 'bfloat16, float32 in batches'}
    """
    opened, report = PartitionFolder(folder), progress or no_progress
    opened.written()  # of this version
    output = Path(output_dir).absolute()
    if output.is_relative_to(opened.root) or opened.root.is_relative_to(output):
        raise ValueError(f"'{output}' and '{opened.root}' lie within each other")
    check_output(output, overwrite)
    parts = [Part(opened, p) for p in range(opened.num_parts)]
    made = narrowed(_attributes(parts), feature_dtype, deliver)
    _check_draws(opened.meta, made)
    output.parent.mkdir(parents=True, exist_ok=True)
    with FolderChecksums(opened, jobs, output.parent, report) as checksums:
        checked_files(opened, checksums)
    workspace = Workspace(Resources(None, jobs))
    fit_narrowed(made, workspace, report)
    files = _narrowed_files(parts, made)
    with FolderWriter(output, overwrite) as writer:
        for done, path in enumerate(opened.files):
            report("copying", done, len(opened.files))
            rows = files.get(path) or Feature(opened.open(path))
            save_rows(writer, workspace, path, rows, np.arange(rows.num_rows))
            rows.release()
        writer.finish(_described(opened.meta, made))
        report("copying", len(opened.files), len(opened.files))
    return FolderSummary.of(PartitionFolder(output))


def _attributes(parts: list[Part]) -> dict[Any, dict[str, RowStore]]:
    """Return the attributes of each type, with the rows of all parts as they are stored."""
    meta = parts[0].meta
    return {
        t.name: {
            name: JoinedFeature([part.feature(level, i, name).as_stored for part in parts])
            for name in t.attrs
        }
        for level in ("node", "edge")
        for i, t in enumerate(meta.types(level))
    }


def _check_draws(meta: FolderMeta, made: Mapping[Any, Mapping[str, RowStore]]) -> None:
    names = {meta.weight_attr, meta.time_attr and meta.time_attr.name}
    for held in made.values():
        for name, rows in held.items():
            if isinstance(rows, NarrowedRows) and name in names:
                raise ValueError(
                    f"feature_dtype names '{name}', the times or weights of draws, which keep "
                    "their values: partition again"
                )


def _narrowed_files(
    parts: list[Part], made: Mapping[Any, Mapping[str, RowStore]]
) -> dict[str, RowStore]:
    """Return {path: narrowed rows} of the files that change."""
    files: dict[str, RowStore] = {}
    for part in parts:
        for i, node_type in enumerate(part.meta.node_types):
            copies = part.cached(i)
            for name, rows in made[node_type.name].items():
                if isinstance(rows, NarrowedRows):
                    own = part.node_feature(i, name).as_stored
                    files[node_attr_path(part.part, node_type.name, name)] = rows.of(own)
                    if copies is not None:
                        path = cache_attr_path(part.part, node_type.name, name)
                        files[path] = rows.of(copies.features[name].as_stored)
        for i, edge_type in enumerate(part.meta.edge_types):
            for name, rows in made[edge_type.name].items():
                if isinstance(rows, NarrowedRows):
                    own = part.edge_feature(i, name).as_stored
                    files[edge_attr_path(part.part, edge_type.name, name)] = rows.of(own)
    return files


def _described(meta: FolderMeta, made: Mapping[Any, Mapping[str, RowStore]]) -> FolderMeta:
    def attrs(type_name: Any) -> dict[str, AttrMeta]:
        return {name: AttrMeta.of_rows(rows) for name, rows in made[type_name].items()}

    return replace(
        meta,
        node_types=[replace(t, attrs=attrs(t.name)) for t in meta.node_types],
        edge_types=[replace(t, attrs=attrs(t.name)) for t in meta.edge_types],
    )
