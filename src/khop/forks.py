"""What a fork must not use: threads, sockets and sampler processes of its parent. Imports no torch.

A fork has its parent's memory but none of its threads, and shares its sockets: it would wait for
ever, or take answers that are for the parent. It gets an error instead.
"""

from __future__ import annotations

import os


def check_process(owner: int, thing: str, advice: str) -> None:
    """Raises RuntimeError in a fork of the process that made a thing.

    Args:
        owner: id of the process that made it.
        thing: what it is, for the message: 'loader'.
        advice: what to do in the fork.
    """
    process = os.getpid()
    if process != owner:
        raise RuntimeError(
            f"this {thing} belongs to process {owner}; this is process {process}, a fork of it: "
            f"{advice}"
        )
