"""A session's queue, buffer and samplers, with fake processes and a fake clock."""

import errno

import numpy as np
import pytest

from khop.channel.control import Op
from khop.distributed.remote.server import session
from khop.distributed.remote.server.send_queue import BatchRequest
from khop.distributed.remote.server.session import Session
from khop.distributed.remote.server.session_environment import SessionEnvironment
from khop.distributed.remote.session_messages import SessionSpec
from khop.distributed.rpc.endpoint import Endpoint
from khop.distributed.sampling.pipeline import PipelineSpec
from khop.errors import ProtocolError
from khop.sampler.rows.collect import CollectSpec
from khop.sampler.spec import SamplingSpec
from support.cluster.fake_samplers import FakeProgram

PIPELINE = PipelineSpec(SamplingSpec(((3, 2),)), CollectSpec([[]], [[]], [False]))


class Served:
    """A session whose samplers are fake.

    Attributes:
        now: the time in seconds.
        sent: its events.
        restarts: deaths that it has reported to its server.
        endpoints: those that the server knows.
    """

    def __init__(self, num_workers=1, num_parts=1, **options):
        self.program = FakeProgram()
        self.now, self.sent, self.restarts, self.endpoints = 0.0, [], 0, {}
        limits = {"buffer_bytes": 1 << 16, "concurrency": 1, "depth": 8, "max_restarts": 3}
        limits.update(options)
        spec = SessionSpec(
            "s", "secret", "c", PIPELINE, num_workers, limits["buffer_bytes"],
            limits["concurrency"], limits["depth"], None, limits["max_restarts"], 30.0, 1 << 20,
            limits.get("cache_bytes", 0), limits.get("lookahead", (0, 0)),
        )  # fmt: skip
        host = SessionEnvironment(
            {}, [0], num_parts, self.endpoints, None, lambda *_: None, self._restarted, self.program
        )
        if "cache_bytes" in limits:
            self.endpoints[1] = Endpoint("tcp://b")
        self.session = Session(spec, {}, host, self._send, lambda: self.now)
        for _ in range(num_workers):
            self.session.start()

    def _send(self, header, arrays=()):
        self.sent.append((header, [np.array(a) for a in arrays]))

    def _restarted(self):
        self.restarts += 1

    def order(self, *ids):
        """Requests batches: batch 10 of request 0, and so on."""
        for number in ids:
            columns = np.full((1, 4), number)
            self.session.enqueue(BatchRequest(number, number + 10, 7, columns, self.now))

    def asked(self):
        """Batches that each process was asked for."""
        return [[batch for _, batch in asked] for asked in self.program.asked()]

    def deliver(self, process, batch, size=4):
        """A process makes a batch that it was asked for."""
        fake = self.program.started[process]
        key = next(key for key in reversed(fake.read()) if key[1] == batch)
        fake.deliver(key, size)
        self.listen()

    def listen(self):
        """Messages of all samplers are read."""
        for sampler in list(self.session.samplers):
            self.session.listen(sampler)

    def failed(self):
        """Errors of batches: {request: text}."""
        events = [header for header, _ in self.sent if header["event"] == "failed"]
        return {event["batch_id"]: event["error"]["message"] for event in events}


def test_batches_are_made_in_order_and_sent():
    served = Served()
    served.order(0, 1, 2, 3)
    assert served.asked() == [[10, 11, 12]]  # `concurrency` and two more
    served.deliver(0, 10)
    assert served.asked() == [[10, 11, 12, 13]]
    assert served.session.made == 1
    served.session.queue.send_chunk()
    assert [header["event"] for header, _ in served.sent] == ["layout", "chunk"]
    assert not served.session.queue.can_send


def test_one_sampler_is_started_at_a_time():
    served = Served(num_workers=3)
    assert len(served.program.started) == 3
    served = Served(num_workers=3, num_parts=2)
    assert served.program.started == []
    assert served.session.waiting_for == "no graph server has registered partition(s) [1]"
    served.order(0, 1)
    served.endpoints[1] = Endpoint("tcp://b")
    for count in (1, 2, 3):
        assert served.session.lacks_sampler
        served.session.start()
        assert len(served.program.started) == count
    assert not served.session.lacks_sampler
    assert served.asked() == [[10, 11], [], []]


def test_a_failed_start_is_made_again_later():
    served = Served(num_workers=2)
    served.order(0)
    served.program.refusals = [OSError(errno.EAGAIN, "no process")] * 2
    served.program.started[1].die()
    served.listen()
    for _ in range(2):
        assert not served.session.lacks_sampler
        served.now += 0.6
        assert served.session.lacks_sampler
        served.session.start()
    assert len(served.program.started) == 3
    assert served.restarts == 1


def test_another_error_of_a_start_is_raised():
    served = Served(num_workers=2)
    served.program.refusals = [OSError(errno.EPERM, "not permitted")]
    served.program.started[1].die()
    with pytest.raises(OSError, match="not permitted"):
        served.listen()


def test_a_request_that_cannot_be_sent_is_no_failed_start(monkeypatch):
    """Its batch would never come: the error is raised, and its session fails."""
    served = Served()
    served.order(0)

    def refuse(*_arguments):
        raise OSError(errno.EMFILE, "no descriptor")

    monkeypatch.setattr(session, "send_request", refuse)
    served.program.started[0].die()
    with pytest.raises(OSError, match="no descriptor"):
        served.listen()


def test_batches_of_a_dead_sampler_are_made_by_the_others():
    served = Served(num_workers=2)
    served.order(0, 1, 2, 3)
    served.program.started[0].die()
    served.listen()
    assert served.asked()[1:] == [[11, 13, 10, 12], []]
    served.deliver(1, 10)
    assert served.session.reattach([0, 1, 2, 3], served._send) == [0, 1, 2, 3]


@pytest.mark.parametrize("has_process", [True, False])
def test_the_only_sampler_dies(has_process):
    served = Served()
    served.order(0, 1)
    served.program.refusals = [] if has_process else [OSError(errno.ENOMEM, "no memory")]
    served.program.started[0].die()
    served.listen()
    served.order(2)  # waits with the others
    served.now += 1
    served.session.start()
    assert served.asked()[1] == [10, 11, 12]


def test_a_batch_that_kills_samplers_fails_the_session():
    served = Served(num_workers=2, max_restarts=1000)
    served.order(0, 1, 2)
    while not served.failed():
        for sampler in list(served.session.samplers):
            victim = [key for key in sampler.in_flight if key[1] == 10]
            if victim:
                sampler.process.die(victim[0])
        served.listen()
    assert served.session.pool.num_restarts == served.restarts == 3
    assert sorted(served.failed()) == [0, 1, 2]
    assert "4 samplers have died at work on batch 10" in served.failed()[2]
    served.order(5)
    assert "4 samplers" in served.failed()[5]
    assert not served.session.lacks_sampler
    assert served.session.samplers == []


def test_batches_that_are_made_and_not_sent_are_bounded():
    """With a batch of 30,000 bytes unsent, 65,536 bytes have room for one more of that size."""
    served = Served()
    served.order(0)
    served.deliver(0, 10, size=3750)
    served.order(1, 2)
    assert served.asked() == [[10, 11]]
    served.session.queue.send_chunk()
    assert served.asked() == [[10, 11, 12]]


def test_requests_are_bounded():
    served = Served(depth=2)
    served.order(0, 1, 1)  # known already
    with pytest.raises(ProtocolError, match="more than 2 batches"):
        served.order(2)


def test_requests_may_be_cancelled():
    """At a sampler, in the queue, and among batches to send; and be made again."""
    served = Served()
    served.order(0, 1, 2, 3, 4)
    served.deliver(0, 10)
    assert served.asked() == [[10, 11, 12, 13]]
    served.session.cancel([0, 1, 4])
    assert served.program.started[0].ops() == [Op.CLOSE_EPOCH]
    assert not served.session.queue.can_send
    served.deliver(0, 11)  # was on its way
    assert served.session.made == 1
    assert not served.session.queue.can_send
    served.order(1)
    assert served.asked() == [[10, 11, 12, 13, 11]]
    served.deliver(0, 11)
    assert served.session.queue.can_send


def test_a_client_that_comes_back_keeps_its_batches():
    served = Served()
    served.order(0, 1, 2, 3)
    served.deliver(0, 10)
    assert served.session.reattach([0, 2, 9], served._send) == [0, 2]
    assert served.program.started[0].ops() == [Op.CLOSE_EPOCH] * 2
    served.session.queue.send_chunk()
    assert served.sent[-1][0]["batch_id"] == 0


def test_an_error_of_a_batch_is_sent():
    served = Served()
    served.order(0, 1)
    served.program.started[0].fail(served.program.asked()[0][1], "bad seed")
    served.listen()
    assert list(served.failed()) == [1]
    assert served.failed()[1] == "bad seed\n\nRaised in sampler process 0 on this server."
    served.deliver(0, 10)


def test_a_sampler_that_cannot_begin_fails_the_session():
    served = Served()
    served.order(0, 1)
    served.program.started[0].fail(None, "no folder")
    served.listen()
    assert sorted(served.failed()) == [0, 1]
    assert not served.session.lacks_sampler


def ahead(served, *ids):
    """Batches are requested to be drawn ahead."""
    for number in ids:
        columns = np.full((1, 4), number)
        served.session.draw_ahead(BatchRequest(number, number + 10, 7, columns, served.now))


def drawn_ahead(served):
    """Batches that each process may draw ahead."""
    served.program.asked()
    return [[batch for _, batch in process.ahead] for process in served.program.started]


KNOWN = {"num_parts": 2, "cache_bytes": 1 << 20, "lookahead": (2, 2)}


def test_batches_are_requested_from_the_samplers_that_have_drawn_them():
    served = Served(num_workers=2, **KNOWN)
    assert served.session.lookahead == 6  # two, and one that is drawn, of each
    served.order(0)
    ahead(served, 0, 1, 2, 2, 3, 4, 5, 6, 7)
    assert served.asked() == [[10], []]
    assert drawn_ahead(served) == [[12, 14, 16], [11, 13, 15]]
    served.order(1, 2, 3, 4, 5)
    assert served.asked() == [[10, 12, 14], [11, 13, 15]]
    served.order(6)
    served.order(7)  # was not drawn: six were
    served.deliver(1, 11)  # the next batch is the other sampler's, which has enough to do
    assert served.asked() == [[10, 12, 14], [11, 13, 15]]
    served.deliver(0, 10)
    assert served.asked() == [[10, 12, 14, 16], [11, 13, 15, 17]]


def test_a_sampler_dies_that_has_drawn_ahead():
    served = Served(num_workers=2, **KNOWN)
    ahead(served, 0, 1, 2, 3)
    served.order(0)
    served.program.started[0].die()
    served.listen()
    assert served.asked()[1] == [10]
    assert drawn_ahead(served)[1] == [11, 13, 12]
    served.order(1, 2)
    assert served.asked()[1] == [10, 11, 12]


def test_batches_that_are_drawn_ahead_are_cancelled_and_fail_unseen():
    served = Served(**KNOWN)
    ahead(served, 0, 1, 2)
    served.session.cancel([0])
    assert served.program.started[0].ops() == [Op.CLOSE_EPOCH]
    served.program.started[0].fail(served.program.started[0].ahead[1], "bad seed")
    served.listen()
    assert served.failed() == {}
    served.order(0, 1)
    assert served.asked() == [[10, 11]]
    assert served.session.reattach([0, 1], served._send) == [0, 1]
    assert served.program.started[0].ops() == [Op.CLOSE_EPOCH] * 2  # of batch 2
    ahead(served, 3)
    served.session.fail({"type": "OSError", "message": "no", "traceback": ""})
    assert sorted(served.failed()) == [0, 1]


@pytest.mark.parametrize("options", [{"num_parts": 1}, {"cache_bytes": 0}, {"lookahead": (0, 0)}])
def test_no_batch_is_drawn_ahead_for_nothing(options):
    """If all parts are here, or the client wants no rows to be kept."""
    served = Served(**{**KNOWN, **options})
    ahead(served, 0)
    assert served.session.lookahead == 0
    assert drawn_ahead(served) == [[]] * len(served.program.started)


def test_seeds_of_batches_that_are_drawn_ahead_count():
    """With those of requests that wait: further ones are ignored."""
    served = Served(**KNOWN)
    columns = np.zeros((1, 1 << 20), np.int64)
    for number in range(3):
        served.session.draw_ahead(BatchRequest(number, number, 7, columns, 0.0))
    assert drawn_ahead(served) == [[0, 1]]


def test_its_end():
    served = Served(num_workers=2)
    served.order(0)
    assert [s.outstanding for s in served.session.state().samplers] == [1, 0]
    served.session.close()
    assert served.session.samplers == []
    assert not served.session.lacks_sampler
