"""Debian's package graphs, which come with khop. Imports torch when it reads them."""

from __future__ import annotations

from pathlib import Path

from khop.partition.source import GraphSource
from khop.sources.base import Source
from khop.sources.scratch import Scratch


class Debian(Source):
    """Packages and their dependencies, of one type."""

    names = ("debian",)
    about = "the package graph of Debian 12 that comes with khop"

    def matches(self, spec: str) -> bool:
        """Return True for the data set's name."""
        return spec in self.names

    def read(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph from the package, or from the cache of `khop.datasets`."""
        return self._read(False)

    def read_undirected(self, spec: str, scratch: Scratch, root: Path) -> GraphSource:
        """Read the graph with the data set's own reverse edges."""
        return self._read(True)

    def _read(self, undirected: bool) -> GraphSource:
        from khop.datasets import DebianPackages

        return GraphSource.from_data(DebianPackages(undirected=undirected)[0])


class DebianHetero(Debian):
    """Packages, sources, maintainers and tags, with an edge type for each kind of relation."""

    names = ("debian-hetero",)
    about = (
        "the same with an edge type for each kind of relation, and with sources, maintainers and "
        "tags; `--undirected` adds reverses as edge types `rev_...`"
    )

    def _read(self, undirected: bool) -> GraphSource:
        from khop.datasets import DebianPackagesHetero

        return GraphSource.from_data(DebianPackagesHetero(undirected=undirected)[0])
