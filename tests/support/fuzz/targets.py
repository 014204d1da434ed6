"""What reads what others wrote, each with inputs that are right, to be damaged.

A target is made of a partition folder and called with a `random.Random`: it makes an input and
reads it. An input may be refused by the exceptions that stand for refusal, or be accepted, and then
what was read must hold together. Any other exception is a finding, as are crashes, and memory or
time above a limit, which the caller (`scripts/fuzz`) sees to.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from support.fuzz import codec, distdgl, messages, partitions, remote

TARGETS: dict[str, Callable[[Path], Callable[[Random], None]]] = {
    "wire": messages.wire,
    "shared": messages.shared,
    "handler": partitions.handler,
    "replies": partitions.replies,
    "layout": messages.layout,
    "ring": messages.ring,
    "control": messages.control,
    "meta": partitions.meta,
    "npy": partitions.npy,
    "keys": messages.keys,
    "folder": partitions.folder,
    "distdgl": distdgl.folder,
    "graph": remote.graph,
    "directory": remote.directory,
    "session": remote.session,
    "incoming": remote.incoming,
    "client": remote.client,
    "plane": remote.plane,
    "codec": codec.codec_target,
}
"""Name -> makes what is called with a random generator once an input."""
