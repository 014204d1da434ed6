"""Targets of the fuzzer: messages between processes, and key files. See `fuzz.targets`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from khop.channel.arena import ArenaReader, create_memory
from khop.channel.control import BATCH, U64, ControlLine, Message, Op, socket_pair
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record, read_record
from khop.channel.message import pack, unpack
from khop.channel.shared import read_arrays, share
from khop.distributed.rpc.keys import ClientKeys, JobKeys, ServerKeys
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.sampling.process_handle import SamplerProcess
from khop.errors import ProtocolError, SecurityError
from khop.trace.requests import Answered, Segment, pack_records, unpack_records
from support.fuzz.mutations import bytes_changed, json_changed, text_changed

Run = Callable[[Random], None]
_DTYPES = ("int64", "int32", "float32", "bool", "uint8", "bfloat16")


def wire(root: Path) -> Run:
    """Return a target that reads the frames of a message."""
    del root
    arrays = [np.arange(5), np.zeros((2, 3), np.float32), np.array([True, False]), np.zeros(0)]
    valid = [[bytes(f) for f in pack({"op": "x", "id": 1}, arrays[:n])] for n in range(5)]
    headers = [json.loads(frames[0]) for frames in valid]
    others = [frame for frames in valid for frame in frames] + [b"[" * 500]

    def run(random: Random) -> None:
        which = random.randrange(len(valid))
        frames = list(valid[which])
        if random.random() < 0.7:
            frames[0] = text_changed(random, headers[which], others)
        while random.random() < 0.4:
            at = random.randrange(len(frames) + 1)
            if at == len(frames):
                frames.append(random.choice(others))
            elif random.random() < 0.2:
                del frames[at]
            else:
                frames[at] = bytes_changed(random, frames[at], others)
            if not frames:
                break
        try:
            _, read = unpack(frames)
        except ProtocolError:
            return
        assert sum(a.nbytes for a in read) == sum(map(len, frames[1:]))
        for array in read:
            array.tobytes()

    return run


def shared(root: Path) -> Run:
    """Return a target that reads memory of shared arrays."""
    del root
    valid = []
    for n in range(1, 4):
        dtypes = [name for name in _DTYPES if name != "bfloat16"][:n]
        descriptor = share({f"a{i}": np.ones((3, i + 1), d) for i, d in enumerate(dtypes)})
        valid.append(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        os.close(descriptor)
    headers = [json.loads(v[8 : 8 + int.from_bytes(v[:8], "little")]) for v in valid]

    def run(random: Random) -> None:
        which = random.randrange(len(valid))
        data = valid[which]
        if random.random() < 0.6:
            text = text_changed(random, headers[which], valid)
            rest = data[8 + int.from_bytes(data[:8], "little") :]
            data = len(text).to_bytes(8, "little") + text + rest
        else:
            data = bytes_changed(random, data, valid)
        raw = np.frombuffer(data, np.uint8)
        try:
            read = read_arrays(raw)
        except ProtocolError:
            return
        assert sum(a.nbytes for a in read.values()) <= len(raw)
        for array in read.values():
            array.tobytes()

    return run


def _layout() -> Layout:
    arrays = [
        ArrayLayout("e0.edge_index", "int64", (2, -1)),
        ArrayLayout("n0.x", "float32", (-2, 3)),
        ArrayLayout("n0.y", "bool", (-2,)),
        ArrayLayout("both", "uint8", (-1, 2, -2)),
        ArrayLayout("s.fixed", "bfloat16", (4,)),
    ]
    return Layout(3, arrays, [CounterLayout("batch", 1), CounterLayout("n0.hops", 3)])


def layout(root: Path) -> Run:
    """Return a target that reads a sampler's layouts, and batches with these layouts."""
    del root
    content = json.loads(json.dumps(_layout().to_json()))
    others = [b'"int64"', b"-1", b"[2, -1]"]

    def run(random: Random) -> None:
        try:
            made = Layout.from_json(json.loads(text_changed(random, content, others)))
            numbers = [random.choice((0, 1, 2, 5, 2**40)) for _ in range(made.num_numbers)]
            nbytes = random.choice((0, 64, 4096, 10**6))
            if made.head_bytes > 1 << 20:
                return
            head = bytearray(max(made.head_bytes, nbytes))
            Record(made, numbers[: made.num_sizes]).write_head(memoryview(head))
            for array in made.read(np.frombuffer(head, np.uint8)).arrays:
                assert array.nbytes <= len(head)
                array.tobytes()
        except (ProtocolError, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            return

    return run


def ring(root: Path) -> Run:
    """Return a target that reads the head of a batch in an arena, as a sampler wrote it."""
    del root
    described = _layout()
    record = Record(described, [5, 4])
    valid = bytearray(record.nbytes)
    for array in record.write(memoryview(valid)).values():
        array[...] = 0
    data, layouts = bytes(valid), {3: described}

    def run(random: Random) -> None:
        head = bytes_changed(random, data[: described.head_bytes], [data])
        raw = np.frombuffer(head + data[described.head_bytes :], np.uint8)
        try:
            received = read_record(raw, layouts)
        except ProtocolError:
            return
        for array in received.arrays:
            assert array.nbytes <= len(raw)
            array.tobytes()

    return run


class _NoProcess:
    line = None


def _receiving() -> Run:
    """Return a target that receives a control line's frames, some with payloads in descriptors."""
    raw, end = socket_pair()
    line = ControlLine(end)
    sealed = os.memfd_create("khop-fuzz", os.MFD_ALLOW_SEALING)
    os.write(sealed, b'{"a": 1}')
    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, 0xF)
    passed = [sealed, create_memory(8), os.open("/dev/null", os.O_RDWR)]
    valid = [bytes([op | large]) + U64.pack(8) for op in Op for large in (0, 0x80)]

    def run(random: Random) -> None:
        data = random.choice(valid)
        if random.random() < 0.7:
            data = bytes_changed(random, data, valid) or b"\0"
        before = sum(1 for _ in Path("/proc/self/fd").iterdir())
        socket.send_fds(raw, [data], random.choices(passed, k=random.choice([0, 1, 1, 2, 3, 12])))
        try:
            message = line.receive()
        except ProtocolError:
            pass
        else:
            assert message is not None
            message.close_descriptors()
        assert line.receive() is None
        assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before

    return run


def control(root: Path) -> Run:
    """Return a target that reads a sampler's messages on the control line."""
    del root
    receive = _receiving()
    described = _layout()
    record = Record(described, [5, 4])
    memory = create_memory(1 << 16, "khop-fuzz")
    shared = ArenaReader(memory)
    record.write(memoryview(shared.lease(4096, record.nbytes, None)))
    sampler = SamplerProcess(0, _NoProcess(), shared, None, True)  # type: ignore[arg-type]
    sampler.layouts[described.id] = described
    plain = BATCH.pack(1, 2, 4096, record.nbytes)
    valid = [plain, plain + b'{"a": [1, 2]}', BATCH.pack(0, 0, 0, 0)]
    failed = b'{"epoch": 1, "batch": 2, "type": "KeyError", "message": "a", "traceback": "b"}'
    answered = Answered(*range(len(Answered._fields)))
    segment = Segment._make(range(len(Segment._fields)))
    records = list(pack_records([segment] * 2, [answered]))

    def hear(random: Random) -> None:
        """Read a message whose operation is not about batches."""
        if random.random() < 0.5:
            unpack_records(bytes_changed(random, records[0], records))
            return
        message = Message(Op.ERROR, bytes_changed(random, failed, [failed]), [])
        message.integers("epoch", "batch")
        error = rebuild_error(message.json(), "a sampler")
        assert isinstance(error, Exception) and not isinstance(error, StopIteration)

    def run(random: Random) -> None:
        if random.random() < 0.1:
            receive(random)
            return
        if random.random() < 0.3:
            with contextlib.suppress(ProtocolError):
                hear(random)
            return
        payload = bytes_changed(random, random.choice(valid), valid)
        try:
            _, received = sampler.read(Message(Op.BATCH, payload, []))
            for array in received.arrays:
                array.tobytes()
        except ProtocolError:
            return
        finally:
            sampler._freed.clear()

    return run


def keys(root: Path) -> Run:
    """Return a target that reads the contents of key files."""
    del root
    made = JobKeys.new(["a", "b"])
    contents = [made.for_servers().to_json(), made.for_client("a").to_json()]

    def run(random: Random) -> None:
        which = random.randrange(2)
        content = json_changed(random, contents[which])
        if random.random() < 0.5:
            content = json_changed(random, content)
        if not isinstance(content, dict):
            return
        try:
            (ServerKeys, ClientKeys)[which].from_json(content)
        except SecurityError:
            return

    return run
