"""Targets of the fuzzer: readers of data that other processes write, with valid inputs to damage.

A target is made of a partition folder and called with a `random.Random`. It makes an input and
reads it. It may refuse the input by the exceptions that stand for refusal, or accept it. Then the
result must be consistent. Any other exception is a finding, as are crashes. The caller
(`scripts/fuzz`) also limits memory and time.
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
