"""Balanced assignment of items to parts of limited size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from khop.typing import Int64Array, IntArray

Scores = npt.NDArray[np.float64]


def even_sizes(count: int, num_parts: int) -> Int64Array:
    """Return [num_parts] int64 sizes that differ by at most one and sum up to `count`."""
    sizes = np.full(num_parts, count // num_parts, np.int64)
    sizes[: count % num_parts] += 1
    return sizes


def assign_balanced(scores: Scores, free: Int64Array) -> IntArray:
    """Assign items to parts by score, starting with the items that have most to lose.

    Every item prefers the part of the highest score among the parts that are not full. Items are
    assigned in descending order of the loss that their second-best part would be, until a part is
    full. Then the others choose again. Ties go in the order of columns, and to the first part.

    Args:
        scores: [num_parts, num_items] gain of each item in each part.
        free: [num_parts] most items of each part, together at least `num_items`.

    Returns:
        [num_items] int32, the part of each item.

    Raises:
        ValueError: the parts cannot hold all items.
    """
    count = scores.shape[1]
    if int(free.sum()) < count:
        raise ValueError(f"there is free for {int(free.sum())} of {count} items")
    owners = np.full(count, -1, np.int32)
    left = np.arange(count)
    open_parts = np.flatnonzero(free)
    while len(left):
        gains = scores[open_parts][:, left]
        best = open_parts[np.argmax(gains, axis=0)]
        order = np.argsort(-_loss_of_second(gains), kind="stable")
        taken, free = _admit(best[order], free)
        owners[left[order[:taken]]] = best[order[:taken]]
        keep = np.sort(order[taken:])
        indifferent = len(keep) and not np.any(gains[:, keep] != gains[:1, keep])
        left, open_parts = left[keep], np.flatnonzero(free)
        if indifferent:  # spares a round for every part that fills up
            owners[left] = np.repeat(np.arange(len(free)), free)[: len(left)]
            break
    return owners


def _loss_of_second(gains: Scores) -> Scores:
    second = max(0, len(gains) - 2)
    top = np.partition(gains, second, axis=0)
    loss: Scores = top[-1] - (top[second] if len(gains) > 1 else 0.0)
    return loss


def _admit(wishes: IntArray, free: Int64Array) -> tuple[int, Int64Array]:
    """Return how many wishes, in order, fit before a part overflows, and what is left free."""
    first_refused = len(wishes)
    for part in np.flatnonzero(np.bincount(wishes, minlength=len(free)) > free):
        positions = np.flatnonzero(wishes == part)
        first_refused = min(first_refused, int(positions[free[part]]))
    admitted = np.bincount(wishes[:first_refused], minlength=len(free))
    return first_refused, free - admitted
