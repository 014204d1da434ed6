"""Graphs and partition folders for benchmarks, made once and kept in a cache.

    CACHE/v1/products-scale0.05/           edge_index.npy x.npy y.npy train_mask.npy
    CACHE/v1/products-scale0.05-parts2/    a partition folder

The name of an entry contains all that its content depends on. An entry is made under a lock, in a
temporary folder that is moved at the end, so that the cache holds complete entries only. What a
killed run left is removed by the next one that makes an entry.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from khop.data import Feature, RowStore
from khop.datasets import DebianPackages, PowerLaw, PowerLawHetero
from khop.partition import RandomPartitioner
from khop.partition.source import EdgeSource, GraphSource, NodeSource
from khop.typing import EDGE, NODE, Array

_FORMAT = "v1"  # changes whenever the content of a name does
_TIMES = 10_000

Say = Callable[[str], None]


class Graphs:
    """The graphs of a scale.

    Args:
        cache: folder of the cache, made if need be.
        scale: size of the graphs, 1 for ogbn-products's.
        print_line: called with a line when something has to be made.
    """

    def __init__(self, cache: Path, scale: float, print_line: Say = print) -> None:
        self.cache = cache
        self.scale = scale
        self._print_line = print_line

    def at(self, scale: float) -> Graphs:
        """Return the graphs of another scale, from the same cache."""
        return Graphs(self.cache, scale, self._print_line)

    def products(self, with_features: bool = True) -> Data:
        """Load the products-shaped graph.

        Args:
            with_features: load `x` and `y` beside edges and the training mask.
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
        """Return the folder of the products-shaped graph in this number of parts."""

        def make(folder: Path) -> None:
            source = _mapped_source(self._products_folder())
            RandomPartitioner.from_data(source, folder, num_parts).partition()

        return self._cached(f"products-scale{self.scale:g}-parts{num_parts}", make)

    def academic(self) -> HeteroData:
        """Load the heterogeneous graph of papers and authors, edges alone."""
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
        """Return the partition folder of `debian`, of one part."""

        def make(folder: Path) -> None:
            RandomPartitioner.from_data(self.debian, folder, 1).partition()

        return self._cached("debian-parts1", make)

    def _products_folder(self) -> Path:
        graph = PowerLaw.products(self.scale)
        return self._cached(f"products-scale{self.scale:g}", graph.write)

    def _cached(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the cache's folder of this name. If it is missing, `make` writes it."""
        root = self.cache / _FORMAT
        folder = root / name
        if folder.is_dir():
            return folder
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        with _locked(root / f".{name}.lock"):
            if not folder.is_dir():  # no other process has made it meanwhile
                self._print_line(f"making {folder}")
                workshop = root / f".{name}.unfinished"
                shutil.rmtree(workshop, ignore_errors=True)  # of the last holder of the lock
                workshop.mkdir()
                try:
                    make(workshop / name)
                    (workshop / name).replace(folder)
                finally:
                    shutil.rmtree(workshop, ignore_errors=True)
        return folder


def edge_weights(num_edges: int) -> torch.Tensor:
    """Draw log-normal weights, float32 [num_edges], as skewed as counts of clicks are."""
    return torch.empty(num_edges).log_normal_(0, 2, generator=_generator(0))


def node_times(num_nodes: int) -> torch.Tensor:
    """Draw times of nodes, int64 [num_nodes], uniform."""
    return torch.randint(0, _TIMES, (num_nodes,), generator=_generator(1))


class SeedOrder:
    """Batches of seeds, the same in every run, case and peer.

    Args:
        seeds: the seeds.
        batch_size: seeds in a batch. If there are fewer, all seeds.
    """

    def __init__(self, seeds: torch.Tensor, batch_size: int) -> None:
        self.batch_size = min(batch_size, len(seeds))
        shuffled = seeds[torch.randperm(len(seeds), generator=_generator(2))]
        count = len(seeds) // self.batch_size
        self._batches = shuffled[: count * self.batch_size].view(count, self.batch_size)

    def of_turn(self, turn: int, count: int) -> list[tuple[int, torch.Tensor]]:
        """Return (index, seeds) of the `count` batches of a turn. Turns follow one another."""
        numbers = range(turn * count, (turn + 1) * count)
        return [
            (batch_number, self._batches[batch_number % len(self._batches)])
            for batch_number in numbers
        ]

    def epoch(self, count: int) -> torch.Tensor:
        """Return the seeds of `count` batches, one batch after the other, as loaders take them."""
        return torch.cat([batch for _, batch in self.of_turn(0, count)])


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _read(file: Path, dtype: type[np.generic] | None = None) -> Array:
    """Read an array to memory of this process, as a user's data is."""
    array: Array = np.load(file, allow_pickle=False)
    return array if dtype is None else array.astype(dtype, copy=False)


def _mapped_source(folder: Path) -> GraphSource:
    """Map a graph that `PowerLaw.write` wrote."""
    mapped = {
        file.stem: np.load(file, mmap_mode="r", allow_pickle=False).view(np.ndarray)
        for file in sorted(folder.glob("*.npy"))
    }
    src, dst = mapped.pop("edge_index")
    attrs: dict[str, RowStore] = {n: Feature(array) for n, array in mapped.items()}
    count = len(mapped["train_mask"])
    return GraphSource({NODE: NodeSource(count, attrs)}, {EDGE: EdgeSource(src, dst)})


def _sweep(root: Path) -> None:
    """Remove unfinished folders of killed runs, whose lock is free."""
    for workshop in root.glob(".*.unfinished"):
        with workshop.with_suffix(".lock").open("w") as opened, contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(workshop, ignore_errors=True)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a file's lock in the block. It also ends with the process."""
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
