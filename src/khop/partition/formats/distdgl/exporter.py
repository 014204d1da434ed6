"""Export of a partition folder as a DistDGL folder. Imports no torch.

Parts are written one by one, with the edges of one part in memory (about 120 bytes per edge).
Attributes are copied from file to file.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from khop.partition.formats.distdgl.byte_stream import Tensor, write_tensors
from khop.partition.formats.distdgl.config import DGL_EDGE, DGL_NODE, TypedIds
from khop.partition.formats.distdgl.graph_file import write_graph
from khop.storage.folder import FolderMeta, PartitionFolder, temporary_of
from khop.storage.part import Part
from khop.typing import Int64Array, Progress


def to_distdgl(
    folder: str | os.PathLike[str] | PartitionFolder,
    output_dir: str | os.PathLike[str],
    *,
    graph_name: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a partition folder as DistDGL's partitions, for DGL 1.0 and later.

    Nodes stay in their parts. Each part has its own edges. Its halo is the source nodes that are in
    other parts. Attributes keep their names. bool is stored as uint8, as DGL does. Original ids are
    in `orig_nids.dgl` and `orig_eids.dgl`, as DGL's `dispatch_data.py` writes them. DGL is not
    needed.

    Args:
        folder: the folder, or its path, with all parts on this machine.
        output_dir: the folder to write, which must not exist, or be empty.
        graph_name: name of the graph and of the JSON file. If None, the name of `output_dir`.
        progress: called as progress(step, done, total). If None, progress is not reported.

    Raises:
        FolderError: `folder` is damaged, or a part is missing.
        FileExistsError: `output_dir` exists.
        ValueError: neighbours are drawn along edges (`edge_dir` 'out'), which DistDGL does not do,
            or a type's name holds ':' or '/'.

    Example:
        >>> to_distdgl(folder, path / "dgl", graph_name="ring")
        >>> sorted(file.name for file in (path / "dgl").iterdir())
        ['part0', 'ring.json']
    """
    if not isinstance(folder, PartitionFolder):
        folder = PartitionFolder(folder)
    root = Path(output_dir).absolute()
    name = root.name if graph_name is None else graph_name
    _check(folder.meta, root, name)
    parts = [Part(folder, part) for part in range(folder.num_parts)]
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(root, token_hex(8))
    temporary.mkdir()
    try:
        writer = _Writer(parts, temporary)
        for part in range(folder.num_parts):
            if progress is not None:
                progress("writing parts", part, folder.num_parts)
            writer.write_part(part)
        (temporary / f"{name}.json").write_text(json.dumps(writer.config(name), indent=4))
        temporary.rename(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _check(meta: FolderMeta, root: Path, name: str) -> None:
    if os.path.lexists(root) and not (root.is_dir() and not any(root.iterdir())):
        raise FileExistsError(f"'{root}' exists: choose another output folder, or remove it")
    if not name or "/" in name or name.startswith("."):
        raise ValueError(f"'{name}' cannot be the name of a graph: it is that of a file")
    if meta.edge_dir != "in":
        raise ValueError(
            "the folder's edges lie with their sources (edge_dir 'out'), DistDGL's with their "
            "destinations: cut it again, with khop repartition FOLDER OUTPUT --edge-dir in"
        )
    if not meta.edge_types:
        raise ValueError("the graph has no edge type, and DistDGL's need one")
    types = {t.name for t in meta.node_types} | {n for t in meta.edge_types for n in t.name}
    attrs = {a for level in ("node", "edge") for t in meta.types(level) for a in t.attrs}
    for names, separators in ((types, ":/"), (attrs, "/")):
        for used in names:
            if not set(separators).isdisjoint(used):
                raise ValueError(f"name '{used}' holds one of '{separators}', which join DGL's")


class _Writer:
    """Writer of a DistDGL folder: of the files of all parts, into folder `root`."""

    def __init__(self, parts: list[Part], root: Path) -> None:
        self._parts, self._root, self._meta = parts, root, parts[0].meta
        typed = self._meta.heterogeneous
        self._node_names = [t.name if typed else DGL_NODE for t in self._meta.node_types]
        self._edge_names = [":".join(t.name) if typed else DGL_EDGE for t in self._meta.edge_types]
        self._nodes = _ids_of([t.bounds for t in self._meta.node_types])
        self._edges = _ids_of([t.bounds for t in self._meta.edge_types])

    def config(self, name: str) -> dict[str, Any]:
        parts = {
            f"part-{p}": {
                "node_feats": f"part{p}/node_feat.dgl",
                "edge_feats": f"part{p}/edge_feat.dgl",
                "part_graph": f"part{p}/graph.dgl",
            }
            for p in range(len(self._parts))
        }
        return {
            "graph_name": name,
            "num_nodes": int(self._nodes.starts[-1]),
            "num_edges": int(self._edges.starts[-1]),
            "part_method": str(self._meta.method.get("name", "khop")),
            "num_parts": len(self._parts),
            "halo_hops": 1,
            "node_map": _ranges(self._nodes, self._node_names),
            "edge_map": _ranges(self._edges, self._edge_names),
            "ntypes": {name: i for i, name in enumerate(self._node_names)},
            "etypes": {name: i for i, name in enumerate(self._edge_names)},
            **parts,
        }

    def write_part(self, index: int) -> None:
        folder = self._root / f"part{index}"
        folder.mkdir()
        self._write_graph(folder / "graph.dgl", index)
        part = self._parts[index]
        for level, names in (("node", self._node_names), ("edge", self._edge_names)):
            attrs, ids = {}, {}
            for i, described in enumerate(self._meta.types(level)):
                for name in described.attrs:
                    feature = part.feature(level, i, name)
                    attrs[f"{names[i]}/{name}"] = Tensor(feature.array, feature.dtype)
                original = part.feature(level, i, "id" if level == "node" else "edge_id")
                ids[names[i]] = np.asarray(original.array, np.int64)
            write_tensors(folder / f"{level}_feat.dgl", attrs)
            write_tensors(folder / f"orig_{level[0]}ids.dgl", ids)

    def _write_graph(self, path: Path, index: int) -> None:
        """Write a part's graph to a file: its own nodes, then sources of edges in other parts."""
        ends = [self._ends(index, i) for i in range(len(self._edge_names))]
        src, dst = np.concatenate(ends, axis=1)
        first, end = self._nodes.of_part(index)
        halo = np.unique(src[(src < first) | (src >= end)])
        node_ids = np.concatenate([np.arange(first, end), halo])
        own = (src >= first) & (src < end)
        sources = np.where(own, src - first, end - first + np.searchsorted(halo, src))
        inner = np.arange(len(node_ids)) < end - first
        starts = self._nodes.starts[:: len(self._node_names)]
        nodes = {
            "inner_node": inner,
            "part_id": np.searchsorted(starts, node_ids, side="right") - 1,
            "_ID": node_ids,
        }
        edges = {
            "inner_edge": np.ones(len(src), bool),
            "_ID": np.arange(*self._edges.of_part(index)),
        }
        if len(self._node_names) > 1 or len(self._edge_names) > 1:
            nodes["_TYPE"] = self._nodes.split(node_ids)[0].astype(np.int16)
            edges["_TYPE"] = self._edges.split(edges["_ID"])[0].astype(np.int32)
        write_graph(path, len(node_ids), sources, dst - first, nodes, edges)

    def _ends(self, index: int, type_index: int) -> Int64Array:
        """Return [2, n] int64 sources and destinations of a part's edges, in DistDGL ids."""
        part, edge_type = self._parts[index], self._meta.edge_types[type_index]
        source, target = part.relations[type_index]
        indptr, neighbors = part.rows(type_index)
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        rows += self._meta.row_type(edge_type).bounds[index]
        ends = self._nodes.join(source, neighbors), self._nodes.join(target, rows)
        return np.stack(ends)


def _ids_of(bounds: list[list[int]]) -> TypedIds:
    """Return DistDGL's numbering, from [num_parts + 1] bounds of the parts' ids for each type."""
    return TypedIds(np.diff(np.array(bounds, np.int64), axis=1).T)


def _ranges(ids: TypedIds, names: list[str]) -> dict[str, list[list[int]]]:
    """Return {type: a [first, end] pair of DistDGL ids per part}, as the JSON file has them."""
    types = len(names)
    firsts, ends = (ids.starts[at : len(ids.starts) - 1 + at].tolist() for at in (0, 1))
    return {
        name: [list(pair) for pair in zip(firsts[i::types], ends[i::types], strict=True)]
        for i, name in enumerate(names)
    }
