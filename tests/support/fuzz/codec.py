"""Target of the fuzzer: every message that has a schema. `fuzz.targets` describes targets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from khop import codec
from khop.distributed.remote.messages import (
    Addresses,
    ClientEntry,
    HomeEdges,
    Published,
    RegisterClient,
    RegisterServer,
    ServerEntry,
    Table,
    WaitFor,
)
from khop.distributed.remote.session_messages import (
    Batch,
    Chunk,
    ErrorText,
    Failed,
    Open,
    SessionSpec,
)
from khop.distributed.rpc import protocol as wire
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError
from khop.sampler.link_spec import LinkSpec
from khop.sampler.requests import HopRequest
from khop.sampler.rows.collect import CollectSpec
from khop.sampler.spec import SamplingSpec
from support.fuzz.mutations import bytes_changed, json_changed

Run = Callable[[Random], None]


def codec_target(root: Path) -> Run:
    """Return a target for all messages with a schema: what is read is written back unchanged."""
    del root
    sampling = SamplingSpec(((3, 2), (-1, 0)), weighted=(True, False), reversals=((0, 1, True),))
    collect = CollectSpec([["x", "y"], []], [[], ["w"]], [True, False])
    pipeline = PipelineSpec(sampling, collect, 1, LinkSpec(mode="binary", excluded=((0, True),)))
    spec = SessionSpec(
        "s", "secret", "c", pipeline, 2, 1 << 16, 2, 4, [None, "cuda:0"], 1, 5.0, 1 << 16
    )
    addresses = Addresses("tcp://h:1", "ipc:///s")
    server = ServerEntry("i", [0, 2], addresses, "h", 7, 0.5)
    client = ClientEntry("i", "c", 7, 0.25, True)
    valid: list[Any] = [
        pipeline,
        Open(spec, [1, 2], ["src_weight"]),
        Table("d", 2, 3, 4, "f", {0: server, 1: server}, {2: client}, False, True),
        RegisterServer(0, "s", 2, 3, [0], addresses, "h", 7, "f", {1: "x"}),
        RegisterClient(2047, "s", 2, 0, "c", 7),
        WaitFor(0, "s", "n", [0, 1, 2], 9.5),
        Published([2, 0], [5, 9]),
        Batch("s", 1, 2, 2**64 - 1),
        Chunk("s", 1, 0, 64, 0, None),
        Failed("s", 1, ErrorText("ValueError", "no", "")),
        HomeEdges(0, 1, 2, 3, 4),
        wire.Sample(0, ["trees", "excluded"], HopRequest(-1, True, False, 2**63, last=True)),
        wire.Fetch("node", 0, ["x", "id"]),
    ]

    def run(random: Random) -> None:
        message = random.choice(valid)
        content = json.loads(json.dumps(codec.to_json(message)))
        assert codec.from_json(type(message), content, "it") == message
        for _ in range(random.choice((1, 1, 2, 3, 6))):
            content = json_changed(random, content)
        text = json.dumps(content).encode()
        if random.random() < 0.2:
            text = bytes_changed(random, text, [b"[" * 900, b'{"a":' * 900])
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            return
        try:
            read = codec.from_json(type(message), content, "it")
        except ProtocolError as error:
            assert len(str(error)) < 1000, error
            return
        # What was accepted is a message: it is written and read as itself.
        again = json.loads(json.dumps(codec.to_json(read)))
        assert codec.from_json(type(message), again, "it") == read

    return run
