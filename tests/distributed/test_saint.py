"""GraphSAINT and ShaDow over partitions: the batches of the in-memory loaders, bit for bit."""

import pytest
import torch

from khop.distributed import DistNeighborLoader, DistSubGraphLoader
from khop.loader import NeighborLoader, ShaDowKHopSampler
from khop.sampler import SaintEdges, SaintWalks
from support.cluster import twins

SEEDS = torch.tensor([*range(0, 60, 3), 149, 11])
COMMON = {"batch_size": 8, "seed": 7}
ALL = {"collect_features": True, "with_edge": True}


@pytest.mark.parametrize("method", [SaintWalks(3), SaintEdges()])
@pytest.mark.parametrize("strategy", ["by_dst", "by_src"])
def test_walks(twin_root, method, strategy):
    for num_parts in (1, 2, 3):
        root = twin_root("homogeneous", num_parts, "plain", strategy)
        with twins.open_dataset(root, num_parts) as dataset:
            ours = DistNeighborLoader(dataset, method, SEEDS, shuffle=True, **ALL, **COMMON)
            twin = twins.make_twin(
                NeighborLoader,
                twins.homogeneous(),
                method,
                SEEDS,
                strategy,
                shuffle=True,
                **COMMON,
            )
            batches = twins.same_epochs(ours, twin, 1, strategy)
            assert all(len(batch.n_id) > batch.batch_size for batch in batches)


def test_walks_go_on_after_a_stop(twin_root):
    """With another number of partitions, from the state of the loader in memory."""
    with twins.open_dataset(twin_root("homogeneous", 3), 3) as dataset:
        ours = DistNeighborLoader(dataset, SaintWalks(3), SEEDS, **ALL, **COMMON)
        twin = NeighborLoader(twins.homogeneous(), SaintWalks(3), SEEDS, **COMMON)
        stopped = iter(twin)
        next(stopped)
        ours.load_state_dict(twin.state_dict())
        for mine, other in zip(ours, stopped, strict=True):
            twins.same_batch(mine, other)


def test_shadow_is_a_disjoint_subgraph_loader(twin_root):
    """Each root's nodes and edges are `ShaDowKHopSampler`'s; nodes are in another order."""
    with twins.open_dataset(twin_root("homogeneous", 2), 2) as dataset:
        ours = DistSubGraphLoader(dataset, SEEDS, [3, 3], disjoint=True, **ALL, **COMMON)
        twin = ShaDowKHopSampler(twins.homogeneous(), 2, 3, SEEDS, **COMMON)
        for mine, other in zip(ours, twin, strict=True):
            for root in range(len(mine.input_id)):
                found = [
                    (
                        batch.n_id[batch.batch == root].sort().values.tolist(),
                        batch.e_id[batch.batch[batch.edge_index[1]] == root].sort().values.tolist(),
                    )
                    for batch in (mine, other)
                ]
                assert found[0] == found[1]
