"""`khop.partition_graph(...)`: a graph cut in one call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import khop
from khop.distributed import DistDataset
from khop.partition import PartitionerBase, PartitionFolder, partition_graph, verify_folder


@pytest.fixture
def ring():
    ids = torch.arange(40)
    return Data(x=ids[:, None].float(), edge_index=torch.stack([ids, (ids + 1) % 40]))


def test_the_package_can_be_called(ring, tmp_path):
    summary = khop.partition_graph(ring, tmp_path / "parts", num_parts=4)
    assert summary.nodes == [10, 10, 10, 10]
    assert verify_folder(tmp_path / "parts") == []
    assert khop.partition.RandomPartitioner.__name__ == "RandomPartitioner"


def test_frequency_has_defaults_and_options(ring, tmp_path):
    khop.partition_graph(ring, tmp_path / "a", 2, method="frequency")
    method = PartitionFolder(tmp_path / "a").meta.method
    assert (method["num_neighbors"], method["batch_size"]) == ([15, 10, 5], 1024)
    options = {"num_neighbors": [2], "batch_size": 8, "cache_ratio": 0.1}
    summary = khop.partition_graph(
        ring, tmp_path / "b", 2, method="frequency", edge_dir="out", **options
    )
    assert summary.edge_dir == "out"
    assert all(0 < cached <= 4 for cached in summary.cached)


def test_method_may_be_ones_own(ring, tmp_path):
    class Halves(PartitionerBase):
        def assign_nodes(self, node_type):
            return (np.arange(40) >= 20).astype(np.int32)

    assert khop.partition_graph(
        ring, tmp_path / "parts", 2, method=Halves
    ).edge_cut == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_parts": 0}, "num_parts must be at least 1"),
        ({"num_parts": 41}, "more than the graph's 40 nodes"),
        ({"num_parts": 10_000}, "more than 4096"),
        ({"method": "metys"}, "no method 'metys': did you mean 'metis'.*or name package:Class"),
        ({"cache_ratio": 0.1}, "cache_ratio needs method='frequency'"),
        ({"edge_dir": "both"}, "edge_dir must be 'in' or 'out'"),
    ],
)
def test_options_that_do_not_fit_are_errors(ring, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        partition_graph(ring, tmp_path / "parts", **{"num_parts": 2, **options})
    assert not (tmp_path / "parts").exists()


def test_tables_of_folder_and_dataset(ring, tmp_path):
    """Names in a folder are not trusted: they are escaped in notebooks."""
    ring["<b>"] = torch.zeros(40)
    summary = khop.partition_graph(ring, tmp_path / "parts", 2)
    assert "40; 20 to 20 per part" in str(summary)
    assert "<td" in summary._repr_html_()
    dataset = DistDataset.from_folder(tmp_path / "parts", 1)
    assert repr(dataset).endswith("partition 1 of 2, 40 nodes, 40 edges)")
    table = dataset._repr_html_()
    assert "x [40, 1] float32" in table
    assert "&lt;b&gt;" in table
    assert "<b>'" not in table
    assert repr(DistDataset()) == "DistDataset()"
