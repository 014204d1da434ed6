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
def test_all_neighbors_equal_pygs(data, num_workers):
    """Attribute for attribute, in the same order."""
    data.edge_weight = torch.rand(1600)
    arguments = (data, [-1, -1], torch.arange(0, 200, 3))
    ours = NeighborLoader(*arguments, batch_size=16, num_workers=num_workers)
    theirs = torch_geometric.loader.NeighborLoader(*arguments, batch_size=16)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert set(a.keys()) == set(b.keys())
        for name in b.keys():  # noqa: SIM118
            if isinstance(b[name], torch.Tensor):
                assert a[name].dtype == b[name].dtype
                assert torch.equal(a[name], b[name]), name
            else:
                assert a[name] == b[name], name


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


def test_pygs_sampler_in_our_loader(data, check_batch):
    sampler = torch_geometric.sampler.NeighborSampler(data, [3, 3])
    for batch in NeighborLoader(data, [3, 3], batch_size=50, neighbor_sampler=sampler):
        check_batch(data, batch)
