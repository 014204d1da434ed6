"""Files that are mapped while they fit in memory, and read past the page cache if not."""

import logging

import pytest
import torch
from torch_geometric.data import Data

import khop
from khop.distributed import DistDataset
from khop.storage import disk_choice

NUM_NODES, NUM_EDGES = 1000, 5000
WIDE, WIDER = 64 * NUM_NODES, 512 * NUM_NODES  # bytes


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    torch.manual_seed(0)
    data = Data(
        edge_index=torch.randint(NUM_NODES, (2, NUM_EDGES)),
        wide=torch.rand(NUM_NODES, 16),
        wider=torch.rand(NUM_NODES, 128),
        y=torch.arange(NUM_NODES),
        num_nodes=NUM_NODES,
    )
    path = tmp_path_factory.mktemp("choice") / "parts"
    khop.partition_graph(data, path, 2)
    return path


def structure_bytes(root):
    """Of the files with an entry per edge."""
    names = ("indices.npy", "edge_id.npy")
    return sum(file.stat().st_size for name in names for file in root.rglob(name))


@pytest.fixture
def loaded(root, monkeypatch):
    """Returns loaded(bytes that fit, ...): what is read past the page cache."""

    def loaded(fits, **options):
        available = None if fits is None else -int(-fits // 0.8)
        monkeypatch.setattr(disk_choice, "available_memory", lambda: available)
        options.setdefault("features_on_disk", "auto")
        return DistDataset().load(root, 0, also_serve=[1], **options).opened.disk

    return loaded


def test_all_is_mapped_that_fits(root, loaded):
    everything = structure_bytes(root) + WIDE + WIDER
    assert loaded(everything + 8) is None
    assert loaded(None) is None
    assert loaded(everything - 8).names == ("wider",)
    assert loaded(structure_bytes(root) + WIDE - 8).names == ("wide", "wider")


def test_structure_is_first(root, loaded):
    few = structure_bytes(root) - 8
    assert not loaded(few).structure
    chosen = loaded(few, structure_on_disk="auto")
    assert chosen.structure
    # The memory that the structure does not fill is for attributes, the smallest first.
    assert chosen.names == (("wide", "wider") if few < WIDE else ("wider",))
    assert loaded(few + 16, structure_on_disk="auto", features_on_disk=False) is None
    assert loaded(1, structure_on_disk=True, features_on_disk=False).structure


def test_memory_is_half_of_what_is_left(root, loaded, monkeypatch):
    large = 1 << 30
    monkeypatch.setattr(disk_choice, "_bytes_of_structure", lambda *_: large)
    monkeypatch.setattr(disk_choice, "_LEAST_MEMORY", 1)
    mapped, fits = large + WIDE, large + WIDE + WIDER - 8
    assert abs(loaded(fits).cache_memory - (fits - mapped) // 2) <= 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert abs(loaded(fits).cache_memory - (fits - mapped) // 8) <= 2
    assert loaded(fits, disk_memory="3MB").cache_memory == 3 << 20
    assert loaded(fits, features_on_disk=["wide"]).cache_memory == 1 << 30
    monkeypatch.setattr(disk_choice, "_LEAST_MEMORY", 64 << 20)
    assert loaded(fits).cache_memory == 64 << 20


def test_the_log_has_the_choice(root, loaded, caplog):
    with caplog.at_level(logging.INFO, "khop"):
        loaded(structure_bytes(root) + WIDE)
    assert "wider read past the page cache" in caplog.text
    assert "memory is available" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "khop"):
        loaded(1 << 30)
    assert "all files of" in caplog.text
