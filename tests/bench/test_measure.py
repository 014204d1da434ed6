"""Turns, ratios and goals, on figures worked out by hand."""

from __future__ import annotations

import pytest

from khop_bench.bench import Bench
from khop_bench.goals import Goal, standings
from khop_bench.graphs import Graphs
from khop_bench.measure import Case, Row, Turn, take_joint_turns, take_turns
from khop_bench.peers import Peers
from khop_bench.report import row_lines
from khop_bench.settings import Settings


def case(name, log, values, work=1.0):
    def turn(number):
        log.append((name, number))
        return Turn(values[number], work)

    return Case(name, turn)


def test_cases_take_turns_after_one_that_does_not_count():
    log = []
    cases = [case("a", log, [1.0, 2.0]), case("b", log, [3.0, 10.0])]
    rows = take_turns("group", cases, 2, unit="ms")
    assert log == [(n, t) for t in ("warm", 0, 1) for n in "ab" for t in [0 if t == "warm" else t]]
    assert [row.values for row in rows] == [[1000, 2000], [3000, 10_000]]
    # b takes 3 and 5 times as long as a: the ratio is the median of these, not that of medians.
    assert [row.ratio for row in rows] == [1, 4]


def test_ratios_are_per_unit_of_work():
    """Twice the time for four times the edges is half the cost."""
    log = []
    cases = [case("a", log, [1e-3], 100), case("b", log, [2e-3], 400)]
    rows = take_turns("group", cases, 1, unit="ms", work_unit="edge")
    assert rows[0].per_work == pytest.approx([10_000])  # nanoseconds
    assert rows[1].per_work == pytest.approx([5_000])
    assert rows[1].ratio == pytest.approx(0.5)
    content = rows[1].to_json()
    assert (content["median"], content["work"], content["per_work"]) == (2, [400], 5000)


def test_joint_turns_compare_within_groups():
    rows = [Row("x", "a", "MB"), Row("x", "b", "MB"), Row("y", "c", "s")]
    take_joint_turns(rows, lambda _: [Turn(2e6), Turn(3e6), Turn(7)], 3)
    assert [row.median for row in rows] == [2, 3, 7]
    assert [row.ratio for row in rows] == [1, 1.5, 1]


def test_a_base_of_zero_gives_no_ratio():
    rows = [Row("x", "a", "us"), Row("x", "b", "us")]
    take_joint_turns(rows, lambda _: [Turn(0), Turn(1e-6)], 1)
    assert rows[1].ratio != rows[1].ratio  # NaN
    assert rows[1].to_json()["ratio"] is None
    assert row_lines(rows)[-1].split("|")[-2].strip() == ""


def test_goals_are_judged_by_the_rows_that_are_there(monkeypatch):
    goals = (
        Goal("s", "g", "khop", "peer", 10),
        Goal("s", "g", "khop", "slow peer", 10),
        Goal("s", "g", "khop", "absent peer", 10),
        Goal("s", "g", "khop", None, 1.5, False, "ms"),
        Goal("s", "g", "absent", None, 1),
        Goal("another suite", "g", "khop", None, 1),
    )
    monkeypatch.setattr("khop_bench.goals.GOALS", goals)
    rows = [Row("g", name, "ms") for name in ("khop", "peer", "slow peer")]
    take_joint_turns(rows, lambda _: [Turn(2e-3), Turn(18e-3), Turn(20e-3)], 1)
    found = standings({"s": rows})
    assert [s.measured for s in found] == pytest.approx([9, 10, None, 2, None])
    assert [s.verdict for s in found] == ["missed", "met", "not measured", "missed", "not measured"]
    assert found[0].to_json()["bound"] == 10


def test_shares_and_rates_are_compared_undivided():
    """Shares in percent, and rates: the work they are for divides them, whatever their unit."""
    share, rate = Row("x", "a", "%"), Row("y", "b", "G/s")
    share.add(Turn(0.25))
    rate.add(Turn(4e9, 2))
    assert (share.values, share.per_work) == ([25.0], [25.0])
    assert (rate.values, rate.per_work) == ([4.0], [2.0])


def test_failed_case_is_reported_and_others_run(tmp_path):
    said = []
    bench = Bench(Settings(cache=tmp_path), Graphs(tmp_path, 0.05), Peers(), said.append)
    with bench.survives("first"):
        raise ValueError("broken")
    with bench.survives("second"):
        pass
    assert bench.failed == bench.left_out == ["first failed: ValueError: broken"]
    assert "Traceback" in said[0]
