"""Data modules of `khop.lightning`, under Lightning's own trainer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import khop
from support.formats import fenced

pytest.importorskip("lightning")

JOB = Path(__file__).parents[1] / "support" / "lightning_job.py"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A ring of 40 nodes in two parts: 24 to train on, 8 to validate with, no test mask."""
    ids = torch.arange(40)
    data = Data(x=ids[:, None].float(), edge_index=torch.stack([ids, (ids + 1) % 40]))
    data.train_mask, data.val_mask = ids < 24, ids >= 32
    root = tmp_path_factory.mktemp("lightning") / "parts"
    khop.partition_graph(data, root, 2)
    return root


def fit(parts, out, kind, devices):
    """Returns what all trainers have seen in each stage."""
    done = subprocess.run(
        [sys.executable, JOB, str(parts), out, kind, str(devices)],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = [torch.load(Path(out, f"{rank}.pt")) for rank in range(devices)]
    return {stage: [s[stage] for s in seen] for stage in ("train", "val")}


@pytest.mark.parametrize("devices", [1, 2])
def test_every_seed_is_delivered_once_an_epoch(parts, tmp_path, devices):
    """`input_id` counts within a trainer's share."""
    seen = fit(parts, tmp_path, "nodes", devices)
    for stage, count in (("train", 24), ("val", 8)):
        share = range(count // devices)
        assert [sorted(own) for own in seen[stage]] == [sorted([*share, *share])] * devices


def test_lightning_divides_the_seeds_of_a_graph_in_memory(tmp_path):
    """It makes the loader anew with a `DistributedSampler`, as it does with PyG's."""
    ids = torch.arange(40)
    graph = Data(x=ids[:, None].float(), edge_index=torch.stack([ids, (ids + 1) % 40]))
    graph.train_mask, graph.val_mask = ids < 24, ids >= 32
    torch.save(graph, tmp_path / "graph.pt")
    seen = fit(None, tmp_path, "memory", 2)
    assert sorted(i for own in seen["train"] for i in own) == sorted([*range(24)] * 2)
    assert sorted(i for own in seen["val"] for i in own) == sorted([*range(32, 40)] * 2)
    assert [len(own) for own in seen["train"]] == [24, 24]


def test_links_are_divided_among_trainers(parts, tmp_path):
    seen = fit(parts, tmp_path, "links", 2)
    trained = sorted(pair for own in seen["train"] for pair in own)
    assert trained == sorted([[i, i + 1] for i in range(30)] * 2)
    assert [len(own) for own in seen["train"]] == [30, 30]
    validated = sorted(pair for own in seen["val"] for pair in own)
    assert validated == sorted([[i, (i + 1) % 40] for i in range(30, 40)] * 2)


def test_the_page_runs(tmp_path):
    """PyG's data module with khop's sampler, and khop's own, as on `docs/how-to/lightning.md`."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "lightning.md"
    program = tmp_path / "lightning_job.py"  # the name by which it is forked
    program.write_text("".join(block.source for block in fenced.blocks(page)))
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path,
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_clients_need_servers_first():
    from khop.lightning import PartitionedNodeData

    with pytest.raises(RuntimeError, match=r"call khop\.distributed\.init_client"):
        PartitionedNodeData(None, [2]).setup("fit")


def test_stages_that_do_not_exist_are_errors(parts):
    from khop.lightning import PartitionedLinkData

    with pytest.raises(ValueError, match="'train', 'val', 'test' or 'predict'"):
        PartitionedLinkData(parts, [2], {"training": torch.zeros(2, 1, dtype=torch.long)})
    with pytest.raises(ValueError, match="labels of 'val', which has no links"):
        PartitionedLinkData(parts, [2], {}, labels={"val": [1]})


@pytest.mark.parametrize("num_virtual_ranks", [None, 4])
def test_virtual_ranks_are_of_training_alone(parts, num_virtual_ranks):
    """The seeds of all trainers are divided by the loader; validation is as ever."""
    from khop.lightning import PartitionedLinkData, PartitionedNodeData

    options = {"batch_size": 2, "seed": 1, "num_virtual_ranks": num_virtual_ranks}
    nodes = PartitionedNodeData(parts, [2], **options)
    ids = torch.arange(40)
    links = {"train": torch.stack([ids[:12], ids[:12] + 1])}
    ends = PartitionedLinkData(parts, [2], links, labels={"train": ids[:12] + 5}, **options)
    for module in (nodes, ends):
        module.setup("fit")
    train = nodes.train_dataloader()
    assert sorted(i for b in train for i in b.input_id.tolist()) == [*range(24)]
    assert len(train.state_dict()) == (num_virtual_ranks or 1)
    assert len(nodes.val_dataloader().state_dict()) == 1
    for batch in ends.train_dataloader():
        sources = batch.n_id[batch.edge_label_index[0]]
        assert torch.equal(batch.edge_label, sources + 5)


def test_a_trainer_serves_the_partitions_that_are_nobodys_home(tmp_path):
    from khop.lightning.folders import open_share

    ids = torch.arange(40)
    khop.partition_graph(Data(edge_index=torch.stack([ids, ids]), num_nodes=40), tmp_path / "p", 4)
    assert [open_share(tmp_path / "p", rank, 3).parts for rank in range(3)] == [[0], [1], [2, 3]]
    assert [open_share(tmp_path / "p", rank, 8).parts for rank in range(8)] == [
        *([[0]] * 2), *([[1]] * 2), *([[2]] * 2), *([[3]] * 2),
    ]  # fmt: skip


class TestPygsDataModules:
    """`LightningNodeData` and `LightningLinkData`: PyG's arguments, and no `loader='custom'`."""

    GRAPH = Data(
        x=torch.arange(40.0)[:, None],
        edge_index=torch.stack([torch.arange(40), (torch.arange(40) + 1) % 40]),
        train_mask=torch.arange(40) < 24,
        val_mask=torch.arange(40) >= 32,
    )

    def test_nodes(self):
        """Masks are found; options go to the sampler and to loaders, and others to evaluation."""
        from khop.lightning import LightningNodeData

        nodes = LightningNodeData(
            self.GRAPH,
            num_neighbors=[2, 2],
            disjoint=True,
            batch_size=4,
            seed=1,
            eval_loader_kwargs={"num_neighbors": [1], "batch_size": 8},
        )
        batches = list(nodes.train_dataloader())
        assert sorted(i for batch in batches for i in batch.input_id.tolist()) == [*range(24)]
        for batch in batches:  # in a ring, a seed and the two before it
            assert torch.equal(batch.x[:, 0].long(), batch.n_id)
            assert (batch.num_nodes, batch.batch.max()) == (12, 3)
        (batch,) = nodes.val_dataloader()
        assert batch.input_id.tolist() == [*range(32, 40)]
        assert batch.n_id[:8].tolist() == [*range(32, 40)]
        assert (batch.num_nodes, nodes.test_dataloader) == (16, None)
        again, other = nodes.train_dataloader(), nodes.train_dataloader()
        for left, right in zip(again, other, strict=True):  # equal seeds, equal epochs
            assert torch.equal(left.n_id, right.n_id)
        assert again.stats().batches == 6

    def test_links(self):
        from khop.lightning import LightningLinkData

        links = LightningLinkData(
            self.GRAPH,
            self.GRAPH.edge_index[:, :30],
            input_val_edges=self.GRAPH.edge_index[:, 30:],
            loader="link_neighbor",
            num_neighbors=[1],
            batch_size=10,
            neg_sampling_ratio=1.0,
        )
        (batch,) = links.val_dataloader()
        assert batch.edge_label.tolist() == [1.0] * 10 + [0.0] * 10
        pairs = batch.n_id[batch.edge_label_index[:, :10]]
        assert torch.equal(pairs, self.GRAPH.edge_index[:, 30:])
        assert len(links.train_dataloader()) == 3

    def test_times_of_links(self):
        """Evaluation draws with the times of training, and another fan-out."""
        from khop.lightning import LightningLinkData

        graph = Data(edge_index=self.GRAPH.edge_index, time=torch.arange(40), num_nodes=40)
        links = LightningLinkData(
            graph,
            torch.tensor([[5, 20], [9, 30]]),
            input_train_time=torch.tensor([6, 25]),
            num_neighbors=[-1, -1],
            time_attr="time",
            batch_size=2,
            eval_loader_kwargs={"num_neighbors": [1]},
            input_val_edges=torch.tensor([[5], [9]]),
            input_val_time=torch.tensor([9]),
        )
        (batch,) = links.train_dataloader()
        times = batch.edge_label_time[batch.batch]
        drawn = batch.n_id[batch.edge_index[0]]
        assert (drawn <= times[batch.edge_index[0]]).all()
        (batch,) = links.val_dataloader()
        assert batch.n_id.tolist() == [5, 9, 4, 8]

    def test_samplers_and_loaders_of_others(self):
        """What has nothing to do with khop's sampler is left to PyG."""
        from khop.lightning import LightningNodeData
        from khop.sampler import NeighborSampler

        sampler = NeighborSampler(self.GRAPH, [1])
        given = LightningNodeData(self.GRAPH, node_sampler=sampler, batch_size=24)
        assert given.graph_sampler is sampler
        (batch,) = LightningNodeData(self.GRAPH, loader="full").train_dataloader()
        assert batch is self.GRAPH
        with pytest.raises(TypeError, match="num_neighbors is missing"):
            LightningNodeData(self.GRAPH, batch_size=4)
