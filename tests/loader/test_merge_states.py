"""States of single trainers become one."""

import pytest
import torch
from torch_geometric.data import Data

from khop.loader import NeighborLoader, merge_states


def states(*counts, **options):
    """Of as many trainers, after so many batches each."""
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4)
    for rank, count in enumerate(counts):
        loader = NeighborLoader(data, [2], stream=rank, seed=1, **options)
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        (entry,) = loader.state_dict().values()
        yield {f"rank-{rank}": entry}


def test_union_in_order():
    """Of any order; a state of several stays as it is, and may come again."""
    one, two, three = states(2, 0, 1)
    merged = merge_states([three, one, two, one])
    assert list(merged) == ["rank-0", "rank-1", "rank-2"]
    assert [entry["delivered"] for entry in merged.values()] == [2, 0, 1]
    assert merge_states([merged, merged]) == merged
    assert merge_states([]) == {}


def test_what_does_not_belong_together():
    one, two, three = states(2, 0, 1)
    with pytest.raises(ValueError, match=r"those of \['rank-0', 'rank-2'\]: .*all trainers"):
        merge_states([one, three])
    (later,) = states(3)
    with pytest.raises(ValueError, match=r"differ in 'rank-0': delivered is 2 and 3.*same step"):
        merge_states([one, two, later])
    _, other = states(0, 0, batch_size=2)
    with pytest.raises(ValueError, match=r"'rank-0' and 'rank-1' .* batch_size is 1 and 2"):
        merge_states([one, other])
    with pytest.raises(ValueError, match="no state of a loader"):
        merge_states([one, {"model": {}}])
    with pytest.raises(TypeError, match=r"state_dict\(\) returned \(got 'list'\)"):
        merge_states([[one]])
