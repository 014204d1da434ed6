"""Exact chances of successive sampling, and statistical tests of draws against them."""

import itertools
from collections import Counter

import numpy as np
from scipy import stats


def chances_of_sequences(weights, count):
    """Return {sequence: chance} of draws, each in proportion to the weights that are left."""
    total, chances = sum(weights), {}
    drawable = [i for i, w in enumerate(weights) if w > 0]
    for sequence in itertools.permutations(drawable, min(count, len(drawable))):
        chance, left = 1.0, total
        for i in sequence:
            chance *= weights[i] / left
            left -= weights[i]
        chances[sequence] = chance
    return chances


def inclusion(chances, num_members):
    """Return the chance that all of a set of positions are drawn, for each set of `num_members`."""
    found = {}
    for sequence, chance in chances.items():
        for members in itertools.combinations(sorted(sequence), num_members):
            found[members] = found.get(members, 0) + chance
    return found


def p_of_outcomes(outcomes, chances):
    """Return p of a chi-square test of outcomes. Rare expected ones are counted together."""
    counts = Counter(outcomes)
    assert counts.keys() <= chances.keys()  # what has no chance does not come
    expected = np.array(list(chances.values())) * len(outcomes)
    seen = np.array([counts[outcome] for outcome in chances])
    rare = expected < 8
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(seen[~rare], seen[rare].sum())
    if len(seen) == 1:
        return 1.0
    return stats.chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1)


def ps_of_inclusion(drawn, chances, num_members):
    """Return p of a binomial test for each set of positions: how often all were drawn."""
    inside = np.zeros((len(drawn), drawn.max() + 1), bool)
    np.put_along_axis(inside, drawn, True, axis=1)
    for members, chance in inclusion(chances, num_members).items():
        seen = int(inside[:, members].all(1).sum())
        if chance < 1 - 1e-12:
            yield stats.binomtest(seen, len(inside), chance).pvalue
        else:
            assert seen == len(inside)


def assert_true_hypotheses(ps):
    """Check that no p is tiny, and that all together are spread as for true hypotheses."""
    assert min(ps) > 1e-4 / max(1, len(ps) / 20)
    if len(ps) >= 8:
        assert stats.kstest(ps, "uniform").pvalue > 1e-3
