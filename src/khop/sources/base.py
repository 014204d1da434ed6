"""`Source`: base class of readers of graph files, one per way to store graphs. No torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from khop.partition.source import GraphSource
from khop.sources.scratch import Scratch
from khop.sources.symmetrized import symmetrized


class Source(ABC):
    """Base class of the readers of graph files, one for each layout that `read_source` knows.

    A layout is a way to store a graph in files. khop makes an instance without arguments. Users
    name layouts of their own by `khop partition --layout my_package:Layout` or
    `read_source(layout=)`. Installed packages offer layouts as entry points of the group
    `khop.sources`.

    Attributes:
        names: SOURCE arguments that are not paths, 'ogb:NAME' for example.
        paths: files or folders of this layout, 'FILE.npz' for example.
        about: description for lists of layouts, with code between backticks.
        unpacked: description of the content that is unpacked before it is read, or ''.
        is_whole: True if a file is read into memory as a whole, and must fit in `--memory`.

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
        """Return True if `spec` names a graph in this layout.

        Args:
            spec: the SOURCE argument of `khop partition`: a name, or the path of a file or folder,
                which need not exist.
        """

    @abstractmethod
    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read a graph. Partitioning reads its arrays in pieces.

        Args:
            spec: a SOURCE argument for which `matches` is True.
            scratch: temporary storage, in which files that cannot be mapped are unpacked.
            root: folder of the data sets that SOURCE names without a path (`--root`).

        Raises:
            FileNotFoundError: a file of the layout is missing.
            ValueError, TypeError: a file has wrong content. The message names the file.
        """

    def read_undirected(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read a graph and add the reverse of every edge. Arguments: see `read`."""
        return symmetrized(self.read(spec, scratch, root), scratch)

    def form(self) -> str:
        """Return the SOURCE arguments that this layout accepts, as text for lists of layouts."""
        return ", ".join([*self.names, *([self.paths] if self.paths else [])])
