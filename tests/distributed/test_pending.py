"""The table of requests in flight, with a clock of the test."""

from khop.distributed.rpc.pending import PendingRequests, Request


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def table_of(clock, *servers, timeout=10.0):
    """A table with one request to each server, and the requests."""
    table = PendingRequests(clock)
    requests = [Request(server, [], timeout, clock) for server in servers]
    for request in requests:
        table.add(table.next_number(), request)
    return table, requests


def explain(request, waited):
    """The error of a request that has waited."""
    return TimeoutError(f"server {request.server} after {waited:g} s")


def test_requests_past_their_deadline_fail_once():
    """Not at the deadline, but after it, with the seconds that they have waited."""
    clock = Clock()
    table, (request,) = table_of(clock, 3)
    clock.now = 10.0
    table.expire(explain)
    assert not request.done
    assert table.of(3) == [request]
    clock.now = 10.5
    table.expire(explain)
    try:
        request.result()
    except TimeoutError as error:
        assert str(error) == "server 3 after 10.5 s"
    else:
        raise AssertionError("it has no error")
    assert not table.has(3)


def test_requests_of_a_server_are_sent_again_in_their_order():
    """Those that have a reply are not among them."""
    table, (first, other, second) = table_of(Clock(), 1, 2, 1)
    assert table.of(1) == [first, second]
    assert table.answered(1, 1) is first
    assert table.of(1) == [second]
    assert table.of(2) == [other]


def test_replies_that_nobody_waits_for_are_nobodys():
    """A second reply, another server's, and numbers of another type."""
    table, (request,) = table_of(Clock(), 1)
    for server, number in [(2, 1), (1, 2), (1, True), (1, None), (1, "1"), (1, [1])]:
        assert table.answered(server, number) is None
    assert table.answered(1, 1) is request
    assert table.answered(1, 1) is None


def test_failing_all_requests_of_one_server_leaves_the_others():
    """Only those to the server that has ended fail."""
    table, (first, other) = table_of(Clock(), 1, 2)
    table.fail_all(1, explain)
    assert first.done
    assert not other.done
    assert table.drain() == [other]
    assert not table.has(2)
