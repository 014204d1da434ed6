"""Users share a queue by the processor time that they use, connections of a user likewise."""

from khop.distributed.rpc.fair_queue import FairQueue


def serve(queue, count, cost):
    """Take entries, charge `cost` of each, and return them."""
    served = []
    for _ in range(count):
        turn = queue.take()
        served.append(turn.entry)
        queue.charge(turn, cost[turn.entry])
    return "".join(served)


def queue_of(**waiting):
    """A queue in which users wait with so many entries each, named as they are."""
    queue = FairQueue(1000, 1000)
    for user, count in waiting.items():
        for _ in range(count):
            assert queue.put(user, user)
    return queue


def test_users_get_equal_time_and_not_equal_numbers():
    """An entry of a costs as much as five of b: b has five turns for one of a's."""
    served = serve(queue_of(a=100, b=100), 60, {"a": 5.0, "b": 1.0})
    assert served.startswith("abbbbb")
    assert served.count("a") == 10


def test_who_comes_later_is_next():
    """However many entries wait, and whatever was used while nobody else waited: no debt."""
    queue = queue_of(a=100)
    serve(queue, 50, {"a": 1.0})
    queue.put("b", "b")
    assert "b" in serve(queue, 2, {"a": 1.0, "b": 1.0})


def test_a_pause_earns_no_credit():
    """b waited for nothing while a used 50 s; then both have equal turns."""
    queue = queue_of(a=60, b=1)
    serve(queue, 51, {"a": 1.0, "b": 1.0})
    for _ in range(10):
        queue.put("b", "b")
    assert 9 <= serve(queue, 20, {"a": 1.0, "b": 1.0}).count("a") <= 11


def test_work_under_way_counts_when_it_is_charged():
    """Two threads: what the first is charged for late counts for the user's entries that wait."""
    queue = queue_of(a=3, b=3)
    first = queue.take()
    queue.charge(queue.take(), 1.0)
    queue.charge(first, 10.0)
    assert serve(queue, 4, {"a": 1.0, "b": 1.0}) == "bbaa"


def test_connections_of_a_user_share_its_time():
    """One of forty connections with much work keeps another, of the same user, from nothing."""
    queue = FairQueue(1000, 1000)
    for connection in range(40):
        for _ in range(10):
            queue.put("user", "x", connection=connection)
    serve(queue, 80, {"x": 1.0})
    queue.put("user", "y", connection="other")
    assert "y" in serve(queue, 41, {"x": 1.0, "y": 1.0})


def test_work_that_is_put_back_stays_ahead_of_its_connection():
    queue = FairQueue(10, 10)
    for entry in "abc":
        queue.put("user", entry)
    turn = queue.take()
    queue.put_back(turn)
    assert [queue.take().entry for _ in range(3)] == ["a", "b", "c"]
    assert queue.take() is None
    assert not queue


def test_entries_of_each_user_are_bounded():
    """By number and by bytes; one of any size may wait."""
    queue = FairQueue(3, 100)
    assert queue.put("a", 1, 1000)
    assert not queue.put("a", 2, 1)
    assert queue.put("a", 2, 1, is_bounded=False)
    assert [queue.put("b", i, 30) for i in range(5)] == [True, True, True, False, False]
    assert queue.first_of("b") == [0] and queue.first_of("c") == []
    assert [queue.take().entry for _ in range(5)] == [1, 0, 2, 1, 2]
    assert not queue
    assert queue.put("a", 3, 100)


def test_users_that_have_left_are_forgotten():
    queue = FairQueue(3, 100)
    for number in range(20_000):
        queue.put(str(number), "x")
        queue.charge(queue.take(), 1.0)
    assert len(queue._shares._used) < 5_000
