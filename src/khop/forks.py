"""Check that a forked process does not use threads, sockets or samplers of its parent.

A fork has its parent's memory and sockets, but none of its threads. Without the check, the fork
would wait for ever, or receive replies that the parent waits for. Any process, no torch.
"""

from __future__ import annotations

import os


def check_process(owner: int, thing: str, advice: str) -> None:
    """Raise RuntimeError if an object is used in a fork of the process that made it.

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
