"""Directory and sessions under any messages of several users: each has its own state alone."""

from random import Random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from khop.channel.message import pack
from khop.distributed.remote.messages import Ping
from khop.distributed.remote.server import control_handler
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.protocol import request_header
from support.cluster.control_plane import CLIENTS, RANKS, SOURCES, ControlPlane


@pytest.mark.parametrize("num_clients", [RANKS, 0])
def test_any_messages(folder_of, num_clients):
    """Register, look up, publish, wait, open, take over, goodbye, expiry; nonsense in between."""
    root = folder_of("random", 2)

    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.plane = ControlPlane(root, num_clients)

        @rule(seed=st.integers(0, 2**32), source=st.sampled_from(SOURCES))
        def say(self, seed, source):
            self.plane.say(source, *self.plane.request(Random(seed)))

        @rule(seed=st.integers(0, 2**32), source=st.sampled_from(CLIENTS))
        def say_nonsense(self, seed, source):
            self.plane.say_nonsense(Random(seed), source)

        @rule(seconds=st.sampled_from([0.1, 1.6, 11.0, 31.0, 200.0]))
        def pass_time(self, seconds):
            self.plane.pass_time(seconds)

        def teardown(self):
            self.plane.close()

    examples = settings(max_examples=40, stateful_step_count=60)
    run_state_machine_as_test(Machine, settings=examples)


def test_users_take_turns(folder_of, monkeypatch):
    """A thousand requests of one user, over forty connections, come after one of another."""
    monkeypatch.setattr(control_handler, "_ANSWER_SECONDS", 0.0)  # one request at a time
    plane = ControlPlane(folder_of("random", 2))
    try:
        crowd = [Source((0, f"crowd{i}".encode()), "crowd") for i in range(40)]
        for number in range(1000):
            source = crowd[number % 40]
            plane.handler.put(source, frames_of(Ping(), number), 100)
        other = CLIENTS[0]
        plane.handler.put(other, frames_of(Ping(), 7), 100)
        for _ in range(2):
            plane.handler.process_queued()
        answered = [peer for peer, _ in plane.replies]
        assert len(answered) == 2
        assert other.connection[1] in answered
    finally:
        plane.close()


def frames_of(request, number):
    return pack(request_header(request, number), [])
