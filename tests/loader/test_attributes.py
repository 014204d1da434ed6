"""Attributes of every kind arrive with their rows, as PyG's loaders hand them over."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader.utils import filter_data

from khop.loader import NeighborLoader

_WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "worker_type": "process"}]
_DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex64",
]  # fmt: skip


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("row_shape", [(), (1,), (7,), (2, 3)])
def test_dtypes_and_shapes(data, dtype, row_shape):
    """Node and edge attributes keep dtype and shape."""
    dtype = getattr(torch, dtype)
    data.x = (torch.randn(200, *row_shape) * 50).to(dtype)
    data.weight = None
    data.edge_attr = (torch.randn(1600, *row_shape) * 50).to(dtype)
    for batch in NeighborLoader(data, [4, 4], batch_size=64):
        assert batch.x.dtype == batch.edge_attr.dtype == dtype
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


def test_layouts(data):
    """Transposed, strided and expanded tensors; large ones too, which come from the pool."""
    base = torch.randn(600, 200)
    for x in (base.t(), base[:200, ::2], torch.randn(1, 4).expand(200, 4), torch.randn(200, 5000)):
        data.x = x
        for batch in NeighborLoader(data, [4], batch_size=100):
            assert torch.equal(batch.x, x[batch.n_id])


@pytest.mark.parametrize("workers", _WORKERS)
def test_memory_mapped_features(data, tmp_path, workers):
    """`np.memmap` in, tensors out."""
    values = np.random.default_rng(0).random((200, 32), dtype=np.float32)
    np.save(tmp_path / "x.npy", values)
    data.x = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(data.x, np.memmap)
    for batch in NeighborLoader(data, [4, 4], batch_size=64, **workers):
        assert isinstance(batch.x, torch.Tensor)
        assert np.array_equal(batch.x, values[batch.n_id])


def test_other_attributes_are_left_alone(data):
    """Neither of nodes nor of edges: kept as they are; the graph itself is not changed."""
    data.name, data.scale, data.classes = "graph", torch.tensor(3.0), torch.arange(17)
    before = data.to_dict()
    (batch,) = NeighborLoader(data, [2], batch_size=200)
    assert (batch.name, batch.scale) == ("graph", data.scale)
    assert torch.equal(batch.classes, data.classes)
    assert all(data[name] is value for name, value in before.items())
    assert set(batch.keys()) - set(before) == {
        "n_id", "e_id", "input_id", "batch_size", "num_sampled_nodes", "num_sampled_edges",
    }  # fmt: skip


def test_equals_pygs_own_join(data):
    """Attribute for attribute what PyG's `filter_data` makes of the same subgraph."""
    data.train_mask = torch.rand(200) < 0.5
    data.edge_weight = torch.rand(1600)
    data.num_nodes = 200
    for batch in NeighborLoader(data, [4, 4], batch_size=50):
        want = filter_data(data, batch.n_id, *batch.edge_index, batch.e_id)
        assert set(want.keys()) <= set(batch.keys())
        for name in want.keys():  # noqa: SIM118
            if isinstance(want[name], torch.Tensor):
                assert torch.equal(batch[name], want[name])
            else:
                assert batch[name] == want[name]


def test_ids_that_the_user_brought(data):
    """`n_id` and `e_id` of the data are node and edge attributes like others, as with PyG."""
    data.n_id, data.e_id = torch.arange(200) + 1000, torch.arange(1600) + 5000
    for batch in NeighborLoader(data, [4], batch_size=50):
        assert torch.equal(batch.n_id - 1000, batch.x[:, 0].long())
        assert torch.equal(batch.e_id - 5000, batch.edge_attr.view(-1).long())


def test_without_features(data):
    bare = Data(edge_index=data.edge_index, num_nodes=200)
    for batch in NeighborLoader(bare, [4], batch_size=50):
        assert "x" not in batch
        assert batch.num_nodes == len(batch.n_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_gradients_reach_learnable_features(data):
    """Features that require gradients are selected differentiably, as with PyG."""
    data.x = torch.nn.Parameter(torch.randn(200, 4))
    (batch,) = NeighborLoader(data, [2], torch.tensor([7, 3]), batch_size=2)
    batch.x.sum().backward()
    assert torch.equal(data.x.grad.sum(1) > 0, torch.isin(torch.arange(200), batch.n_id))


def test_int32_edges(data, check_batch):
    """Graphs with 32-bit edge lists; batches have 64-bit ones."""
    data.edge_index = data.edge_index.int()
    for batch in NeighborLoader(data, [3, 3], batch_size=50):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id].long())
        check_batch(data, batch)


def test_batches_do_not_share_memory(data):
    """Batches that are kept stay as they were while others are made in reused memory."""
    data.x = torch.arange(200.0).view(-1, 1).repeat(1, 3000)
    kept = list(NeighborLoader(data, [-1, -1], batch_size=50, num_workers=2))
    for _ in range(3):
        for batch in NeighborLoader(data, [-1, -1], batch_size=50, num_workers=2):
            batch.x.fill_(-1)
    assert all(torch.equal(b.x[:, 0].long(), b.n_id) for b in kept)


def test_transforms(data):
    """Applied to each batch, and to what the sampler returned before it is joined."""

    def only_seeds(out):
        out.row = out.col = out.edge = out.edge[:0]
        out.node = out.node[: len(out.metadata[0])]
        return out

    loader = NeighborLoader(
        data,
        [3],
        batch_size=60,
        transform=lambda batch: (batch, "changed"),
        transform_sampler_output=only_seeds,
    )
    for batch, word in loader:
        assert word == "changed"
        assert torch.equal(batch.n_id, batch.input_id)
        assert batch.num_edges == 0
    with pytest.raises(TypeError, match="invalid type"):
        next(iter(NeighborLoader(data, [3], transform_sampler_output=lambda out: 3)))


@pytest.mark.process
@pytest.mark.parametrize("filter_per_worker", [None, False, True])
def test_batches_are_equal_whether_workers_or_the_trainer_collate(
    data, check_batch, filter_per_worker
):
    """With worker processes: there or in the trainer; the batches are the same."""
    loader = NeighborLoader(
        data,
        [3, 3],
        batch_size=50,
        num_workers=2,
        worker_type="process",
        filter_per_worker=filter_per_worker,
        transform=lambda batch: batch,
    )
    for _ in range(2):
        for batch in loader:
            check_batch(data, batch)


@pytest.mark.parametrize("workers", _WORKERS)
def test_tensor_frames(data, workers):
    """TensorFrames of nodes and edges are cut to a batch's rows; those of the graph are kept."""
    torch_frame = pytest.importorskip("torch_frame")
    stype = torch_frame.stype

    def frame(num_rows):
        values = torch.arange(num_rows).float().view(-1, 1)
        return torch_frame.TensorFrame({stype.numerical: values}, {stype.numerical: ["id"]})

    data.tf, data.edge_tf, data.table = frame(200), frame(1600), frame(7)
    for batch in NeighborLoader(data, [4, 4], batch_size=64, **workers):
        assert isinstance(batch.tf, torch_frame.TensorFrame)
        assert torch.equal(batch.tf.feat_dict[stype.numerical].view(-1).long(), batch.n_id)
        assert torch.equal(batch.edge_tf.feat_dict[stype.numerical].view(-1).long(), batch.e_id)
        assert batch.table.num_rows == 7
