"""Check against forks that use threads, sockets or sampler processes of their parent.

A fork has its parent's memory and sockets, but none of its threads. Without this check it would
wait for ever, or take replies to the parent. Any process, no torch.
"""

from __future__ import annotations

import os


def check_process(owner: int, thing: str, advice: str) -> None:
    """Raise RuntimeError in a fork of the process that made an object.

    Args:
        owner: id of the process that made the object.
        thing: name of the object in the message, as in 'loader'.
        advice: what the user should do in the fork.
    """
    process = os.getpid()
    if process != owner:
        raise RuntimeError(
            f"this {thing} belongs to process {owner}; this is process {process}, a fork of it: "
            f"{advice}"
        )
