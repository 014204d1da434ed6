"""The page of metrics over HTTP, for good clients, bad ones, and many at once."""

import contextlib
import http.client
import logging
import os
import re
import resource
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from khop.metrics import http as served, serve


@pytest.fixture
def server():
    with serve(0, lambda: "a 1\n") as running:
        yield running


def ask(server, method="GET", path="/metrics"):
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, dict(response.getheaders()), text


def speak(server, data, timeout=10):
    """What the server says to these bytes until it ends the connection."""
    with socket.create_connection((server.host, server.port), timeout) as connection:
        connection.sendall(data)
        heard = b""
        while got := connection.recv(65536):
            heard += got
        return heard


def test_the_page(server):
    status, headers, text = ask(server)
    assert (status, text) == (200, "a 1\n")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert ask(server, path="/metrics?x=1")[0] == 200
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/", 404), ("GET", "/../metrics", 404),
     ("POST", "/metrics", 405), ("HEAD", "/metrics", 405), ("DELETE", "/x", 404)],
)  # fmt: skip
def test_there_is_nothing_else(server, method, path, status):
    assert ask(server, method, path)[0] == status


@pytest.mark.parametrize(
    "data",
    [b"\r\n\r\n", b"GET /metrics\r\n\r\n", b"GET /metrics HTTP/2\r\n\r\n", b"\0\xff\r\n\r\n",
     b"GET  /metrics HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_malformed_requests_are_refused(server, data):
    assert speak(server, data).startswith(b"HTTP/1.1 400 ")
    assert ask(server)[0] == 200


def test_long_requests_end_early(server):
    """Neither a long line nor endless headers are taken in; the answer arrives nevertheless."""
    for data in (b"GET /" + b"x" * 70_000, b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 20_000):
        assert speak(server, data).startswith(b"HTTP/1.1 431 ")
    assert ask(server)[0] == 200


def test_a_request_in_pieces(server):
    with socket.create_connection((server.host, server.port), 10) as connection:
        for byte in b"GET /metrics HTTP/1.1\r\nHost: [::1]\r\n\r\n":
            connection.sendall(bytes([byte]))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_silent_clients_give_way(server, monkeypatch):
    """Their time would never be up: who comes after 100 takes the oldest one's place."""
    monkeypatch.setattr(served, "CONNECTION_SECONDS", 1e6)
    address = server.host, server.port
    silent = [socket.create_connection(address, 10) for _ in range(100)]
    assert ask(server)[0] == 200
    assert silent[0].recv(1) == b""  # ended
    assert len(server._connections) <= served.MAX_CONNECTIONS
    for connection in silent:
        connection.close()


def test_clients_that_read_nothing_give_way(monkeypatch):
    """After a second, which the others' replies have to leave in."""
    monkeypatch.setattr(served, "CONNECTION_SECONDS", 1e6)
    monkeypatch.setattr(served, "_WRITE_SECONDS", 0.05)
    page = "a 1\n" * 2_000_000
    with serve(0, lambda: page) as server, contextlib.ExitStack() as stack:
        for _ in range(served.MAX_CONNECTIONS):
            slow = stack.enter_context(socket.create_connection((server.host, server.port), 10))
            slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert slow.recv(1)
        assert len(ask(server)[2]) == len(page)


def test_silent_clients_do_not_stay(server, monkeypatch):
    monkeypatch.setattr(served, "CONNECTION_SECONDS", 0.1)
    with socket.create_connection((server.host, server.port), 10) as silent:
        assert silent.recv(1) == b""


@pytest.fixture
def many_descriptors():
    """Opens so many files that those of the test have descriptors above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_processor_time_is_bounded(monkeypatch, many_descriptors):
    """Four pages of 40 ms each, with a tenth of a processor and 50 ms at once, take 0.7 s at least.

    Also in a process that has many files open.
    """
    monkeypatch.setattr(served, "PROCESSOR_SHARE", 0.1)
    monkeypatch.setattr(served, "PROCESSOR_SECONDS", 0.05)

    def collect():
        end = time.thread_time() + 0.04
        while time.thread_time() < end:
            pass
        return "a 1\n"

    with serve(0, collect) as server:
        began = time.monotonic()
        assert [ask(server)[0] for _ in range(4)] == [200] * 4
        assert time.monotonic() - began > (3 * 0.04 - 0.05) / 0.1


@pytest.mark.parametrize(
    ("hosts", "status"),
    [([], 200), (["localhost:9400"], 200), (["LOCALHOST"], 200), (["127.0.0.1:1"], 200),
     (["127.9.9.9"], 200), (["[::1]:9400"], 200), (["[::ffff:127.0.0.1]"], 200),
     (["evil.org"], 403), (["10.0.0.1:9400"], 403), (["localhost.evil.org"], 403), ([""], 403),
     (["localhost", "evil.org"], 403), (["[::1"], 403), (["\xff"], 403)],
)  # fmt: skip
def test_pages_of_others_in_a_browser_here_read_nothing(server, hosts, status):
    """A name of theirs may lead to this machine, but the browser says which name it asked for."""
    head = "".join(f"hOsT:  {host}\r\n" for host in hosts).encode("latin-1")
    reply = speak(server, b"GET /metrics HTTP/1.1\r\n" + head + b"a: b\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 %d " % status)
    assert (b"a 1\n" in reply) == (status == 200)


def test_a_client_that_reads_nothing(monkeypatch):
    """Its connection ends when its time is up, though megabytes are unsent; others are served."""
    monkeypatch.setattr(served, "CONNECTION_SECONDS", 0.7)
    page = "a 1\n" * 5_000_000
    with serve(0, lambda: page) as server:
        slow = socket.create_connection((server.host, server.port), 10)
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert slow.recv(1)  # it has been accepted: 0.7 s from now on
        monkeypatch.setattr(served, "CONNECTION_SECONDS", 30)
        assert len(ask(server)[2]) == len(page)
        time.sleep(0.8)  # its time, not ours
        heard = 0
        with contextlib.suppress(ConnectionResetError):
            while got := slow.recv(1 << 20):
                heard += len(got)
        assert heard < len(page)
        slow.close()


def test_concurrent_requests_are_answered(server):
    results = []
    threads = [threading.Thread(target=lambda: results.append(ask(server)[0])) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [200] * 50


def test_collecting_fails(caplog):
    """The reader hears that, the log hears why, and the next request is served."""
    answers = iter([ZeroDivisionError("secret"), "b 2\n"])

    def collect():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.ERROR, "khop"), serve(0, collect) as server:
        status, _, text = ask(server)
        assert status == 500
        assert "secret" not in text
        assert "ZeroDivisionError('secret')" in caplog.text
        assert ask(server)[2] == "b 2\n"


def test_closing(server):
    """Ends open connections and the thread, frees the port; a second time does nothing."""
    open_one = socket.create_connection((server.host, server.port), 10)
    server.close()
    server.close()
    assert open_one.recv(1) == b""
    open_one.close()
    assert "khop-metrics" not in {thread.name for thread in threading.enumerate()}
    with serve(server.port, lambda: "") as again:
        assert again.port == server.port
        with pytest.raises(OSError, match="in use"):
            serve(server.port, lambda: "")


def test_network_addresses_need_insecure():
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(ValueError, match="insecure=True"):
            serve(0, lambda: "", host)
    with serve(0, lambda: "a 1\n", "0.0.0.0", insecure=True) as server:
        assert ask(server)[0] == 200
        data = b"GET /metrics HTTP/1.1\r\nHost: node7.cluster:9400\r\n\r\n"
        assert speak(server, data).startswith(b"HTTP/1.1 200 ")


@given(st.binary(max_size=300), st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(server, data, is_head):
    """Whatever arrives gets one answer in HTTP, or none if it is no whole request; nobody dies."""
    sent = (b"GET /metrics HTTP/1.1\r\n" if is_head else b"") + data
    with socket.create_connection((server.host, server.port), 10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        heard = b""
        while got := connection.recv(65536):
            heard += got
    assert (heard == b"") == (b"\r\n\r\n" not in sent)
    assert re.fullmatch(rb"(HTTP/1\.1 \d{3} [^\r\n]+\r\n([\w-]+: [^\r\n]+\r\n)+\r\n[^\r]*)?", heard)
    assert server._thread.is_alive()
