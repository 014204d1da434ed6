"""k-hop sampling, bit for bit against a plain-Python sampler, whole or merged from replies."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from khop import _native
from support.kernels import hop_calls
from support.reference import oracle
from support.reference.sampler import Sampled, sample_one_type

_WIDTHS = st.sampled_from([np.int32, np.int64])


@st.composite
def graphs(draw, max_nodes=12):
    """(indptr, indices) of a few rows; parallel edges, loops and empty rows included."""
    n = draw(st.integers(1, max_nodes))
    degrees = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    total = sum(degrees)
    indices = draw(st.lists(st.integers(0, n - 1), min_size=total, max_size=total))
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return indptr.astype(draw(_WIDTHS)), np.array(indices, draw(_WIDTHS))


@st.composite
def batches(draw):
    """A graph, seeds (duplicates likely, none possible), fan-outs, replace, run key, batch, ids."""
    indptr, indices = draw(graphs())
    n = len(indptr) - 1
    seeds = draw(st.lists(st.integers(0, n - 1), max_size=6))
    fanouts = draw(st.lists(st.integers(-1, 4), max_size=4))
    row_ids = draw(st.sampled_from([None, np.int32, np.int64]))
    if row_ids is not None:
        row_ids = np.random.default_rng(n).permutation(1000)[:n].astype(row_ids)
    run, batch = draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**40))
    return indptr, indices, seeds, fanouts, draw(st.booleans()), run, batch, row_ids


def sample(graph, num_nodes, seeds, fanouts, replace, run, batch, hop=None):
    """Runs the kernels as the engine does; `hop(subgraph, fanout, key)` replaces the local hop."""
    subgraph = _native.Subgraph([num_nodes], [(0, 0)], True)
    subgraph.begin()
    subgraph.add_seeds(0, np.array(seeds, np.int64))
    for number, fanout in enumerate(fanouts):
        key = _native.step_key(run, batch, number, 0)
        if hop is None:
            hop_calls.hop(subgraph, 0, graph, fanout, replace, key)
        else:
            hop(subgraph, fanout, key)
        subgraph.end_hop()
    return read(subgraph)


def read(subgraph):
    node = np.empty(subgraph.num_nodes(0), np.int64)
    row, col, edge = np.empty((3, subgraph.num_edges(0)), np.int64)
    subgraph.write_nodes(0, node)
    subgraph.write_edge_index(0, row, col)
    subgraph.write_edges(0, edge)
    arrays = (array.tolist() for array in (node, row, col, edge))
    return Sampled(*arrays, subgraph.nodes_per_hop(0), subgraph.edges_per_hop(0))


@settings(max_examples=400)
@given(batches())
def test_equals_the_reference(batch):
    indptr, indices, seeds, fanouts, replace, run, number, row_ids = batch
    graph = _native.Csr(indptr, indices, row_ids)
    n = len(indptr) - 1
    got = sample(graph, n, seeds, fanouts, replace, run, number)
    assert got == sample_one_type(indptr, indices, seeds, fanouts, replace, run, number, row_ids)
    # In an id space too wide for 32 bits nodes are numbered by another table, to the same end.
    assert sample(graph, 2**33, seeds, fanouts, replace, run, number) == got


@settings(max_examples=200)
@given(graphs(), st.data())
def test_all_neighbors_are_the_k_hop_neighborhood(graph, data):
    """At -1, nodes and edges are those that a walk along the edge list finds, hop by hop."""
    indptr, indices = graph
    n = len(indptr) - 1
    seeds = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=4))
    hops = data.draw(st.integers(0, 4))
    got = sample(_native.Csr(indptr, indices), n, seeds, [-1] * hops, False, 1, 2)
    edge_index = indices, np.repeat(np.arange(n), np.diff(indptr))
    nodes, edges, nodes_per_hop, edges_per_hop = oracle.full_neighborhood(edge_index, seeds, hops)
    assert got.node == nodes
    assert (got.nodes_per_hop, got.edges_per_hop) == (nodes_per_hop, edges_per_hop)
    ends = zip(got.row, got.col, got.edge, strict=True)
    assert [(nodes[r], nodes[c], e) for r, c, e in ends] == edges


@settings(max_examples=300)
@given(batches(), st.lists(st.integers(0, 12), max_size=4), _WIDTHS, st.integers(0, 2**34))
def test_owners_replies_merge_to_the_same(batch, cuts, widths, base):
    """Any cut into 1 to 5 ranges (also empty ones), anywhere in the id space: the same batch."""
    indptr, indices, seeds, fanouts, replace, run, number, row_ids = batch
    n = len(indptr) - 1
    ids = np.arange(n) if row_ids is None else row_ids
    whole = sample(_native.Csr(indptr, indices, ids), n, seeds, fanouts, replace, run, number)

    bounds = [0, *sorted(min(c, n) for c in cuts), n]
    moved = indices.astype(np.int64) + base
    if base + n < 2**31:
        moved = moved.astype(widths)
    parts = [
        _native.Csr(
            indptr[a : b + 1] - indptr[a],
            moved[indptr[a] : indptr[b]],
            ids[a:b],
            first_row=base + a,
            first_edge=int(indptr[a]),
        )
        for a, b in itertools.pairwise(bounds)
    ]

    def hop(subgraph, fanout, key):
        frontier = subgraph.frontier(0)[0]
        owners, grouped, _, at = _native.split_by_owner(frontier, [base + b for b in bounds])
        shares = [grouped[a:b] for a, b in itertools.pairwise(at)]
        replies = [
            hop_calls.sample_rows(part, share, fanout, replace, key, True)
            for part, share in zip(parts, shares, strict=True)
        ]
        subgraph.merge(0, owners, replies)

    seeds = [base + s for s in seeds]
    merged = sample(None, base + n, seeds, fanouts, replace, run, number, hop)
    merged.node = [v - base for v in merged.node]
    assert merged == whole


@pytest.mark.parametrize("base", [2**31, 2**32 - 3, 2**32, 2**33, 2**62])
def test_ids_beyond_32_bits(base):
    """A range of rows far out in a sparse id space: a ring of five nodes around `base`."""
    indptr = np.arange(6) * 2
    ring = np.array([[(i + 1) % 5, (i + 4) % 5] for i in range(5)]).ravel()
    graph = _native.Csr(indptr, ring + base, first_row=base, first_edge=2**40)
    got = sample(graph, base + 5, [base + 2, base, base + 2], [1, -1], False, 3, 4)
    want = sample_one_type(indptr, ring, [2, 0, 2], [1, -1], False, 3, 4, np.arange(5) + base)
    assert [v - base for v in got.node] == want.node
    assert [e - 2**40 for e in got.edge] == want.edge
    assert (got.row, got.col) == (want.row, want.col)


def test_ids_that_agree_in_their_lower_half_are_told_apart():
    """Ids 2^32 apart, of which a 32-bit table would make one."""
    columns = np.array([5, 5 + 2**32, 5 + 2**33, 5, 5 + 2**32])
    graph = _native.Csr(np.array([0, 5]), columns)
    got = sample(graph, 2**34, [0], [-1], False, 1, 1)
    assert got.node == [0, 5, 5 + 2**32, 5 + 2**33]
    assert got.row == [1, 2, 3, 1, 2]


def test_seeds():
    """No seeds; isolated seeds; duplicates keep their places, edges point to the first of them."""
    graph = _native.Csr(np.array([0, 0, 2, 2]), np.array([0, 2]))
    assert sample(graph, 3, [], [-1, 2], False, 1, 1) == Sampled(
        nodes_per_hop=[0, 0, 0], edges_per_hop=[0, 0]
    )
    assert sample(graph, 3, [0, 2], [3], True, 1, 1) == Sampled(
        node=[0, 2], nodes_per_hop=[2, 0], edges_per_hop=[0]
    )
    assert sample(graph, 3, [2, 1, 2, 1], [-1], False, 1, 1) == Sampled(
        node=[2, 1, 2, 1, 0],
        row=[4, 0, 4, 0],
        col=[1, 1, 3, 3],
        edge=[0, 1, 0, 1],
        nodes_per_hop=[4, 1],
        edges_per_hop=[4],
    )


def test_empty_graph():
    graph = _native.Csr(np.zeros(1, np.int64), np.empty(0, np.int64))
    assert sample(graph, 0, [], [5], False, 1, 1).node == []
    with pytest.raises(IndexError, match="node 0 is not one of the graph's rows"):
        sample(graph, 1, [0], [5], False, 1, 1)


def test_a_frontier_of_a_million():
    """A million rows of one edge each, to the next row; then the buffers serve a small batch."""
    n = 10**6
    graph = _native.Csr(np.arange(n + 1), np.roll(np.arange(n, dtype=np.int32), -1))
    subgraph = _native.Subgraph([n], [(0, 0)], True)
    seeds = np.random.default_rng(0).permutation(n)[: n // 2]
    subgraph.begin()
    subgraph.add_seeds(0, seeds)
    hop_calls.hop(subgraph, 0, graph, 3, False, 9)
    subgraph.end_hop()
    nodes = np.empty(subgraph.num_nodes(0), np.int64)
    subgraph.write_nodes(0, nodes)
    after = (seeds + 1) % n
    assert np.array_equal(nodes, np.concatenate([seeds, after[~np.isin(after, seeds)]]))
    row, col = np.empty((2, subgraph.num_edges(0)), np.int64)
    subgraph.write_edge_index(0, row, col)
    assert np.array_equal(nodes[row], (nodes[col] + 1) % n)
    assert np.array_equal(col, np.arange(len(seeds)))

    subgraph.begin()
    subgraph.add_seeds(0, np.array([7]))
    hop_calls.hop(subgraph, 0, graph, -1, False, 9)
    subgraph.end_hop()
    assert read(subgraph).node == [7, 8]


def test_draws_depend_on_the_original_id_alone():
    """Rows in another order under the same original ids draw the same."""
    rng = np.random.default_rng(3)
    degree, n = 40, 50
    neighbors = rng.integers(0, n, (n, degree))
    order = rng.permutation(n)
    indptr = np.arange(n + 1) * degree
    ids = np.arange(n)
    plain = _native.Csr(indptr, neighbors.ravel())
    moved = _native.Csr(indptr, neighbors[order].ravel(), order)
    _, a, _ = hop_calls.sample_rows(plain, ids, 7, False, 1, False)
    _, b, _ = hop_calls.sample_rows(moved, ids, 7, False, 1, False)
    assert np.array_equal(a.reshape(n, 7)[order], b.reshape(n, 7))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    "indptr",
    [[0, 5, 2, 4], [0, -3, 2, 4], [0, 4, 100, 4], [0, 2**31 - 1, 2, 4]],
    ids=["descending", "negative", "beyond", "far beyond"],
)
def test_corrupt_row_pointers(indptr, dtype):
    """Row pointers come from files: whatever they hold, an exception and no crash."""
    graph = _native.Csr(np.array(indptr, dtype), np.arange(4))
    for fanout in (-1, 2):
        with pytest.raises(RuntimeError, match="row pointers are corrupt: row"):
            hop_calls.sample_rows(graph, np.arange(3), fanout, False, 1, True)
        with pytest.raises(RuntimeError, match="row pointers are corrupt: row"):
            sample(graph, 4, [0, 1, 2], [fanout], False, 1, 1)
    with pytest.raises(RuntimeError, match="corrupt"):
        _native.accumulate_hotness(graph, np.ones(3), 2, False, np.zeros(4))


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        (([1, 4], [0] * 4), "must begin with 0"),
        (([0, 3], [0] * 4), "ends with 3 but there are 4"),
        (([], [0] * 4), "at least one entry"),
        (([0, 4], [0] * 4, [1, 2]), "an id for each of the 1 rows"),
    ],
)
def test_arrays_that_do_not_belong_together(arrays, error):
    with pytest.raises(ValueError, match=error):
        _native.Csr(*(np.array(a, np.int64) for a in arrays))


def test_seeds_and_columns_out_of_range():
    """A seed that is no row is named; so is a column that leads nowhere, when its turn comes."""
    graph = _native.Csr(np.array([0, 1, 2]), np.array([1, 77]), first_row=10)
    for seed in (9, 12, -1, 2**40):
        with pytest.raises(IndexError, match=f"node {seed} is not one .* rows 10 to 11"):
            sample(graph, 2**41, [seed], [1], False, 1, 1)
    with pytest.raises(IndexError, match="node 77 "):
        sample(graph, 100, [11], [1, 1], False, 1, 1)


def test_arguments_of_other_types_are_refused():
    """Nothing is converted silently: neither floats to ids nor a buffer that is to be filled."""
    graph = _native.Csr(np.array([0, 1]), np.array([0]))
    subgraph = _native.Subgraph([1], [(0, 0)], True)
    subgraph.begin()
    for wrong in (np.array([0.7]), np.zeros(1, np.int32), np.zeros((1, 1), np.int64)):
        with pytest.raises(TypeError):
            subgraph.add_seeds(0, wrong)
        with pytest.raises(TypeError):
            hop_calls.sample_rows(graph, wrong, 1, False, 1, False)
    subgraph.add_seeds(0, np.zeros(4, np.int64))
    for wrong in (np.zeros(4, np.int32), np.zeros(8, np.int64)[::2]):
        with pytest.raises(TypeError):
            subgraph.write_nodes(0, wrong)
    with pytest.raises(ValueError, match="must hold 4 entries"):
        subgraph.write_nodes(0, np.zeros(3, np.int64))
    with pytest.raises(TypeError):
        _native.Csr(np.array([0.0, 1.0]), np.array([0]))


@pytest.mark.parametrize(
    ("owners", "counts", "neighbors", "edges"),
    [
        ([1, 0], [1, 1], [0, 1], [0, 1]),  # an owner that sent nothing
        ([-1, 0], [1, 1], [0, 1], [0, 1]),
        ([0, 0], [1], [0], [0]),  # too few rows
        ([0, 0], [1, 1, 1], [0, 1, 0], [0, 1, 2]),  # too many
        ([0, 0], [1, 2], [0, 1], [0, 1]),  # counts beyond the neighbours
        ([0, 0], [-1, 3], [0, 1], [0, 1]),
        ([0, 0], [1, 1], [0, 1, 1], [0, 1, 2]),  # neighbours beyond the counts
        ([0, 0], [1, 1], [0, 1], [0]),  # an edge is missing
        ([0], [1], [0], [0]),  # owners of another frontier
    ],
)
def test_replies_that_do_not_fit(owners, counts, neighbors, edges):
    """What came over a network is checked before it is used."""
    subgraph = _native.Subgraph([2], [(0, 0)], True)
    subgraph.begin()
    subgraph.add_seeds(0, np.array([0, 1]))
    reply = np.array(counts, np.int32), np.array(neighbors), np.array(edges)
    with pytest.raises(ValueError):
        subgraph.merge(0, np.array(owners, np.int32), [reply])


def test_no_such_type():
    subgraph = _native.Subgraph([1], [(0, 0)], False)
    for call in (subgraph.num_nodes, subgraph.num_edges, subgraph.frontier):
        with pytest.raises(IndexError, match="no such"):
            call(1)
    with pytest.raises(ValueError, match="node type that does not exist"):
        _native.Subgraph([1], [(0, 1)], False)
