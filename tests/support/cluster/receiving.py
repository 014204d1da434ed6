"""A trainer with one receiver, which takes the batches that it brings."""

import contextlib
import os
import select
import time
from dataclasses import asdict

import numpy as np
import torch

from khop.channel.arena import ArenaReader, create_memory
from khop.channel.control import Op
from khop.channel.layout import Layout
from khop.channel.shared import share
from khop.codec import to_json
from khop.distributed.processes.child import ChildProcess
from khop.distributed.remote.client.batch_checks import BatchSchema
from khop.distributed.remote.messages import new_secret
from khop.distributed.rpc.protocol import rebuild_error
from khop.distributed.sampling.process_handle import SamplerProcess
from khop.loader.iteration.epochs import EpochKeys
from khop.partition import PartitionFolder
from khop.sampler.plan import EpochPlan, epoch_order
from khop.sampler.rows.collect import CollectSpec


def collect_all(meta, sampling):
    """Return the specification of batches with all attributes, for `PipelineSpec`."""
    recorded = [sampling.records_edge(i) for i in range(len(meta.edge_types))]
    return CollectSpec(
        [list(t.attrs) for t in meta.node_types],
        [
            list(t.attrs) if is_recorded else []
            for t, is_recorded in zip(meta.edge_types, recorded, strict=True)
        ],
        recorded,
        sampling.disjoint,
        sampling.counts_hops,
    )


class Trainer:
    """A trainer's side of one receiver, and the messages that it has sent."""

    def __init__(self, graph, spec, servers=(0,), ring_bytes=1 << 22, arrays=None, **options):
        keys = graph.keys
        schema = options.pop("schema", None) or BatchSchema.create(
            PartitionFolder(graph.config["root"]).meta, spec
        )
        config = {
            "number": 0,
            "device": None,
            "device_arena": None,
            "has_arrays": arrays is not None,
            "master": {
                "address": f"tcp://{graph.master}",
                "server_key": None if keys is None else keys.server.public,
            },
            "credentials": None if keys is None else asdict(keys.for_client().credentials()),
            "servers": list(servers),
            "session": {
                "loader": os.urandom(8).hex(),
                "secret": new_secret(),
                "client": "trainer",
                "pipeline": spec.to_json(),
                "num_workers": options.pop("num_workers", 1),
                "buffer_bytes": options.pop("buffer_bytes", 1 << 24),
                "concurrency": 2,
                "worker_devices": None,
                "max_restarts": options.pop("max_restarts", 3),
                **options.pop("session", {}),
            },
            "methods": [],
            "schema": to_json(schema),
            "depth": 4,
            "timeout": 30.0,
            "batch_limit": 1 << 30,
            **options,
        }
        ring = create_memory(ring_bytes)
        shared = [] if arrays is None else [share(arrays)]
        process = ChildProcess("khop.distributed.remote.client.receiver", config, [ring, *shared])
        self.receiver = SamplerProcess(0, process, ArenaReader(ring))
        for descriptor in [ring, *shared]:
            os.close(descriptor)
        self.epochs = 0
        self.batches = {}
        self.layouts = []

    def open(self, seeds, batch_size=32, seed=3, shuffle=True, lists=None):
        """Begin an epoch over seeds [num_columns, num_seeds]. Return its number and plan."""
        plan = EpochPlan(seeds.shape[1], batch_size, lists=lists)
        key = EpochKeys(seed, 0, None).next_run_key()
        order = epoch_order(plan.num_seeds, key, shuffle)
        columns = np.ascontiguousarray(seeds if order is None else seeds[:, order])
        memory = create_memory(columns.nbytes)
        view = ArenaReader(memory).lease(0, columns.nbytes, None)
        view[:] = columns.reshape(-1).view(np.uint8)
        self.epochs += 1
        message = {
            "epoch": self.epochs,
            "run_key": key,
            "plan": asdict(plan),
            "num_columns": len(columns),
        }
        self.receiver.process.line.send_json(Op.OPEN_EPOCH, message, [memory])
        os.close(memory)
        return self.epochs, plan

    def ask(self, epoch, batches):
        """Request batches of an epoch by index."""
        self.receiver.request_batches([(epoch, batch) for batch in batches])

    def take(self, epoch, batch, seconds=40.0):
        """Wait for a batch and return it, or raise the error of making it."""
        end = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self.receiver.process.line.fileno(), select.POLLIN)
        while (epoch, batch) not in self.batches:
            assert time.monotonic() < end, f"batch {batch} does not come"
            poller.poll(200)
            while (message := self.receiver.process.line.receive()) is not None:
                self._take_in(message)
        found = self.batches.pop((epoch, batch))
        if isinstance(found, Exception):
            raise found
        return found

    def _take_in(self, message):
        if message.op is Op.LAYOUT:
            self.layouts.append(Layout.read_shared(message.descriptors[0]))
            self.receiver.layouts[self.layouts[-1].id] = self.layouts[-1]
        elif message.op is Op.BATCH:
            key, received = self.receiver.read(message)
            self.batches[key] = received
        elif message.op is Op.ERROR:
            content = message.json()
            assert content["epoch"] is not None, content
            error = rebuild_error(content, "the receiver")
            self.batches[content["epoch"], content["batch"]] = error

    def run(self, epoch, plan, ahead=4):
        """Yield all batches of an epoch, in order."""
        self.ask(epoch, range(min(ahead, plan.num_batches)))
        for batch in range(plan.num_batches):
            yield self.take(epoch, batch)
            if batch + ahead < plan.num_batches:
                self.ask(epoch, [batch + ahead])

    def close(self):
        """End the receiver."""
        self.receiver.process.close()


@contextlib.contextmanager
def training(graph, spec, **options):
    """Yield a `Trainer`, which ends with the block."""
    trainer = Trainer(graph, spec, **options)
    try:
        yield trainer
    finally:
        trainer.close()


def check_same(received, batch):
    """Check that a received batch equals the in-memory loader's, bit for bit."""
    named = received.named()
    for name, attribute in (
        ("n0.id", "n_id"),
        ("e0.edge_index", "edge_index"),
        ("e0.edge_id", "e_id"),
        ("n0.x", "x"),
        ("n0.half", "half"),
        ("n0.y", "y"),
        ("e0.edge_attr", "edge_attr"),
    ):
        assert torch.equal(torch.from_numpy(np.array(named[name][0])), batch[attribute]), name
    assert received.counter("n0.hops") == batch.num_sampled_nodes
    assert received.counter("e0.hops") == batch.num_sampled_edges
