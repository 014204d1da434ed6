"""All sampling options together on random graphs: what batches hold, and what could be drawn."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from khop.loader import NeighborLoader
from khop.sampler import NeighborSampler
from support.loaders import cases
from support.reference import walks

pytestmark = pytest.mark.filterwarnings("ignore:.* reverse:UserWarning")
SETTINGS = settings(max_examples=90, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(cases.cases(), st.integers(0, 2**32))
def test_batches(case, seed):
    """Directional batches are walks; induced and bidirectional ones of the same seed follow."""
    data, fanouts, seeds, times, options = case
    view = walks.View(data, options.get("time_attr"), options.get("weight_attr"))
    common = {
        "input_nodes": seeds,
        "input_time": None if times is None else torch.tensor(times),
        "batch_size": 6,
        "seed": seed,
        **options,
    }
    (drawn,) = NeighborLoader(data, fanouts, **common)
    out = walks.check(view, drawn, fanouts, seeds, times, **options)
    seed_type, ids = seeds if isinstance(seeds, tuple) else (None, seeds)
    (induced,) = NeighborLoader(data, fanouts, subgraph_type="induced", **common)
    walks.assert_nodes(view, induced, out, seed_type, len(ids), times)
    for t, edges in walks.induced(view, out).items():  # weights play no part in it
        store = walks.Stores(induced)(t)
        assert list(zip(*store.edge_index.tolist(), store.e_id.tolist(), strict=True)) == edges
        walks.assert_edge_attributes(view, induced, t)
    (both,) = NeighborLoader(data, fanouts, subgraph_type="bidirectional", **common)
    walks.assert_nodes(view, both, out, seed_type, len(ids), times)
    for t, edges in walks.bidirectional(view, out).items():
        assert list(zip(*walks.Stores(both)(t).edge_index.tolist(), strict=True)) == edges


@SETTINGS
@given(cases.cases(), st.integers(0, 2**32))
def test_backward_batches(case, seed):
    """The same along the edges; 'time' is then that of destinations."""
    data, fanouts, seeds, times, options = case
    view = walks.View(data, options.get("time_attr"), options.get("weight_attr"), backward=True)
    sampler = NeighborSampler(data, fanouts, sample_direction="backward", seed=seed, **options)
    loader = NeighborLoader(
        data,
        fanouts,
        seeds,
        None if times is None else torch.tensor(times),
        time_attr=options.get("time_attr"),
        neighbor_sampler=sampler,
        batch_size=6,
        seed=seed,
    )
    (drawn,) = loader
    walks.check(view, drawn, fanouts, seeds, times, **options)
