"""LABOR's program in memory: importance, Poisson draws, replacement, weights, times, trees."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy import special, stats
from torch_geometric.data import Data

from khop.loader import LinkNeighborLoader, NeighborLoader
from khop.sampler import Labor
from khop.sampler.methods.labor_draws import Layer
from khop.sampler.methods.normal import cos_of_turns, normal_cdf, normal_variates
from support.cluster import twins
from support.reference import labor, oracle

SEEDS = torch.tensor([3, 77, 12, 149, 5, 5])


def relations_of(data, node_types, edge_types, stores, weight_attr, time_attr):
    """The graph as the oracle takes it."""
    relations = []
    for (source, _, destination), store in zip(edge_types, stores, strict=True):
        rows = {}
        for e, (u, v) in enumerate(store.edge_index.T.tolist()):
            rows.setdefault(v, []).append((u, e))
        ends = node_types.index(source), node_types.index(destination)
        weights = store[weight_attr].double().tolist() if weight_attr in store else None
        times = store.get(time_attr, None)
        if time_attr == "time":  # the neighbours'
            times = times[store.edge_index[0]]
        relations.append(labor.Relation(*ends, rows, weights, None if times is None else times))
    return relations


def check(batches, data, fanouts, seeds_of, method, seed, disjoint=False, time_attr=None):
    """Asserts that batches are the oracle's.

    With replacement the oracle's numbers are sums of C's logarithms: weights are close to its.
    """
    is_typed = not isinstance(data, Data)
    node_types = data.node_types if is_typed else ["node"]
    edge_types = data.edge_types if is_typed else [("node", "to", "node")]
    stores = [data[t] for t in edge_types] if is_typed else [data]
    relations = relations_of(data, node_types, edge_types, stores, method.weight_attr, time_attr)
    for number, batch in enumerate(batches):
        run_key = oracle.run_key(seed, 0, 0)
        seeds = seeds_of(number)
        times = None if time_attr is None else data.time[seeds[0]].tolist()
        nodes, edges = labor.draw(
            relations, fanouts, seeds, method, run_key, number, disjoint, times
        )
        of_nodes = [batch[t] for t in node_types] if is_typed else [batch]
        of_edges = [batch[t] for t in edge_types] if is_typed else [batch]
        assert [s.n_id.tolist() for s in of_nodes] == [[i for _, i in n] for n in nodes]
        if disjoint:
            assert [s.batch.tolist() for s in of_nodes] == [[t for t, _ in n] for n in nodes]
        for store, drawn in zip(of_edges, edges, strict=True):
            assert store.e_id.tolist() == [e for _, _, e, _ in drawn]
            if method.edge_norm is not None:
                want = torch.tensor([w for *_, w in drawn], dtype=torch.float64).float()
                tolerance = 1e-5 if method.replace else 0.0
                torch.testing.assert_close(store.edge_norm, want, rtol=tolerance, atol=0.0)


METHODS = st.builds(
    labor.Method,
    importance=st.sampled_from([0, 1, 2, -1]),
    layer_dependency=st.booleans(),
    sequential=st.booleans(),
    edge_norm=st.sampled_from(["ht", "hajek"]),
    batch_dependency=st.sampled_from([1, 1, 0]),
    replace=st.just(False),
    weight_attr=st.sampled_from([None, "edge_weight"]),
) | st.builds(
    labor.Method,
    importance=st.just(0),
    layer_dependency=st.booleans(),
    sequential=st.just(True),
    edge_norm=st.sampled_from(["ht", "hajek"]),
    batch_dependency=st.sampled_from([1, 1, 0]),
    replace=st.just(True),
    weight_attr=st.sampled_from([None, "edge_weight"]),
)
FANOUTS = st.lists(st.integers(-1, 4), min_size=2, max_size=2)
SLOW = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(twins.homogeneous_graphs(), METHODS, FANOUTS, st.integers(0, 9))
def test_batches_are_the_oracles(data, method, fanouts, seed):
    """Isolated seeds, parallel edges, loops, fan-outs 0 and -1, zero weights; to the last bit."""
    del data.time, data.edge_time
    seeds = torch.arange(data.num_nodes)[:7]
    loader = NeighborLoader(
        data, Labor(fanouts, **method._asdict()), seeds, batch_size=4, seed=seed
    )
    check(loader, data, [fanouts], lambda b: [seeds[4 * b : 4 * b + 4].tolist()], method, seed)


@SLOW
@given(
    twins.homogeneous_graphs(),
    METHODS,
    st.lists(st.integers(-1, 3), min_size=2, max_size=2),
    st.sampled_from([None, "time", "edge_time"]),
)
def test_trees_and_times(data, method, fanouts, time_attr):
    """Subgraphs of seeds are independent, and what a seed must not see is left out first."""
    seeds = torch.arange(data.num_nodes)[:4].repeat(2)[:5]
    options = {"disjoint": True} if time_attr is None else {"time_attr": time_attr}
    if time_attr == "edge_time":  # seeds have a node's time, or one that they are given
        options["input_time"] = data.time[seeds].to(data.edge_time.dtype)
    made = Labor(fanouts, **method._asdict())
    loader = NeighborLoader(data, made, seeds, batch_size=5, seed=3, **options)
    check(loader, data, [fanouts], lambda _: [seeds.tolist()], method, 3, True, time_attr)


@pytest.mark.parametrize(
    "method",
    [
        labor.Method(2, edge_norm="ht"),
        labor.Method(1, False, False),
        labor.Method(1, edge_norm="ht", weight_attr="edge_weight"),
        labor.Method(edge_norm="hajek", replace=True, weight_attr="edge_weight"),
    ],
)
def test_edge_types_share_masses_and_numbers(method):
    data = twins.heterogeneous()
    fanouts = {t: [3, 2] for t in data.edge_types} | {twins.CITES: [0, 2], twins.WRITES: [2, -1]}
    loader = NeighborLoader(
        data, Labor(fanouts, **method._asdict()), ("paper", SEEDS[:4] % 120), batch_size=4, seed=2
    )
    seeds = [(SEEDS[:4] % 120).tolist(), [], [], []]
    check(loader, data, [fanouts[t] for t in data.edge_types], lambda _: seeds, method, 2)


def test_dependent_batches_are_the_oracles():
    """Of K = 3, over two changes of seeds; the oracle's normal variates are C's and SciPy's."""
    data, method = twins.homogeneous(), labor.Method(batch_dependency=3)
    made = Labor([3, 2], batch_dependency=3)
    loader = NeighborLoader(data, made, SEEDS.repeat(7)[:35], batch_size=5, seed=1)
    seeds = SEEDS.repeat(7)[:35].tolist()
    check(loader, data, [[3, 2]], lambda b: [seeds[5 * b : 5 * b + 5]], method, 1)


def layers(count=40, weighted=False):
    """Random layers: up to 12 rows with up to 9 of 15 neighbours."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        degrees = rng.integers(0, 10, rng.integers(1, 13)).astype(np.int32)
        neighbors = rng.integers(0, 15, degrees.sum())
        weights = [rng.random(degrees.sum()) ** 4 * 1e3 + 1e-9] if weighted else None
        yield Layer.of([(degrees, neighbors, None)], [int(rng.integers(1, 6))], weights)


@pytest.mark.parametrize("iterations", [0, 1, 3, -1])
def test_rows_have_the_variance_of_uniform_draws(iterations):
    """sum_t 1 / min(1, c_s pi_t) = d^2 / min(k, d), to 1e-12."""
    for layer in layers():
        chance = layer.chances(layer.masses(iterations))
        sums = np.bincount(layer.row, 1 / chance, len(layer.degree))
        target = layer.degree**2 / np.maximum(layer.fanout, 1)
        np.testing.assert_allclose(sums, target, rtol=1e-12)


@pytest.mark.parametrize("iterations", [1, 3, -1])
def test_weighted_rows_have_the_variance_of_uniform_draws(iterations):
    """sum_t A^2 / min(1, c_s pi_t) = d^2 / k - d^2 / d + sum_t A^2, A of the mean 1; 1e-9."""
    for layer in layers(weighted=True):
        chance = layer.chances(layer.masses(iterations))
        size, fanout = np.maximum(layer.degree, 1), np.maximum(layer.fanout, 1)
        totals = np.bincount(layer.row, layer.weight, len(layer.degree))
        mean = np.repeat(totals / size, layer.degree)
        square = (layer.weight / mean) ** 2
        sums = np.bincount(layer.row, square / chance, len(layer.degree))
        target = layer.degree**2 / fanout - layer.degree**2 / size
        target += np.bincount(layer.row, square, len(layer.degree))
        np.testing.assert_allclose(sums, target, rtol=1e-9)


def test_masses_stay_finite():
    """Of rows that take all and fan-outs beyond all degrees, after as many iterations as may be."""
    rows = [(np.array([2, 6], np.int32), np.array([0, 1, 0, 1, 2, 3, 4, 5]), None)]
    for weights in (None, [np.array([1e-300, 1e300, *range(1, 7)])]):
        layer = Layer.of([rows[0], rows[0]], [2**62, 1], weights and weights * 2)
        chance = layer.chances(layer.masses(100))
        assert ((chance > 0) & (chance <= 1)).all()


def test_iterations_expect_fewer_nodes():
    """The expected number of nodes, sum_t max_s min(1, c_s pi_t), never rises."""
    for layer in layers():
        expected = []
        for iterations in (0, 1, 2, 3, -1):
            highest = np.zeros(len(layer.nodes))
            np.maximum.at(highest, layer.node, layer.chances(layer.masses(iterations)))
            expected.append(highest.sum())
        assert (np.diff(expected) < 1e-9).all()


def star(degrees, hub_rows):
    """Rows 0 .. with private neighbours, and some that they share."""
    edges, fresh = [], len(degrees) + hub_rows
    for row, degree in enumerate(degrees):
        edges += [(len(degrees) + h, row) for h in range(hub_rows)]
        edges += [(fresh + i, row) for i in range(degree)]
        fresh += degree
    return Data(edge_index=torch.tensor(edges).T, num_nodes=fresh)


def drawn(data, method, rows, count, copies=1):
    """How often each edge is drawn, [count * copies, num_edges], and its weights.

    Each of `count` batches has the same seeds, of `copies` copies of the graph beside each other.
    """
    starts = torch.arange(copies).view(-1, 1) * data.num_nodes
    ends = (data.edge_index.unsqueeze(1) + starts).flatten(1)
    many = Data(edge_index=ends, num_nodes=data.num_nodes * copies)
    if "edge_weight" in data:
        many.edge_weight = data.edge_weight.repeat(copies)
    seeds = (torch.arange(rows) + starts).flatten().repeat(count)
    loader = NeighborLoader(many, method, seeds, batch_size=rows * copies, seed=4)
    inside = np.zeros((count, copies * data.num_edges))
    weights = np.zeros((count, copies * data.num_edges))
    for b, batch in enumerate(loader):
        np.add.at(inside[b], batch.e_id.numpy(), 1)
        np.add.at(weights[b], batch.e_id.numpy(), batch.edge_norm.numpy())
    return inside.reshape(-1, data.num_edges), weights.reshape(-1, data.num_edges)


@pytest.mark.parametrize("weight_attr", [None, "edge_weight"])
@pytest.mark.parametrize(
    "options",
    [
        *({"importance": i, "sequential": s} for i in (0, 2) for s in (True, False)),
        {"replace": True},
    ],
)
def test_sums_have_no_bias_and_hajek_keeps_counts(options, weight_attr):
    """Means of 'ht' sums of random values, a row each, lie within 4 standard errors."""
    data = star([6, 3, 1, 8], 3)
    data.edge_index = torch.cat([data.edge_index, data.edge_index[:, :2]], 1)  # parallel ones
    data.edge_weight = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(2)) * 5
    options = {**options, "weight_attr": weight_attr}
    factor = np.ones(data.num_edges) if weight_attr is None else data.edge_weight.numpy()
    _, weights = drawn(data, Labor([4], edge_norm="ht", **options), 4, 50, copies=20)
    values = np.random.default_rng(1).random(data.num_edges)
    for row in range(4):
        of_row = (data.edge_index[1] == row).numpy()
        sums = (weights * values)[:, of_row].sum(1)
        error = abs(sums.mean() - (factor * values)[of_row].sum())
        assert error <= 4 * sums.std() / len(sums) ** 0.5 + 1e-5
    inside, weights = drawn(data, Labor([4], edge_norm="hajek", **options), 4, 5, copies=10)
    for row in range(4):
        of_row = (data.edge_index[1] == row).numpy()
        np.testing.assert_allclose(weights[:, of_row].sum(1), inside[:, of_row].sum(1), rtol=1e-5)


def test_chances_of_poisson_draws():
    """Each edge comes as often as its weight says; shared neighbours come to rows together."""
    data, count = star([6, 3, 1, 8], 3), 1000
    method = Labor([4], importance=1, sequential=False, edge_norm="ht")
    inside, weights = drawn(data, method, 4, count // 20, copies=20)
    chance = 1 / weights.max(0)
    ps = [
        stats.binomtest(int(seen), count, p).pvalue
        for seen, p in zip(inside.sum(0), chance, strict=True)
        if p < 1 - 1e-6
    ]
    assert min(ps) > 1e-4 / len(ps)
    shared = np.flatnonzero(data.edge_index[0].numpy() == 4)
    for a, b in itertools.combinations(shared, 2):  # one number decides for both
        both, least = (inside[:, a] * inside[:, b]).sum(), min(chance[a], chance[b])
        assert both == min(inside[:, a].sum(), inside[:, b].sum())
        assert stats.binomtest(int(both), count, min(least, 1.0)).pvalue > 1e-4


@pytest.mark.parametrize("sequential", [True, False])
def test_uniform_draws_have_equal_chances(sequential):
    """A chi-square test of the edges of a row: k / d each, of K = 5, too."""
    data = star([9], 0)
    for period in (1, 5):
        method = Labor([3], sequential=sequential, batch_dependency=period, edge_norm="ht")
        inside, _ = drawn(data, method, 1, 50, copies=20)
        if sequential:
            assert (inside.sum(1) == 3).all()
        # At other distances batches are not independent.
        independent = inside.reshape(50, 20, 9)[::period].reshape(-1, 9)
        seen, expected = independent.sum(0), len(independent) / 3
        chi2 = ((seen - expected) ** 2 / (expected * 2 / 3)).sum()
        assert stats.chi2.sf(chi2, 9) > 1e-4


def test_replacement():
    """Exactly k edges a row, also of fewer; -1 takes each once; of one neighbour's, all alike."""
    data, count = star([6, 0, 1, 8], 0), 1000
    data.edge_weight = torch.ones(data.num_edges)
    data.edge_weight[:2] = 0.0
    inside, _ = drawn(data, Labor([4], replace=True, edge_norm="ht"), 4, count // 20, copies=20)
    rows = data.edge_index[1].numpy()
    for row, degree in enumerate([6, 0, 1, 8]):
        of_row = inside[:, rows == row]
        assert (of_row.sum(1) == (4 if degree else 0)).all()
        if degree > 1:  # each of its 4 d numbers is among the first four with the chance 1 / d
            assert of_row.max() > 1
            expected = 4 * count / degree
            variance = expected * (1 - 1 / degree) * (4 * degree - 4) / (4 * degree - 1)
            # Marginal counts are those of a hypergeometric distribution.
            chi2 = ((of_row.sum(0) - expected) ** 2).sum() / (variance * degree / (degree - 1))
            assert stats.chi2.sf(chi2, degree - 1) > 1e-4
    by_weight = Labor([-1], replace=True, edge_norm="ht", weight_attr="edge_weight")
    inside, _ = drawn(data, by_weight, 4, 2)
    assert (inside == (data.edge_weight > 0).numpy()).all()
    data.edge_weight[2] = 50.0
    by_weight = Labor([4], replace=True, edge_norm="ht", weight_attr="edge_weight")
    inside, _ = drawn(data, by_weight, 4, 10, copies=20)
    assert inside[:, 2].mean() > 3 > 1e-9 + inside[:, :2].max()


def test_rows_share_repeated_draws():
    """Rows with the same neighbours draw the same ones as often."""
    data = star([0, 0], 12)
    inside, _ = drawn(data, Labor([5], replace=True, edge_norm="ht"), 2, 5, copies=10)
    rows = data.edge_index[1].numpy()
    assert (inside[:, rows == 0] == inside[:, rows == 1]).all()


def test_batches_depend_on_those_before():
    """Overlap falls with distance, and with 0 the numbers stay."""
    data = star([200], 0)

    def overlaps(period, distances):
        method = Labor([50], batch_dependency=period, edge_norm="ht")
        inside, _ = drawn(data, method, 1, 64)
        return [(inside[:-d] * inside[d:]).sum(1).mean() / 50 for d in distances]

    near, middle, far = overlaps(16, (1, 8, 33))
    assert near > 0.85 > middle > 0.35 > far
    assert overlaps(1, (1,))[0] < 0.35
    assert overlaps(0, (1, 60)) == [1.0, 1.0]


def test_normal_variates():
    """Close to SciPy's functions; of random words a normal distribution."""
    words = np.random.default_rng(0).integers(0, 2**64, 20_000, np.uint64)
    z = normal_variates(words)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    extremes = normal_variates(np.array([0, 2**64 - 1, 2**32 - 1, 2**63], np.uint64))
    assert np.isfinite(extremes).all() and np.abs(extremes).max() < 6.8
    x = np.linspace(-12, 12, 2001)
    np.testing.assert_allclose(normal_cdf(x), special.ndtr(x), rtol=0, atol=1e-14)
    turns = np.linspace(0, 1, 2001)
    np.testing.assert_allclose(cos_of_turns(turns), np.cos(2 * np.pi * turns), rtol=0, atol=1e-15)
    u, v = (
        (words >> np.uint64(32)).astype(float) + 0.5,
        (words & np.uint64(2**32 - 1)).astype(float),
    )
    want = np.sqrt(-2 * np.log(u / 2**32)) * np.cos(2 * np.pi * v / 2**32)
    np.testing.assert_allclose(z, want, rtol=0, atol=1e-13)
    for part in (x[:1], x[777:780]):  # whatever is beside it
        assert (normal_cdf(part) == normal_cdf(x)[np.searchsorted(x, part)]).all()


def test_fewer_nodes():
    """Importance sampling saves nodes, and layer dependency more."""
    generator = torch.Generator().manual_seed(1)
    ends = (
        torch.rand(2, 40_000, generator=generator) ** torch.tensor([[2.0], [1.0]]) * 3000
    ).long()
    data = Data(edge_index=ends, num_nodes=3000)

    def nodes(**options):
        method = Labor([5, 5], **options)
        return sum(
            b.num_nodes
            for b in NeighborLoader(data, method, torch.arange(400), batch_size=100, seed=1)
        )

    for sequential in (True, False):
        counts = [nodes(importance=i, sequential=sequential) for i in (0, 1, -1)]
        assert counts == sorted(counts, reverse=True)
        apart = nodes(importance=1, sequential=sequential, layer_dependency=False)
        assert counts[1] < apart < 1.1 * counts[0]


def test_links_and_other_subgraphs():
    data = twins.homogeneous()
    links = LinkNeighborLoader(
        data,
        Labor([3, 2], importance=1),
        data.edge_index[:, :20],
        batch_size=10,
        neg_sampling="binary",
    )
    assert sum(batch.num_edges for batch in links) > 50
    (batch,) = NeighborLoader(
        data, Labor([3], importance=1), SEEDS[:5], batch_size=6, subgraph_type="induced"
    )
    pairs = Counter(map(tuple, batch.n_id[batch.edge_index].T.tolist()))
    kept = set(batch.n_id.tolist())
    assert pairs == Counter(
        (u, v) for u, v in data.edge_index.T.tolist() if u in kept and v in kept
    )


def test_options_that_do_not_go_together():
    data = twins.homogeneous()
    for options, error, match in (
        ({"importance": True}, TypeError, r"importance must be an integer \(got True\)"),
        ({"importance": -2}, ValueError, r"importance must be from -1 to 100.*\(got -2\)"),
        ({"batch_dependency": 1.5}, TypeError, "batch_dependency must be an integer"),
        ({"batch_dependency": -1}, ValueError, r"or 0 for the same numbers in all \(got -1\)"),
        ({"edge_norm": "mean"}, ValueError, r"'ht', 'hajek' or None \(got 'mean'\)"),
        ({"importance": 1, "replace": True}, ValueError, r"got importance=1, sequential=True"),
        ({"sequential": False, "replace": True}, ValueError, r"leave these out, or replace=True"),
    ):
        with pytest.raises(error, match=match):
            Labor([3], **options)
    for options, match in (
        ({"weight_attr": "missing"}, "is not an attribute of edges"),
        ({"time_attr": "time", "temporal_strategy": "last"}, "which takes the latest"),
        ({"subgraph_type": "induced"}, "with edge_norm makes 'directional' subgraphs"),
        ({"replace": True}, r"pass Labor\(..., replace=True\)"),
        ({"device": "emulated:5"}, "which a device does not run"),
    ):
        with pytest.raises(ValueError, match=match):
            NeighborLoader(data, Labor([3], edge_norm="ht"), SEEDS, **options)
