"""Bytes that the sessions of a graph server may use to keep rows and to draw batches ahead.

Run by graph servers. Imports no torch.
"""

from __future__ import annotations

from typing import NamedTuple

from khop.tables import human_bytes

# Less is not worth its plan.
_LEAST_BYTES = 1 << 20
# Bytes of the batches that a sampler draws ahead, without rows: eight of 50,000 nodes. With a
# quarter of the cache's bytes instead, a cache of 4 MB missed 0.57 of the rows and not 0.43.
_AHEAD_BYTES = 64 << 20


class CacheGrant(NamedTuple):
    """Bytes that a session got, of all of its samplers together.

    Attributes:
        cache_bytes: bytes of caches.
        ahead_bytes: bytes of batches that are drawn ahead, without their rows.
        reason: reason in words why `cache_bytes` are fewer than requested. None if they are not.
    """

    cache_bytes: int = 0
    ahead_bytes: int = 0
    reason: str | None = None


class CacheBudget:
    """Bytes of all sessions of a server. A session gets at most half of what is left.

    So the first session cannot take all. Used by one thread.

    Args:
        limit: maximum number of bytes.
    """

    def __init__(self, limit: int = 4 << 30) -> None:
        self._limit = limit
        self._taken = 0

    def take(self, requested: int, num_samplers: int) -> CacheGrant:
        """Take bytes for caches: as many as requested, or what a session may have."""
        if not requested:
            return CacheGrant()
        allowed = (self._limit - self._taken) // 2
        most_ahead = num_samplers * _AHEAD_BYTES
        nbytes = min(requested + most_ahead, allowed if allowed >= _LEAST_BYTES else 0)
        self._taken += nbytes
        ahead = min(most_ahead, nbytes // 2)
        if nbytes - ahead >= requested:
            return CacheGrant(requested, nbytes - requested)
        return CacheGrant(
            nbytes - ahead,
            ahead,
            f"sessions have {human_bytes(self._taken)} of this graph server's "
            f"{human_bytes(self._limit)} for rows of other partitions (--cache-limit), of which "
            f"this one keeps {human_bytes(nbytes - ahead)} and not {human_bytes(requested)}",
        )

    def give_back(self, grant: CacheGrant) -> None:
        """Return the bytes of a session that has ended."""
        self._taken -= grant.cache_bytes + grant.ahead_bytes
