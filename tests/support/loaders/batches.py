"""Comparison of batches, wherever their tensors are."""

import torch
from torch_geometric.data import HeteroData


def flat(batch):
    """{(store, attribute): value} of a batch, tensors on the CPU."""
    stores = batch.stores if isinstance(batch, HeteroData) else [batch._store]
    return {
        (getattr(store, "_key", None), name): value.cpu() if torch.is_tensor(value) else value
        for store in stores
        for name, value in store.items()
    }


def assert_same(one, other):
    """Two batches have the same attributes, in the same order, of the same dtypes and values."""
    a, b = flat(one), flat(other)
    assert list(a) == list(b)
    for key, value in a.items():
        if torch.is_tensor(value):
            assert value.dtype == b[key].dtype, key
            assert torch.equal(value, b[key]), key
        else:
            assert value == b[key], key
