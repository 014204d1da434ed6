"""Users of a server's connections, as far as the transport tells them apart."""

import contextlib

import pytest
import zmq

from khop.distributed.rpc.identity import source_of
from khop.distributed.rpc.keys import JobKeys


@pytest.fixture
def sender():
    """Function that sends a message from an address of this machine; returns its frames."""
    with zmq.Context() as context, contextlib.ExitStack() as stack:
        router = stack.enter_context(context.socket(zmq.ROUTER))
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def send(address):
            dealer = stack.enter_context(context.socket(zmq.DEALER))
            dealer.linger = 0
            dealer.connect(f"tcp://{address}:0;127.0.0.1:{port}")
            dealer.send(b"x")
            return router.recv_multipart(copy=False)

        yield send


def test_all_addresses_of_loopback_are_one_user(sender):
    """A process has 16 million of them, and no more turns by that."""
    sources = [source_of(0, *sender(f"127.0.0.{i}"), None) for i in (1, 2, 99)]
    assert {source.user for source in sources} == {"loopback"}
    assert len({source.connection for source in sources}) == 3


class _Frame(dict):
    """Stand-in for a frame: libzmq's properties of its connection, also such as IPv6 gives."""

    bytes = b"peer"


@pytest.mark.parametrize(
    ("address", "user"),
    [("127.0.0.1", "loopback"), ("127.255.3.9", "loopback"), ("::1", "loopback"),
     ("::ffff:127.0.0.5", "loopback"), ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1",) * 2,
     ("localhost:1000:1000:77", "localhost:1000:1000:77")],
)  # fmt: skip
def test_users_of_addresses(address, user):
    """With a key for all clients, users are told apart by both."""
    frame = _Frame({"Peer-Address": address, "User-Id": "K" * 40})
    assert source_of(0, frame, frame, None).user == user
    keys = JobKeys.new().for_servers().curve()
    assert source_of(0, frame, frame, keys).user == f"{'K' * 40} {user}"
    several = JobKeys.new(["a", "b"]).for_servers().curve()
    assert source_of(0, frame, frame, several).user == "K" * 40
