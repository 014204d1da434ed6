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


def assign_balanced(scores: Scores, room: Int64Array) -> IntArray:
    """Assign items to parts by score, starting with those that have most to lose.

    Every item prefers the part of the highest score among those with room. Items are assigned in
    the order of their loss if they got the second-best part instead, until a part is full; then
    the others choose again. Ties go in the order of columns, and to the first part.

    Args:
        scores: [num_parts, num_items] gain of each item in each part.
        room: [num_parts] number of items that each part takes; at least `num_items` together.

    Returns:
        [num_items] int32, the part of each item.

    Raises:
        ValueError: the parts have too little room for all items.
    """
    count = scores.shape[1]
    if int(room.sum()) < count:
        raise ValueError(f"there is room for {int(room.sum())} of {count} items")
    owners = np.full(count, -1, np.int32)
    left = np.arange(count)
    open_parts = np.flatnonzero(room)
    while len(left):
        wanted = scores[open_parts][:, left]
        best = open_parts[np.argmax(wanted, axis=0)]
        order = np.argsort(-_loss_of_second(wanted), kind="stable")
        taken, room = _admit(best[order], room)
        owners[left[order[:taken]]] = best[order[:taken]]
        keep = np.sort(order[taken:])
        indifferent = len(keep) and not np.any(wanted[:, keep] != wanted[:1, keep])
        left, open_parts = left[keep], np.flatnonzero(room)
        if indifferent:  # spares a round for every part that fills up
            owners[left] = np.repeat(np.arange(len(room)), room)[: len(left)]
            break
    return owners


def _loss_of_second(wanted: Scores) -> Scores:
    second = max(0, len(wanted) - 2)
    top = np.partition(wanted, second, axis=0)
    loss: Scores = top[-1] - (top[second] if len(wanted) > 1 else 0.0)
    return loss


def _admit(wishes: IntArray, room: Int64Array) -> tuple[int, Int64Array]:
    """Return how many of the wishes, in order, fit before a part overflows, and the room left."""
    first_refused = len(wishes)
    for part in np.flatnonzero(np.bincount(wishes, minlength=len(room)) > room):
        places = np.flatnonzero(wishes == part)
        first_refused = min(first_refused, int(places[room[part]]))
    admitted = np.bincount(wishes[:first_refused], minlength=len(room))
    return first_refused, room - admitted
