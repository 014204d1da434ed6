"""What pictures show: bars, lines and points that are counted, not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import khop
from khop import plot
from khop.loader import NeighborLoader
from khop.metrics.loader_stats import LoaderStats

pytest.importorskip("matplotlib").use("Agg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ring of 40 nodes in two parts, cut by hotness."""
    ids = torch.arange(40)
    data = Data(x=ids[:, None].float(), edge_index=torch.stack([ids, (ids + 1) % 40]))
    root = tmp_path_factory.mktemp("plot") / "parts"
    khop.partition_graph(data, root, 2, method="frequency", num_neighbors=[2, 2], batch_size=4)
    return root


def test_balance_has_a_bar_for_each_part_and_kind(folder):
    axes = plot.balance(folder)
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([1.0] * 4)


def test_edges_between_parts_are_shares_of_rows(folder):
    axes = plot.edges_between_parts(folder)
    shares = np.asarray(axes.images[0].get_array())
    assert shares.shape == (2, 2)
    assert shares.sum(axis=1) == pytest.approx([1.0, 1.0])


def test_degrees_of_a_ring_are_one(folder):
    axes = plot.degrees(folder)
    assert [list(line.get_xdata()) for line in axes.lines] == [[1], [1]]


def test_cache_curve_falls(folder):
    lines = plot.cache_curve(folder).lines
    assert len(lines) >= 2
    for line in lines[:2]:
        assert (np.diff(line.get_ydata()) <= 1e-9).all()


def test_whole_folder_is_written(folder, tmp_path):
    figure = plot.folder(folder, tmp_path / "f.svg")
    assert len(figure.axes) == 5  # with the colour bar
    assert (tmp_path / "f.svg").read_bytes().startswith(b"<?xml")


def test_time_has_a_bar_for_each_phase_that_took_time():
    stats = LoaderStats(batches=3, num_samplers=2)
    stats.trainer_seconds.update(waiting=3.0, consuming=1.0)
    stats.sampler_seconds.update(sampling=2.0)
    axes = plot.time(stats)
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([0.75, 0.25, 1.0])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["trainer: waiting 75%", "trainer: consuming 25%", "2 samplers: sampling 100%"]
    assert plot.time(LoaderStats()).texts[0].get_text() == "no batch has been delivered"


def test_hotness_is_the_share_of_reads_hottest_first():
    axes = plot.hotness([1.0, 6.0, 3.0])
    assert axes.lines[0].get_ydata() == pytest.approx([0, 60, 90, 100])
    assert "cache" in axes.get_title() and "of no use" in axes.texts[0].get_text()
    with pytest.raises(ValueError, match="0 or more"):
        plot.hotness([1.0, -1.0])
    assert len(plot.hotness({"a": [1.0], "b": [2.0, 3.0], "c": []}).lines) == 3  # one is y = x


def test_batch_stands_in_rings_by_hop():
    ids = torch.arange(1, 7)
    star = Data(edge_index=torch.stack([ids, torch.tensor([0, 0, 0, 1, 2, 3])]), num_nodes=7)
    batch = next(iter(NeighborLoader(star, [3, 3], input_nodes=torch.tensor([0]))))
    axes = plot.batch(batch)
    points = axes.collections[1].get_offsets()
    assert np.linalg.norm(points, axis=1) == pytest.approx([0, 1, 1, 1, 2, 2, 2])
    assert len(axes.collections[0].get_segments()) == 6
    assert axes.get_title() == "1 seeds, hop 1: 3, hop 2: 3"


def test_heterogeneous_batch_has_a_colour_for_each_type():
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 4
    ring = torch.stack([torch.arange(4), (torch.arange(4) + 1) % 4])
    data["a", "to", "b"].edge_index = data["b", "to", "a"].edge_index = ring
    batch = next(iter(NeighborLoader(data, [1, 1], input_nodes="a", batch_size=2)))
    axes = plot.batch(batch)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "seeds"]
    assert len(axes.collections[0].get_segments()) == 4


def test_batches_that_cannot_be_drawn_say_why():
    with pytest.raises(ValueError, match="does not count its nodes by hop"):
        plot.batch(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=0))
    large = Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_sampled_nodes=[5001])
    with pytest.raises(ValueError, match="at most 5,000"):
        plot.batch(large)


BACKEND = """
import matplotlib
from matplotlib.backends.backend_agg import FigureCanvas  # of pyplot's figures
matplotlib.interactive(True)
"""


@pytest.mark.parametrize(
    "draw",
    [
        "plot.hotness([8.0, 1.0, 0.0])",
        "plot.folder(sys.argv[1])",
        "plot.folder(sys.argv[1]); plot.hotness([1.0, 0.0])",
    ],
)
def test_what_a_backend_sets_when_it_is_loaded_stays(folder, tmp_path, draw):
    """Notebooks have such a backend: without it no later picture would be shown, khop's or not."""
    (tmp_path / "lazy_backend.py").write_text(BACKEND)
    code = (
        "import sys, matplotlib\nfrom khop import plot\n"
        f"before = matplotlib.rcParams['font.size']\n{draw}\n"
        "import matplotlib.pyplot as plt\nplt.figure()\n"
        "print(matplotlib.is_interactive(), matplotlib.rcParams['font.size'] == before)"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(khop.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", "import sys\nsys.modules['torch'] = None\n" + code, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "MPLBACKEND": "module://lazy_backend"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True True\n", done.stderr
