"""Exact chances of successive sampling, and tests of what was drawn against them."""

import itertools
from collections import Counter

import numpy as np
from scipy import stats


def chances_of_sequences(weights, count):
    """{sequence: chance}: one draw after the other, each in proportion to what is left."""
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
    """Chance that `num_members` given positions are all drawn, for each such set."""
    found = {}
    for sequence, chance in chances.items():
        for members in itertools.combinations(sorted(sequence), num_members):
            found[members] = found.get(members, 0) + chance
    return found


def p_of_outcomes(outcomes, chances):
    """Chi-square test of a list of outcomes; those with few expected are taken together."""
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
    """A binomial test for each set of `num_members` positions: how often all were drawn."""
    inside = np.zeros((len(drawn), drawn.max() + 1), bool)
    np.put_along_axis(inside, drawn, True, axis=1)
    for members, chance in inclusion(chances, num_members).items():
        seen = int(inside[:, members].all(1).sum())
        if chance < 1 - 1e-12:
            yield stats.binomtest(seen, len(inside), chance).pvalue
        else:
            assert seen == len(inside)


def assert_true_hypotheses(ps):
    """No p is hopeless, and together they are spread as those of true hypotheses."""
    assert min(ps) > 1e-4 / max(1, len(ps) / 20)
    if len(ps) >= 8:
        assert stats.kstest(ps, "uniform").pvalue > 1e-3
