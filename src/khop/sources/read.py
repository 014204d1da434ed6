"""`read_source`: reader of any SOURCE argument. Also the layouts of Debian's graphs."""

from __future__ import annotations

import difflib
import textwrap
from pathlib import Path

from khop.partition.source import GraphSource
from khop.plugins import Registry, instance_of
from khop.sources.base import Source
from khop.sources.chunked import Chunked
from khop.sources.directory import Directory, NpzFile
from khop.sources.gigl import Gigl
from khop.sources.igb import Igb
from khop.sources.mag240m import Mag240m
from khop.sources.ogb import Ogb
from khop.sources.saved import SavedData
from khop.sources.scratch import Scratch


class Debian(Source):
    """Reader of the packages of Debian and their dependencies, as a homogeneous graph."""

    names = ("debian",)
    about = "the package graph of Debian 12 that comes with khop"

    def matches(self, spec: str) -> bool:
        """Return True if `spec` is the data set's name."""
        return spec in self.names

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph that khop contains, or its cached copy below `root`."""
        return self._read(False)

    def read_undirected(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph with reverse edges, as the data set itself defines them."""
        return self._read(True)

    def _read(self, undirected: bool) -> GraphSource:
        from khop.datasets import DebianPackages

        return GraphSource.from_data(DebianPackages(undirected=undirected)[0])


class DebianHetero(Debian):
    """Reader of Debian's packages, sources, maintainers and tags, as a heterogeneous graph."""

    names = ("debian-hetero",)
    about = (
        "the same with an edge type for each kind of relation, and with sources, maintainers and "
        "tags; `--undirected` adds reverses as edge types `rev_...`"
    )

    def _read(self, undirected: bool) -> GraphSource:
        from khop.datasets import DebianPackagesHetero

        return GraphSource.from_data(DebianPackagesHetero(undirected=undirected)[0])


LAYOUTS: Registry[Source] = Registry(
    "khop.sources",
    {
        "debian": Debian(),
        "debian-hetero": DebianHetero(),
        "mag240m": Mag240m(),
        "ogb": Ogb(),
        "igb": Igb(),
        "chunked": Chunked(),
        "gigl": Gigl(),
        "npz": NpzFile(),
        "directory": Directory(),
        "saved": SavedData(),
    },
    instance_of(Source),
    "layout",
)
"""All layouts. The first built-in layout that matches a SOURCE argument reads it."""


def read_source(
    spec: str,
    root: str = "dataset",
    undirected: bool = False,
    scratch: Scratch | None = None,
    layout: str | Source | type[Source] | None = None,
) -> GraphSource:
    """Read the graph that a SOURCE argument of `khop partition` names.

    Arrays are mapped where the layout allows it. Partitioning reads them in pieces.

    Args:
        spec: 'debian', 'ogb:NAME', a file, a folder, and so on (list: `khop partition --help`).
            'NAME:REST' is for the layout NAME of an installed package (group `khop.sources`).
        root: folder of OGB's and IGB's data sets.
        undirected: add the reverse of every edge (default: False).
        scratch: temporary storage of compressed files and text. If None, in memory.
        layout: name of a built-in or installed layout, 'package:Class', or a `Source`. If None, the
            first built-in layout that matches.

    Raises:
        FileNotFoundError: `spec` is no file, folder or name of a data set.
        ValueError, TypeError: the source is not a graph, or no layout is called `layout`.
        PluginError: the layout cannot be imported.

    Example:
        >>> np.savez(path / "graph.npz", edge_index=[[0, 1], [1, 2]], x=np.zeros((3, 2)))
        >>> read_source(str(path / "graph.npz")).nodes["node"].count
        3
    """
    source = find_layout(spec, layout)
    read = source.read_undirected if undirected else source.read
    graph = read(spec, Scratch() if scratch is None else scratch, Path(root))
    if not isinstance(graph, GraphSource):
        raise TypeError(
            f"{type(source).__qualname__}.read must return a khop.partition.GraphSource (got "
            f"'{type(graph).__name__}')"
        )
    return graph


def find_layout(spec: str, layout: str | Source | type[Source] | None = None) -> Source:
    """Return the reader (layout) of a SOURCE argument. Arguments and errors: see `read_source`."""
    if layout is not None:
        source = LAYOUTS.checked(layout)
        if not source.matches(spec):
            raise ValueError(
                f"layout {layout if isinstance(layout, str) else type(source).__qualname__} does "
                f"not read '{spec}'" + (f": it reads {source.form()}" if source.form() else "")
            )
        return source
    for source in LAYOUTS.builtin.values():
        if source.matches(spec):
            return source
    scheme, separator, _ = spec.partition(":")
    if separator and scheme in LAYOUTS.installed():
        return find_layout(spec, scheme)
    named = [name for source in LAYOUTS.builtin.values() for name in source.names]
    close = difflib.get_close_matches(spec, named, n=1)
    meant = f"did you mean '{close[0]}'? " if close else ""
    named += [f"{name}:..." for name in LAYOUTS.installed()]
    raise FileNotFoundError(
        f"'{spec}' does not exist: {meant}a source is a file or a folder, or one of "
        f"{', '.join(named)} (khop partition --help lists all)"
    )


def listing() -> str:
    """Return the list of built-in layouts of graph files, as text for the command's help."""
    lines, indent = [], " " * 16
    for source in LAYOUTS.builtin.values():
        form = source.form().replace("`", "")
        about = textwrap.wrap(source.about.replace("`", ""), 82)
        lines.append(f"  {form:<14}{about.pop(0)}" if len(form) < 14 else f"  {form}")
        lines += [indent + line for line in about]
    return "\n".join(lines)
