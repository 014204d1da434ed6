"""What every batch must hold, whatever loader made it."""

import pytest
import torch

from support.loaders import links


@pytest.fixture
def check_batch():
    """Returns check_batch(data, batch): each attribute belongs to its id, edges are the graph's."""

    def check(data, batch):
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert batch.edge_index.dtype == batch.n_id.dtype == batch.e_id.dtype == torch.int64
        assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.n_id)
        assert sum(batch.num_sampled_edges) == batch.num_edges
        assert batch.num_sampled_nodes[0] == batch.batch_size == len(batch.input_id)
        assert batch.batch is None
        assert "seed_time" not in batch

    return check


@pytest.fixture
def same_epochs():
    """Returns same_epochs(a, b): whether two lists of batches are equal in every attribute."""

    def same(a, b):
        return len(a) == len(b) and all(
            set(x.to_dict()) == set(y.to_dict())
            and all(
                torch.equal(value, y[name]) if isinstance(value, torch.Tensor) else value == y[name]
                for name, value in x.to_dict().items()
            )
            for x, y in zip(a, b, strict=True)
        )

    return same


@pytest.fixture
def shop():
    """Users, items without features, purchases in both directions, and users who know users."""
    return links.make_shop()
