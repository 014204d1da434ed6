"""When samplers that die are restarted: without a process, in milliseconds."""

import pytest

from khop.distributed.sampling.process_pool import RestartPolicy


def test_restarts_are_bounded():
    policy = RestartPolicy(2)
    assert [policy.record_exit(None, []) for _ in range(2)] == [None, None]
    assert "2 times (max_restarts" in policy.record_exit(None, [])
    assert policy.num_restarts == 2


def test_no_restart_is_allowed():
    assert "0 times" in RestartPolicy(0).record_exit((0, 1), [(0, 1)], "batch 1")


@pytest.mark.parametrize("task", [(3, 5), "request-5"])
def test_four_deaths_on_one_batch_end_the_loader(task):
    policy = RestartPolicy(1000)
    for _ in range(3):
        assert policy.record_exit(task, {task, "another"}, "batch 5") is None
    assert policy.record_exit(task, {task}, "batch 5") == "4 samplers have died at work on batch 5"
    assert policy.num_restarts == 3


def test_deaths_on_different_batches_do_not_add_up():
    policy = RestartPolicy(1000)
    tasks = [(0, batch) for batch in range(20)]
    assert all(policy.record_exit(task, tasks) is None for task in tasks)


def test_deaths_are_forgotten_with_the_batch():
    """A batch that was made, and is requested again in a later epoch, begins at none."""
    policy = RestartPolicy(1000)
    for _ in range(3):
        policy.record_exit("a", ["a"])
    policy.record_exit(None, ["b"])
    assert all(policy.record_exit("a", ["a"]) is None for _ in range(3))


def test_a_death_on_a_batch_that_nobody_wants_counts_as_a_restart_alone():
    policy = RestartPolicy(1000)
    assert all(policy.record_exit("a", ["b"]) is None for _ in range(10))
    assert policy.num_restarts == 10
