"""Graphs and partition folders for benchmarks, made once and kept in a cache.

    CACHE/v1/products-scale0.05/           edge_index.npy x.npy y.npy train_mask.npy
    CACHE/v1/products-scale0.05-parts2/    a partition folder

A name says all that its content depends on. Whoever makes something holds a lock and works in a
folder beside that is moved at the end: what is in the cache is complete, and what a killed run left
is removed by the next.
"""

from __future__ import annotations

import fcntl
import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from khop.data import Feature
from khop.datasets import DebianPackages, PowerLaw, PowerLawHetero
from khop.partition import RandomPartitioner
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.typing import EDGE, NODE, Array

_FORMAT = "v1"  # another where what is made for a name changes
_TIMES = 10_000

Say = Callable[[str], None]


class Graphs:
    """The graphs of a scale.

    Args:
        cache: where they are kept; made if need be.
        scale: their size; 1 is that of ogbn-products.
        say: called with a line when something has to be made.
    """

    def __init__(self, cache: Path, scale: float, say: Say = print) -> None:
        self.cache = cache
        self.scale = scale
        self._say = say

    def at(self, scale: float) -> Graphs:
        """Those of another scale."""
        return Graphs(self.cache, scale, self._say)

    def products(self, with_features: bool = True) -> Data:
        """The products-shaped graph in memory.

        Args:
            with_features: with `x` and `y`; else with edges and the training mask alone.
        """
        names = ["x", "y"] if with_features else []
        folder = self._products_folder()
        edge_index = torch.from_numpy(_read(folder / "edge_index.npy", np.int64))
        mask = torch.from_numpy(_read(folder / "train_mask.npy"))
        data = Data(edge_index=edge_index, num_nodes=len(mask), train_mask=mask)
        for name in names:
            data[name] = torch.from_numpy(_read(folder / f"{name}.npy"))
        return data

    def products_parts(self, num_parts: int) -> Path:
        """Its partition folder."""

        def make(folder: Path) -> None:
            source = _mapped_source(self._products_folder())
            RandomPartitioner.from_data(source, folder, num_parts).partition()

        return self._cached(f"products-scale{self.scale:g}-parts{num_parts}", make)

    def academic(self) -> HeteroData:
        """The heterogeneous graph, edges alone, in memory."""
        graph = PowerLawHetero.academic(self.scale)
        folder = self._cached(f"academic-scale{self.scale:g}", graph.write)
        data = HeteroData()
        for node_type, count in graph.num_nodes.items():
            data[node_type].num_nodes = count
        for edge_type in graph.edge_types:
            pair = _read(folder / graph.file_name(edge_type), np.int64)
            data[edge_type].edge_index = torch.from_numpy(pair)
        return data

    @functools.cached_property
    def debian(self) -> Data:
        """The bundled graph of Debian's packages, with the reverse of every edge."""
        return DebianPackages(undirected=True)[0]

    def debian_parts(self) -> Path:
        """Its partition folder, of one part."""

        def make(folder: Path) -> None:
            RandomPartitioner.from_data(self.debian, folder, 1).partition()

        return self._cached("debian-parts1", make)

    def _products_folder(self) -> Path:
        graph = PowerLaw.products(self.scale)
        return self._cached(f"products-scale{self.scale:g}", graph.write)

    def _cached(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder of a name, made if it is not there."""
        root = self.cache / _FORMAT
        folder = root / name
        if folder.is_dir():
            return folder
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f".{name}.lock"):
            if not folder.is_dir():  # nobody else has made it meanwhile
                self._say(f"making {folder}")
                workshop = root / f".{name}.unfinished"
                shutil.rmtree(workshop, ignore_errors=True)
                workshop.mkdir()
                try:
                    make(workshop / name)
                    (workshop / name).replace(folder)
                finally:
                    shutil.rmtree(workshop, ignore_errors=True)
        return folder


def edge_weights(num_edges: int) -> torch.Tensor:
    """Log-normal weights, float32 [num_edges]; as skewed as counts of clicks are."""
    return torch.empty(num_edges).log_normal_(0, 2, generator=_generator(0))


def node_times(num_nodes: int) -> torch.Tensor:
    """Times of nodes, int64 [num_nodes], uniform."""
    return torch.randint(0, _TIMES, (num_nodes,), generator=_generator(1))


class SeedOrder:
    """Batches of seeds: every run, case and peer has the same.

    Args:
        seeds: the seeds.
        batch_size: seeds in a batch; all seeds, if there are fewer.
    """

    def __init__(self, seeds: torch.Tensor, batch_size: int) -> None:
        self.batch_size = min(batch_size, len(seeds))
        shuffled = seeds[torch.randperm(len(seeds), generator=_generator(2))]
        count = len(seeds) // self.batch_size
        self._batches = shuffled[: count * self.batch_size].view(count, self.batch_size)

    def of_turn(self, turn: int, count: int) -> list[tuple[int, torch.Tensor]]:
        """The batches of a turn, with their numbers; the next turn has the next ones."""
        numbers = range(turn * count, (turn + 1) * count)
        return [(number, self._batches[number % len(self._batches)]) for number in numbers]

    def epoch(self, count: int) -> torch.Tensor:
        """Seeds of `count` batches, one batch after the other, as loaders take them."""
        return torch.cat([batch for _, batch in self.of_turn(0, count)])


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _read(file: Path, dtype: type[np.generic] | None = None) -> Array:
    """An array in memory of this process, as a user's data is."""
    array: Array = np.load(file, allow_pickle=False)
    return array if dtype is None else array.astype(dtype, copy=False)


def _mapped_source(folder: Path) -> GraphSource:
    """A graph that `PowerLaw.write` wrote, mapped."""
    mapped = {
        file.stem: np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        for file in sorted(folder.glob("*.npy"))
    }
    src, dst = mapped.pop("edge_index")
    attrs = {name: Feature(array) for name, array in mapped.items()}
    count = len(mapped["train_mask"])
    return GraphSource({NODE: NodeSource(count, attrs)}, {EDGE: EdgeSource(src, dst)})


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Holds a lock that ends with the process."""
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
