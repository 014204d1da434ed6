"""Programs of trainers that load links. They run like `cluster.jobs`."""

import torch
from torch_geometric.sampler import NegativeSampling

from support.cluster import jobs, twins

NUM_LINKS = 91


def make_links():
    """Return the links of all trainers together."""
    generator = torch.Generator().manual_seed(8)
    return torch.randint(150, (2, NUM_LINKS), generator=generator)


def job_links_all(arguments):
    """Run `job_links` for each of several cases."""
    return [job_links(case) for case in arguments["cases"]]


def job_links(arguments):
    """Check that this trainer's links give the in-memory loader's batches. Return its own edges."""
    from khop.distributed import DistLinkNeighborLoader, link_split
    from khop.loader import LinkNeighborLoader

    context, dataset, options = jobs._load(arguments)
    links = make_links()
    share = link_split(links)
    ours = DistLinkNeighborLoader(
        dataset, [2], batch_size=8, edge_label_index=links[:, share], worker_options=options
    )
    num_batches = len(list(ours))
    data = twins.homogeneous()
    common = {
        "shuffle": True,
        "seed": 3,
        "neg_sampling": NegativeSampling("binary", 1.5, torch.arange(150), torch.arange(150)),
        "strict_negatives": True,
        "exclude_seed_edges": "reverse",
    }
    own_links = links[:, context.rank :: 2][:, :45]
    loader = DistLinkNeighborLoader(
        dataset,
        [3, -1],
        batch_size=8,
        edge_label_index=own_links,
        with_edge=True,
        collect_features=True,
        worker_options=options,
        **common,
    )
    twin = LinkNeighborLoader(data, [3, -1], own_links, batch_size=8, stream=context.rank, **common)
    twins.same_epochs(loader, twin, 2)
    edges = DistLinkNeighborLoader(dataset, [], batch_size=64, worker_options=options)
    seen = torch.cat([batch.n_id[batch.edge_label_index] for batch in edges], dim=1)
    assert torch.equal(seen, torch.from_numpy(dataset.owned_edges()))
    return {
        "share": share.tolist(),
        "batches": [num_batches, len(edges)],
        "home": seen.t().tolist(),
    }


if __name__ == "__main__":
    jobs.run(globals())
