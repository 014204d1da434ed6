"""The structure of a folder on disk: the same batches as from mapped files, in every process."""

import itertools
import os

import numpy as np
import pytest

from khop.data.direct_rows import DirectRows, DiskOptions
from khop.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from khop.errors import RowStoreError
from khop.loader import NeighborLoader
from khop.partition import RandomPartitioner
from khop.sampler.drawing import disk_rows
from khop.storage.folder import PartitionFolder
from khop.storage.part import Part
from support import recorded
from support.cluster import jobs, twins
from support.recorded import cases

SEEDS = jobs.seeds_of_rank(0)
COMMON = {"batch_size": 16, "seed": 3}


@pytest.fixture
def on_disk(monkeypatch):
    """All datasets that are loaded have their structure on disk."""
    load = DistDataset.load

    def load_on_disk(self, *arguments, **options):
        return load(self, *arguments, structure_on_disk=True, disk_memory="32MB", **options)

    monkeypatch.setattr(DistDataset, "load", load_on_disk)


def changed(mode, twin_root, step=1):
    """Names of recorded cases whose batches are others, of every `step`-th case."""
    expected, found = recorded.read(mode), {}
    with twins.quiet():
        for name, loader in itertools.islice(cases.MODES[mode](twin_root), 0, None, step):
            found[f"{mode}: {name}"] = recorded.summary(loader)
            if hasattr(loader, "shutdown"):
                loader.shutdown()
    assert found
    return [name for name in found if found[name] != expected[name]]


@pytest.mark.parametrize("mode", ["folders", "samplers", "graph-servers"])
def test_batches_are_those_recorded(mode, twin_root, on_disk):
    assert changed(mode, twin_root) == []


def test_methods_draw_what_was_recorded(twin_root, on_disk):
    assert changed("collocated", twin_root, step=9) == []


@pytest.mark.parametrize("entries", [1, 40])
def test_rows_are_read_in_pieces(twin_root, on_disk, monkeypatch, entries):
    """Rows that are longer than a piece are drawn from the mapped file."""
    monkeypatch.setattr(disk_rows, "_ENTRIES", entries)
    assert changed("collocated", twin_root, step=13) == []


def loaded(root, num_parts=1, **options):
    return DistDataset().load(
        root, 0, also_serve=range(1, num_parts), structure_on_disk=True, **options
    )


def loader_of(dataset, workers=None):
    return DistNeighborLoader(
        dataset,
        jobs.FANOUTS,
        SEEDS,
        with_edge=True,
        worker_options=workers or CollocatedDistSamplingWorkerOptions(),
        **COMMON,
    )


@pytest.mark.parametrize("num_workers", [None, 2])
def test_statistics_count_values_of_edges(graph, folder_of, num_workers):
    workers = num_workers and MpDistSamplingWorkerOptions(num_workers=num_workers)
    ours = loader_of(loaded(folder_of("random", 1), disk_memory="16MB"), workers)
    theirs = NeighborLoader(graph, jobs.FANOUTS, SEEDS, **COMMON)
    assert jobs.same_batches(ours, theirs, ("n_id", "edge_index")) > 5
    stats = ours.stats()
    # Neighbours and ids of edges.
    assert stats.disk["edge_values"] == 2 * stats.edges
    assert stats.disk["edge_values_missed"] >= stats.disk["reads"] > 0
    assert stats.disk["asked"] == 0
    assert "values of edges asked for" in str(stats)
    ours.shutdown()


def test_second_epoch_reads_nothing_if_all_fits(folder_of):
    loader = loader_of(loaded(folder_of("random", 1), disk_memory="64MB"))
    for _ in loader:
        pass
    read = loader.stats().disk["reads"]
    for _ in loader:
        pass
    assert loader.stats().disk["reads"] == read
    loader.shutdown()


def test_parts_divide_the_memory(folder_of):
    dataset = loaded(folder_of("random", 2), 2, features_on_disk=["x"], disk_memory="64MB")
    part = Part(dataset.opened, 0, others=[1])
    stores = []
    for some in (part, part.others[1]):
        stores += [some.node_feature(0, "x"), *some.columns(0).values()]
        stores.append(some.edge_feature(0, "edge_id"))
    assert all(isinstance(store, DirectRows) for store in stores)
    memory = sum(store.options.cache_memory for store in stores)
    assert 0.99 * (64 << 20) < memory <= 64 << 20


def test_options_reach_other_processes():
    options = options_of_structure()
    assert DiskOptions.from_json(list(options)) == options
    assert options.among(2).structure
    assert options.without_cache().structure


def options_of_structure():
    return DiskOptions.of([("x", 512)], False, 1 << 20, True)


@pytest.fixture
def own_folder(graph, tmp_path):
    RandomPartitioner.from_data(graph, tmp_path / "parts", 1).partition()
    return tmp_path / "parts"


def indices_of(root):
    return next(root.rglob("indices.npy"))


def test_file_that_is_cut_while_in_use_fails_the_batch(own_folder):
    loader = loader_of(loaded(own_folder))
    iterator = iter(loader)
    os.truncate(indices_of(own_folder), 128)
    with pytest.raises(RowStoreError, match="ends before its rows"):
        for _ in iterator:
            pass
    loader.shutdown()


def test_neighbours_that_do_not_exist_are_refused(own_folder):
    """By the same check as those of mapped files."""
    file = indices_of(own_folder)
    array = np.load(file, mmap_mode="r+")
    array[:] = 1 << 30
    array.flush()
    for structure_on_disk in (False, True):
        dataset = DistDataset().load(own_folder, structure_on_disk=structure_on_disk)
        loader = loader_of(dataset)
        with pytest.raises((IndexError, RuntimeError), match="1073741824"):
            next(iter(loader))
        loader.shutdown()


def test_links_out_of_the_folder_are_not_followed(own_folder, tmp_path):
    file = indices_of(own_folder)
    file.rename(tmp_path / "elsewhere.npy")
    file.symlink_to(tmp_path / "elsewhere.npy")
    part = Part(PartitionFolder(own_folder).attach([], options_of_structure()), 0)
    with pytest.raises(Exception, match="indices"):
        part.columns(0)
