"""Fake sampler processes: tests read the messages to them, and let them answer or die.

Their control lines and arenas are real, so pools of samplers run unchanged, without a process.
"""

import itertools
import os

from khop.channel.arena import ArenaWriter
from khop.channel.control import BATCH, U64, ControlLine, Op, socket_pair
from khop.channel.layout import ArrayLayout, CounterLayout, Layout, Record
from khop.distributed.sampling.control_messages import SampleRequest, read_request

LAYOUT = Layout(3, [ArrayLayout("ids", "int64", (-1,))], [CounterLayout("batch", 1)])
_PIDS = itertools.count(1)


class FakeProcess:
    """A fake sampler, which does what the test calls.

    Attributes:
        asked: batches that were requested, by all messages that `read` has found.
        freed: offsets of slots that were freed.
        told: (operation, payload) of other messages.
        is_closed: whether its parent has ended it.
    """

    def __init__(self, config, memory):
        ours, theirs = socket_pair()
        self.line, self._end = ControlLine(ours), ControlLine(theirs)
        self.config = config
        self.pid = next(_PIDS)
        self._arena = ArenaWriter(memory[0])
        self._task = None
        self._is_announced, self.is_alive = False, True
        self.asked, self.ahead, self.freed, self.told = [], [], [], []
        self.is_closed = self.ended_with_server = False

    def exit_status(self):
        """Return how the sampler ended, in words."""
        return "was killed by SIGKILL"

    def last_task(self):
        """Return the (epoch, batch) that it worked on last."""
        return self._task

    def log_tail(self):
        """Return the end of its log."""
        return "out of cheese"

    def close(self):
        """End the sampler, as its parent does."""
        self.line.close()
        self.is_closed = True

    def read(self):
        """Read the messages to the sampler. Return the batches that were requested so far."""
        while (message := self._next()) is not None:
            if message.op is Op.SAMPLE:
                request = SampleRequest.decode(message.payload)
                self._free(request.freed)
                self.asked += request.requested
                self.ahead += request.ahead
            elif message.op is Op.MAKE:
                key, _, is_ahead = read_request(message)
                (self.ahead if is_ahead else self.asked).append(key)
            elif message.op is Op.FREE:
                self._free(U64.unpack(message.payload))
            else:
                self.told.append((message.op, message.payload))
            message.close_descriptors()
        return self.asked

    def _next(self):
        if not self.is_alive:
            return None
        try:
            return self._end.receive()
        except EOFError:  # its parent has ended it
            self.is_alive = False
            return None

    def _free(self, offsets):
        for offset in offsets:
            self._arena.free(offset)
        self.freed += offsets

    def ops(self):
        """Return the operations of the messages that request no batch."""
        self.read()
        return [op for op, _ in self.told]

    def report_ready(self):
        """Report to the parent that the sampler has started."""
        self._end.send_json(Op.READY, {})

    def report_lost(self, part):
        """Report that the sampler cannot reach the server of a partition."""
        self._end.send_json(Op.LOST, {"part": part, "seconds": 1.0})

    def deliver(self, key, size=4):
        """Deliver the batch of this (epoch, batch): `size` ids, each equal to the batch's index."""
        if not self._is_announced:
            memory = LAYOUT.share()
            self._end.send(Op.LAYOUT, b"", [memory])
            os.close(memory)
            self._is_announced = True
        record = Record(LAYOUT, [size])
        offset, memory = self._arena.allocate(record.nbytes)
        record.write(memory)["ids"][:] = key[1]
        self._end.send(Op.BATCH, BATCH.pack(*key, offset, record.nbytes))

    def fail(self, key, message="no"):
        """Report that a batch (if the key is None, the start) has failed with `message`."""
        epoch, batch = key or (None, None)
        error = {"type": "ValueError", "message": message, "traceback": "trace"}
        self._end.send_json(Op.ERROR, {"epoch": epoch, "batch": batch, **error})

    def die(self, task=None):
        """End, while at work on the batch `task`."""
        self.read()
        self._task, self.is_alive = task, False
        self._end.close()


class FakeProgram:
    """Program that starts fake samplers, in place of `ChildProcess`.

    Attributes:
        started: all fake samplers, in order.
        refusals: errors of the next starts.
    """

    def __init__(self):
        self.started = []
        self.refusals = []

    def __call__(self, config, memory):
        if self.refusals:
            raise self.refusals.pop(0)
        self.started.append(FakeProcess(config, memory))
        return self.started[-1]

    def asked(self):
        """Return the batches that were requested from each fake sampler."""
        return [process.read() for process in self.started]
