"""Work of a graph server's loop: none of a member's messages takes long, whatever is in it.

Processor time is measured, of the best of three, with a bound several times what it takes: it
finds work that grows with what a member may send, not slow machines.
"""

import dataclasses
import functools
import time

import numpy as np
import pytest

from khop.channel.message import FRAME_BYTES, pack, unpack
from khop.distributed.remote import messages, session_messages
from khop.distributed.remote.messages import Ping, Publish, RegisterClient, WaitFor
from khop.distributed.remote.server.send_queue import SendQueue
from khop.distributed.remote.session_messages import Alive, Open, SessionSpec
from khop.distributed.rpc import protocol
from khop.distributed.rpc.identity import Source
from khop.distributed.rpc.protocol import read_request, request_header
from khop.errors import ProtocolError
from khop.sampler.spec import MAX_HOPS, SamplingSpec
from support.cluster.control_plane import CLIENTS, SERVER, ControlPlane
from support.largest import largest

MODULES = messages, session_messages, protocol
MESSAGES = {
    value.op: value
    for module in MODULES
    for value in vars(module).values()
    if dataclasses.is_dataclass(value) and isinstance(getattr(value, "op", None), str)
}
"""All requests, also those that are to come."""

MOST_SECONDS = 0.25  # five times the 50 ms that are promised of a quiet machine


def seconds_of(do):
    """Processor time of a call; the best of three, if it is long."""
    found = []
    while len(found) < 3 and min(found, default=9.0) > MOST_SECONDS / 3:
        began = time.thread_time()
        do()
        found.append(time.thread_time() - began)
    return min(found)


@functools.cache
def largest_frames(kind):
    """Frames of the largest messages of a class."""
    messages = [pack(request_header(message, 1), []) for message in largest(kind)]
    return [[bytes(frame) for frame in frames] for frames in messages]


@pytest.fixture(scope="module")
def plane(folder_of):
    """A server that has as much to keep as it may: clients, values, and requests that wait."""
    made = ControlPlane(folder_of("random", 2), num_clients=0)
    users = [Source((0, b"%d" % i), f"user {i}", has_own_key=True) for i in range(8)]
    directory = made.directory
    for rank in range(2048):
        source = users[rank // 256]
        directory.register_client(RegisterClient(rank, f"{rank}", 2, 0, f"c{rank}", 7), source)
        directory.values.publish(Publish(rank, f"{rank}", "known"), b"1" * 500)
    everybody = list(range(2048))
    for user in users:
        for number in range(1024):
            request = WaitFor(number, "x", f"n{number % 16}", everybody, 10.0)
            directory.values.wait_for(request, user, lambda reply, arrays: None)
    yield made
    made.close()


@pytest.mark.parametrize("op", MESSAGES)
def test_reading_the_largest_message(op):
    """Header and fields, each collection of them as long as the schema lets it be."""
    kind = MESSAGES[op]
    for frames in largest_frames(kind):
        assert seconds_of(lambda f=frames: read_request(kind, unpack(f)[0])) < MOST_SECONDS


@pytest.mark.parametrize("op", [op for op in MESSAGES if hasattr(MESSAGES[op], "carries")])
def test_answering_the_largest_message(plane, op):
    """By a directory that is full; whoever sends it."""
    for frames in largest_frames(MESSAGES[op]):
        for source in (SERVER, CLIENTS[0]):
            answer = lambda f=frames, s=source: answered(plane, s, f)  # noqa: E731
            assert seconds_of(answer) < MOST_SECONDS, frames[0][:1000]


def answered(plane, source, frames):
    """Put a request, and answer what waits."""
    assert plane.handler.put(source, frames, sum(map(len, frames)))
    while plane.handler.has_requests:
        plane.handler.process_queued()
    plane.replies.clear()


def test_every_request_to_the_loop_says_what_it_may_carry(plane):
    for kind, _ in plane.handler._answers.values():
        assert MESSAGES[kind.op] is kind and kind.carries >= 0


@pytest.mark.parametrize("text", ["[]", "{}", '"a"', '{"a":0}', "0", '["int64",[0]]'])
def test_headers_of_many_values_are_refused_before_they_are_parsed(text):
    """A mebibyte of lists takes longer than one of letters."""
    header = b'{"op": "ping", "arrays": [' + b",".join([text.encode()] * 500_000)
    header = header[: 1 << 20]

    def read():
        with pytest.raises(ProtocolError, match="too many values"):
            unpack([header])

    assert seconds_of(read) < MOST_SECONDS


def test_arrays_that_a_request_may_not_carry_are_not_joined(plane):
    """256 MiB that come with a ping are refused by their number, and cost nothing."""
    frames = [bytes(f) for f in pack(request_header(Ping(), 1), [np.zeros(4, np.int64)])]
    frames += [memoryview(bytes(FRAME_BYTES))] * 256
    nbytes = sum(map(len, frames))

    def ask():
        plane.handler.put(CLIENTS[0], frames, nbytes)
        plane.handler.process_queued()

    assert seconds_of(ask) < 0.05
    assert "carries" in plane.replies.pop()[1]["error"]["message"]


def test_publishing_costs_what_waits_for_that_name_alone(plane):
    """8,000 requests wait for other names: they are not looked at."""
    count = sum(map(len, plane.directory.values._waiting.values()))
    assert count > 8000
    publish = lambda: plane.directory.values.publish(Publish(7, "7", "other"), b"1")  # noqa: E731
    assert seconds_of(lambda: [publish() for _ in range(100)]) < MOST_SECONDS
    assert seconds_of(plane.directory.tick) < MOST_SECONDS


def test_answers_that_many_wait_for_are_given_a_few_at_a_time(folder_of):
    """The last value of 2,000 requests for 100 values each comes: others have turns meanwhile."""
    plane = ControlPlane(folder_of("random", 2), num_clients=0)
    got = []
    for rank in range(101):
        plane.directory.register_client(RegisterClient(rank, "s", 2, 0, "c", 7), CLIENTS[rank % 6])
    for rank in range(100):
        plane.directory.values.publish(Publish(rank, "s", "n"), b'"' + b"x" * 5000 + b'"')
    for number in range(2000):
        request = WaitFor(0, "s", "n", list(range(101)), 10.0)
        plane.directory.values.wait_for(
            request, CLIENTS[number % 6], lambda reply, _: got.append(reply)
        )
    assert not got
    plane.directory.values.publish(Publish(100, "s", "n"), b"1")
    assert 0 < len(got) < 2000 and plane.handler.has_requests
    while plane.handler.has_requests:
        plane.handler.process_queued()
    assert len(got) == 2000 and got[-1].ranks == list(range(101))
    plane.close()


# Sessions ---------------------------------------------------------------------------------------


def spec_of(plane, name="s", sampling=None):
    pipeline = plane.pipeline
    if sampling is not None:
        pipeline = dataclasses.replace(pipeline, sampling=sampling)
    return SessionSpec(name, "secret", "c", pipeline, 1, 1 << 16, 2, 4, None, 1, 5.0, 1 << 16)


def test_each_distinct_hop_is_checked_once(plane, monkeypatch):
    """A thousand hops of two fan-outs are two hops; more than 1,024 are refused by the schema."""
    sampling = SamplingSpec(((3, 2) * (MAX_HOPS // 2),) * len(plane.pipeline.sampling.fanouts))
    assert sorted(hop.fanout for hop in sampling.distinct_requests()) == [2, 3]
    with pytest.raises(ValueError, match="num_neighbors has more than 1024 hops"):
        SamplingSpec.create([1] * (MAX_HOPS + 1), [("n", "to", "n")])
    header = request_header(Open(spec_of(plane, sampling=sampling), [], []), 1)
    header["spec"]["pipeline"]["sampling"]["fanouts"][0] += [1]
    with pytest.raises(ProtocolError, match=r"fanouts\[0\] must be a list of at most 1024"):
        read_request(Open, header)


def test_quotas_come_before_checks(folder_of, monkeypatch):
    """An open that finds no room is refused before its specification is looked at."""
    plane = ControlPlane(folder_of("random", 2))
    looked_at = []
    monkeypatch.setattr(plane.sessions._checks, "pipeline", looked_at.append)
    for number in range(9):  # eight may be open
        plane.say(CLIENTS[0], Open(spec_of(plane, str(number)), [], []), [])
    assert len(looked_at) == 8
    plane.close()


def test_control_requests_share_the_loop_by_its_time(folder_of, monkeypatch):
    """One user's requests take 20 ms each: another's have turns between any two of them."""
    plane, now = ControlPlane(folder_of("random", 2)), [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    answer = plane.handler._answer

    def slow(source, frames):
        now[0] += 0.02 if source.user == "a" else 0.0001
        answer(source, frames)

    monkeypatch.setattr(plane.handler, "_answer", slow)
    for number in range(100):
        plane.handler.put(CLIENTS[number % 2], frames_of(Ping(), number), 100)
    plane.handler.process_queued()
    assert now[0] == 0.02  # one takes more than the loop has for requests at a time
    for number in range(10):
        plane.handler.put(CLIENTS[2], frames_of(Ping(), number), 100)
    plane.handler.process_queued(), plane.handler.process_queued()
    assert sum(peer == CLIENTS[2].connection[1] for peer, _ in plane.replies) == 10
    plane.close()


def frames_of(request, number):
    return [bytes(f) for f in pack(request_header(request, number), [])]


def test_a_session_lives_while_its_messages_wait(folder_of):
    """It is silent for longer than its lease, but what it sent has not been read yet."""
    plane = ControlPlane(folder_of("random", 2))
    plane.say(CLIENTS[0], Open(spec_of(plane), [], []), [])
    (session,) = plane.sessions._sessions.values()
    session.lease.heard_at -= 60.0
    heard = []

    def heard_until(user, now):
        heard.append(user)
        return now - 55.0

    plane.sessions.tick(heard_until)
    assert heard == ["a"] and len(plane.sessions._sessions) == 1
    plane.sessions.tick(lambda user, now: now - 45.0)
    assert not plane.sessions._sessions
    plane.close()


def test_a_client_is_not_lost_while_its_messages_wait(folder_of):
    plane = ControlPlane(folder_of("random", 2))
    plane.directory.register_client(RegisterClient(0, "s", 2, 3, "c", 7), CLIENTS[0])
    plane.now += 60.0
    plane.directory.tick(lambda user, now: now - 40.0)
    assert not plane.directory.lookup().clients[0].gone
    plane.directory.tick(lambda user, now: now - 20.0)
    assert plane.directory.lookup().clients[0].gone
    plane.close()


def test_when_a_users_oldest_request_arrived(folder_of):
    plane = ControlPlane(folder_of("random", 2))
    assert plane.handler.waiting_since("a") is None
    began = time.monotonic()
    for source in CLIENTS[:2]:
        plane.handler.put(source, frames_of(Alive("s"), 1), 100)
    assert began <= plane.handler.waiting_since("a") <= time.monotonic()
    plane.handler.process_queued()
    assert plane.handler.waiting_since("a") is None
    plane.close()


def test_streams_take_turns_by_user(folder_of, monkeypatch):
    """A user with 200 sessions beside one with a single session: half of the chunks each."""
    plane = ControlPlane(folder_of("random", 2))
    sent = []
    users = {"one": CLIENTS[2].user}
    monkeypatch.setattr(SendQueue, "can_send", True)
    monkeypatch.setattr(
        SendQueue, "send_chunk", lambda queue: sent.append(users.get(queue._session, "a"))
    )
    monkeypatch.setattr(plane.sessions, "start", lambda: None)
    plane.sessions._allowed = dataclasses.replace(plane.sessions._allowed, sessions=1000)
    for number in range(200):
        plane.handler.put(CLIENTS[0], frames_of(Open(spec_of(plane, f"{number}"), [], []), 1), 9)
    plane.handler.put(CLIENTS[2], frames_of(Open(spec_of(plane, "one"), [], []), 1), 9)
    while plane.handler.has_requests:
        plane.handler.process_queued()
    for session in plane.sessions._sessions.values():
        plane.sessions._give_turn(session)
    for _ in range(10):
        plane.sessions.stream()
    assert abs(sent.count("a") - sent.count("b")) <= 1 and len(sent) == 640
    plane.close()
