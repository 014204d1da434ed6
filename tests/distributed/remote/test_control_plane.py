"""Directory and sessions under any messages of several users: each has its own state alone."""

import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from control_plane import CLIENTS, RANKS, SOURCES, ControlPlane


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

    examples = settings(max_examples=40, stateful_step_count=60, deadline=None)
    run_state_machine_as_test(Machine, settings=examples)
