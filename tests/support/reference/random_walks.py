"""Random walks in plain Python, one step and trial after the other. Nothing here uses khop."""

import itertools

from support.reference import oracle

PROGRAM_HOP, STEP, ACCEPT, STOP, TRIALS = 0xFFFFFFFC, 16, 17, 18, 16


def key_of(run_key, purpose, step=0, index=0, batch=0):
    """Return the key of the random numbers for a purpose of a program."""
    place = oracle.step_key(run_key, batch, PROGRAM_HOP, purpose)
    return oracle.step_key(place, 0, step, index)


def word_of(key, number):
    """Return the 64-bit random word of a walk or node."""
    low, high = itertools.islice(oracle.words(key, number), 2)
    return low | high << 32


def rows_of(edge_index):
    """Return {source: [(destination, edge), ...]} in the order of edges."""
    rows = {}
    for edge, (src, dst) in enumerate(edge_index.T.tolist()):
        rows.setdefault(src, []).append((dst, edge))
    return rows


def walk(relations, start, index, run_key, p=1, q=1, stops=None, batch=0, first_step=0):
    """Return nodes and edges of one walk.

    `relations` has the rows of each step, `stops` the chance of an end before each, times 2^32.
    """
    weights = 1 / p, 1, 1 / q
    back, near, far = (max(1, round(w / max(weights) * 2**32)) for w in weights)
    nodes, edges = [start], []

    def key(purpose, index=0):
        return key_of(run_key, purpose, first_step + len(edges), index, batch)

    for step, rows in enumerate(relations):
        row = rows.get(nodes[-1], [])
        if stops and stops[step] and word_of(key(STOP), index) >> 32 < stops[step]:
            break
        if not row:
            break

        def chance(entry, rows=rows):
            linked = any(dst == entry[0] for dst, _ in rows.get(nodes[-2], []))
            return back if entry[0] == nodes[-2] else near if linked else far

        biased = step > 0 and not back == near == far
        for trial in range(TRIALS if biased else 1):
            (place,) = oracle.picks(key(STEP, trial), nodes[-1], len(row), 1, True, index)
            if not biased or word_of(key(ACCEPT, trial), index) >> 32 < chance(row[place]):
                break
        else:
            sums = list(itertools.accumulate(map(chance, row)))
            drawn = word_of(key(ACCEPT, TRIALS), index) * sums[-1] >> 64
            place = next(i for i, end in enumerate(sums) if drawn < end)
        nodes.append(row[place][0])
        edges.append(row[place][1])
    ended = [-1] * (len(relations) - len(edges))
    return nodes + ended, edges + ended
