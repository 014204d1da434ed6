"""PyG's own loader and sampler, where their kernels are installed, make the same of everything."""

import pytest
import torch
import torch_geometric.loader
import torch_geometric.sampler

from khop.loader import NeighborLoader


@pytest.fixture(autouse=True)
def kernels():
    """PyG needs one of these to sample; khop needs neither."""
    pytest.importorskip("torch_sparse")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_neighbors_of_sorted_edges_equal_pygs(data, num_workers):
    """Attribute for attribute, in the same order; torch-sparse leaves out the hop counts."""
    order = data.edge_index[1].sort(stable=True).indices
    data.edge_index = data.edge_index[:, order]
    data.edge_weight = torch.rand(1600)
    options = {"input_nodes": torch.arange(0, 200, 3), "batch_size": 16, "is_sorted": True}
    ours = NeighborLoader(data, [-1, -1], num_workers=num_workers, **options)
    theirs = torch_geometric.loader.NeighborLoader(data, [-1, -1], **options)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert set(a.keys()) == set(b.keys()) | {"num_sampled_nodes", "num_sampled_edges"}
        for name in b.keys():  # noqa: SIM118
            if isinstance(b[name], torch.Tensor):
                assert a[name].dtype == b[name].dtype
                assert torch.equal(a[name], b[name]), name
            else:
                assert a[name] == b[name], name


def test_all_neighbors_equal_pygs_but_for_order(data):
    """Unsorted edges PyG sorts by destination in no particular order among a node's own."""
    loaders = NeighborLoader, torch_geometric.loader.NeighborLoader
    for a, b in zip(*(loader(data, [-1, -1], batch_size=16) for loader in loaders), strict=True):
        assert torch.equal(a.input_id, b.n_id[: b.batch_size])
        assert torch.equal(a.n_id.sort()[0], b.n_id.sort()[0])
        for x, y in ((a, b), (b, a)):
            ends = x.n_id[x.edge_index][:, x.e_id.argsort()]
            assert torch.equal(ends, data.edge_index[:, y.e_id.sort()[0]])


@pytest.mark.parametrize("replace", [False, True])
def test_sizes_of_samples_agree(data, replace):
    """With sampling: as many nodes and edges a batch, on average, within five standard errors."""
    seeds = torch.arange(0, 200, 4)
    sizes = []
    for loader in (NeighborLoader, torch_geometric.loader.NeighborLoader):
        torch.manual_seed(1)
        made = loader(data, [3, 3], seeds, batch_size=50, replace=replace)
        sizes.append(
            torch.tensor(
                [[b.num_nodes, b.num_edges] for _ in range(300) for b in made], dtype=torch.float
            )
        )
    gap = (sizes[0].mean(0) - sizes[1].mean(0)).abs()
    spread = (sizes[0].var(0) + sizes[1].var(0)).div(300).sqrt()
    assert (gap <= 5 * spread + 1e-6).all()


def test_pygs_sampler_in_our_loader(data):
    """Draws by PyG, joined by PyG's rules (its edges count in the sampler's own order)."""
    sampler = torch_geometric.sampler.NeighborSampler(data, [3, 3])
    seeds = []
    for batch in NeighborLoader(data, [3, 3], batch_size=50, neighbor_sampler=sampler):
        seeds += batch.n_id[: batch.batch_size].tolist()
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        assert torch.equal(batch.edge_attr.view(-1).long(), batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert seeds == list(range(200))
