"""Measured durations of tests, in seconds, by which slow tests are started first.

`durations.txt` beside this module has a line for each test function whose slowest case took `SLOW`
seconds or more, with the seconds of all its cases, on two cores and beside other tests.
`scripts/test --write-durations` writes it anew, at the end of a run of all tests.
"""

from collections import defaultdict
from functools import cache
from pathlib import Path

SLOW = 0.12
_TABLE = Path(__file__).with_suffix(".txt")


def function_of(test):
    """Return the name of a test's function: its id without parameters."""
    return test.partition("[")[0]


@cache
def measured():
    """Return {function: seconds of all its cases} of the slow functions in the table."""
    lines = map(str.split, _TABLE.read_text().splitlines())
    return {function: float(seconds) for seconds, function in lines}


class Recorder:
    """Pytest plugin that writes the table when the session ends."""

    def __init__(self):
        self._seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        """Add the duration of a test's setup, call or teardown."""
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        """Write the functions in the order of their names."""
        cases = defaultdict(list)
        for test, seconds in self._seconds.items():
            cases[function_of(test)].append(seconds)
        slow = [(name, sum(each)) for name, each in sorted(cases.items()) if max(each) >= SLOW]
        _TABLE.write_text("".join(f"{seconds:.1f} {name}\n" for name, seconds in slow))
