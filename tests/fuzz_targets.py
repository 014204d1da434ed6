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

import fuzz_codec
import fuzz_messages
import fuzz_partitions
import fuzz_remote

TARGETS: dict[str, Callable[[Path], Callable[[Random], None]]] = {
    "wire": fuzz_messages.wire,
    "block": fuzz_messages.block,
    "handler": fuzz_partitions.handler,
    "replies": fuzz_partitions.replies,
    "layout": fuzz_messages.layout,
    "ring": fuzz_messages.ring,
    "control": fuzz_messages.control,
    "meta": fuzz_partitions.meta,
    "npy": fuzz_partitions.npy,
    "keys": fuzz_messages.keys,
    "folder": fuzz_partitions.folder,
    "graph": fuzz_remote.graph,
    "directory": fuzz_remote.directory,
    "session": fuzz_remote.session,
    "incoming": fuzz_remote.incoming,
    "client": fuzz_remote.client,
    "plane": fuzz_remote.plane,
    "codec": fuzz_codec.codec_target,
}
"""Name -> makes what is called with a random generator once an input."""
