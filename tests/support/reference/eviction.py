"""Misses of caches without knowledge of the future, in plain Python."""

from collections import OrderedDict


def lru_misses(ids, capacity):
    """Misses of a cache that evicts the row whose last use is longest ago."""
    kept, misses = OrderedDict(), 0
    for row in ids:
        if row in kept:
            kept.move_to_end(row)
            continue
        misses += 1
        kept[row] = None
        if len(kept) > capacity:
            kept.popitem(last=False)
    return misses


def sieve_misses(ids, capacity):
    """Misses by SIEVE: a list from the oldest to the newest, and the row that the hand is at."""
    rows, used, hand, misses = [], {}, None, 0
    for row in ids:
        if row in used:
            used[row] = True
            continue
        misses += 1
        if len(rows) == capacity > 0:
            at = 0 if hand is None else rows.index(hand)
            while used[rows[at]]:
                used[rows[at]] = False
                at = (at + 1) % len(rows)
            hand = rows[at + 1] if at + 1 < len(rows) else None
            del used[rows.pop(at)]
        if capacity:
            rows.append(row)
            used[row] = False
    return misses
