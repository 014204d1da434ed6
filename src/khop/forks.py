"""Check against forks that use threads, sockets or sampler processes of their parent.

A fork has its parent's memory but none of its threads, and shares its sockets. It would wait for
ever, or take replies that are for the parent. It gets an error instead. Any process; imports no
torch.
"""

from __future__ import annotations

import os


def check_process(owner: int, thing: str, advice: str) -> None:
    """Raise RuntimeError in a fork of the process that made a thing.

    Args:
        owner: id of the process that made it.
        thing: its name, for the message: 'loader'.
        advice: what to do in the fork.
    """
    process = os.getpid()
    if process != owner:
        raise RuntimeError(
            f"this {thing} belongs to process {owner}; this is process {process}, a fork of it: "
            f"{advice}"
        )
