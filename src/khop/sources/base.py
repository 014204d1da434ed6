"""`Source`: a layout of graphs, and its reader. Any process; imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from khop.partition.source import GraphSource
from khop.sources.scratch import Scratch
from khop.sources.symmetrized import symmetrized


class Source(ABC):
    """Base of layouts that `read_source` reads; a subclass is a layout, in a file of its own.

    khop makes an instance without arguments. Users name their own: `khop partition --layout
    my_package:Layout`, or `read_source(layout=)`; a package may have it as an entry point of the
    group `khop.sources`.

    Attributes:
        names: SOURCE arguments of this layout that are no paths, 'ogb:NAME' for example.
        paths: the files or folders of it, 'FILE.npz' for example.
        about: description for lists of layouts, with code between backticks.
        unpacked: what of it is written out before it is read; '' if nothing.
        is_whole: True if a file is read as a whole, which `--memory` must hold.

    Example:
        >>> class Pair(Source):
        ...     def matches(self, spec): return spec == "pair"
        ...     def read(self, spec, scratch, root): return GraphSource.from_arrays(2, [[0], [1]])
        >>> read_source("pair", layout=Pair).nodes["node"].count
        2
    """

    names: ClassVar[tuple[str, ...]] = ()
    paths: ClassVar[str] = ""
    about: ClassVar[str] = ""
    unpacked: ClassVar[str] = ""
    is_whole: ClassVar[bool] = False

    @abstractmethod
    def matches(self, spec: str) -> bool:
        """Return True if a SOURCE argument names a graph in this layout.

        Args:
            spec: the argument: a name, or the path of a file or folder, which may not exist.
        """

    @abstractmethod
    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read a graph; what partitioning takes of its arrays it reads in pieces.

        Args:
            spec: an argument that `matches`.
            scratch: where what cannot be mapped is unpacked.
            root: folder of data sets that are named rather than given as paths (`--root`).

        Raises:
            FileNotFoundError: a file of the layout is missing.
            ValueError, TypeError: a file has wrong content; the message names it.
        """

    def read_undirected(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read a graph with the reverse of every edge added; arguments as of `read`."""
        return symmetrized(self.read(spec, scratch, root), scratch)

    def form(self) -> str:
        """Return how a SOURCE argument of this layout is written, for lists of layouts."""
        return ", ".join([*self.names, *([self.paths] if self.paths else [])])
