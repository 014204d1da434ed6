"""`read_source`: which layout a SOURCE argument names, and its reader."""

from __future__ import annotations

import difflib
from pathlib import Path

from khop.partition.source import GraphSource
from khop.sources.chunked import METADATA, read_chunked
from khop.sources.directory import read_directory, read_npz
from khop.sources.gigl import SUFFIXES, read_gigl
from khop.sources.igb import is_igb, read_igb
from khop.sources.mag240m import FOLDER, is_mag240m, read_mag240m
from khop.sources.ogb_package import read_with_ogb
from khop.sources.ogb_raw import find_ogb, is_ogb, read_ogb_raw
from khop.sources.saved import read_saved
from khop.sources.scratch import Scratch
from khop.sources.symmetrized import symmetrized
from khop.sources.tables import TABLES

_DEBIAN = ("debian", "debian-hetero")


def read_source(
    spec: str,
    root: str = "dataset",
    undirected: bool = False,
    scratch: Scratch | None = None,
) -> GraphSource:
    """Read the graph that a SOURCE argument names.

    Files stay mapped: what partitioning takes of them it reads in pieces.

    Args:
        spec: 'debian', 'debian-hetero', 'ogb:NAME', 'igb:SIZE', 'igbh:SIZE', a file saved by
            `torch.save` or `numpy.savez`, a metadata.json, GiGL's configuration (.yaml), or a
            folder; see `khop partition
            --help`.
        root: folder of data sets of OGB and IGB.
        undirected: add the reverse of every edge.
        scratch: where compressed files and text are unpacked. If None, in memory.

    Raises:
        FileNotFoundError: there is no such source.
        ValueError, TypeError: it cannot be read as a graph; the message says why.

    Example:
        >>> np.savez(path / "graph.npz", edge_index=[[0, 1], [1, 2]], x=np.zeros((3, 2)))
        >>> read_source(str(path / "graph.npz")).nodes["node"].count
        3
    """
    if spec in _DEBIAN:
        from khop.datasets import DebianPackages, DebianPackagesHetero

        dataset = DebianPackages if spec == "debian" else DebianPackagesHetero
        return GraphSource.from_data(dataset(undirected=undirected)[0])
    scratch = Scratch() if scratch is None else scratch
    source = _read(spec, Path(root), scratch)
    return symmetrized(source, scratch) if undirected else source


def _read(spec: str, root: Path, scratch: Scratch) -> GraphSource:
    kind, _, name = spec.partition(":")
    path = Path(spec)
    if kind == "ogb":
        return _read_ogb(name, root, scratch)
    if kind in ("igb", "igbh"):
        return read_igb(root / name, scratch, heterogeneous=kind == "igbh")
    if path.is_dir():
        return _read_folder(path, scratch)
    if path.is_file():
        return _read_file(path, scratch)
    close = difflib.get_close_matches(spec, _DEBIAN, n=1)
    meant = f"did you mean '{close[0]}'? " if close else ""
    raise FileNotFoundError(
        f"'{spec}' does not exist: {meant}a source is a file or a folder, or one of debian, "
        "debian-hetero, ogb:NAME, igb:SIZE, igbh:SIZE (khop partition --help lists all)"
    )


def _read_ogb(name: str, root: Path, scratch: Scratch) -> GraphSource:
    """Read a data set of OGB, which its package downloads if it is not there."""
    if name == "mag240m":
        return read_mag240m(root / FOLDER, scratch)
    stored = find_ogb(name, root)
    if stored is None:
        return GraphSource.from_data(read_with_ogb(name, root))
    return read_ogb_raw(stored, scratch)


def _read_folder(folder: Path, scratch: Scratch) -> GraphSource:
    """Read a folder; which layout it has, a file or folder in it tells."""
    if is_ogb(folder):
        return read_ogb_raw(folder, scratch)
    if is_mag240m(folder):
        return read_mag240m(folder, scratch)
    if is_igb(folder):
        return read_igb(folder, scratch)
    if (folder / METADATA).exists():
        return read_chunked(folder / METADATA, scratch)
    return read_directory(folder, scratch)


def _read_file(path: Path, scratch: Scratch) -> GraphSource:
    if path.name == METADATA:
        return read_chunked(path, scratch)
    if path.suffix in SUFFIXES:
        return read_gigl(path, scratch)
    if path.suffix == ".npz":
        return read_npz(path, scratch)
    if path.name.endswith((*TABLES, ".npy")):
        raise ValueError(
            f"'{path}' is a file of a graph, not the graph: name the folder that it is in, where "
            "edges are called edge_index.npy, edges.csv or edges.parquet"
        )
    return GraphSource.from_data(read_saved(path))
