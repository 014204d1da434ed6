"""Kinds of negatives, a heterogeneous graph, and a batch's ends, for tests of link loaders."""

import torch
from torch_geometric.data import HeteroData

NEGATIVES = [
    None,
    "binary",
    {"mode": "binary", "amount": 0.5},
    {"mode": "triplet", "amount": 1},
    {"mode": "triplet", "amount": 3},
]
USER, ITEM = 50, 30
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
KNOWS = ("user", "knows", "user")


def edge_set(edge_index):
    return set(zip(*edge_index.tolist(), strict=True))


def make_shop():
    """Return a graph of users, items without features, purchases both ways, and acquaintances."""
    generator = torch.Generator().manual_seed(0)

    def ends(*sizes, count):
        return torch.stack([torch.randint(n, (count,), generator=generator) for n in sizes])

    shop = HeteroData()
    shop["user"].x = torch.arange(USER).float().view(-1, 1)
    shop["item"].num_nodes = ITEM
    shop[BUYS].edge_index = ends(USER, ITEM, count=300)
    shop[BUYS].edge_attr = torch.arange(300)
    shop[BOUGHT].edge_index = shop[BUYS].edge_index.flip(0)
    shop[KNOWS].edge_index = ends(USER, USER, count=120)
    return shop


def ends_of(batch, link_type=None):
    """Return [2, n] ids of positive pairs and [2, m] of negative ones, for any negatives."""
    src = batch if link_type is None else batch[link_type[0]]
    dst = batch if link_type is None else batch[link_type[2]]
    links = batch if link_type is None else batch[link_type]
    count = len(links.input_id)
    if "edge_label_index" in links:
        places = links.edge_label_index
        pairs = torch.stack([src.n_id[places[0]], dst.n_id[places[1]]])
        return pairs[:, :count], pairs[:, count:]
    positive = torch.stack([src.n_id[src.src_index], dst.n_id[dst.dst_pos_index]])
    negative = dst.n_id[dst.dst_neg_index].view(count, -1)
    sources = positive[0].view(-1, 1).expand_as(negative)
    return positive, torch.stack([sources.reshape(-1), negative.reshape(-1)])


def are_same(a, b):
    """Return True if two batches, as dictionaries, are equal in every attribute."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(are_same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b
