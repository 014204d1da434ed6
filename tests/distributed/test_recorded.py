"""Batches of every mode, method and kind of folder are those that were recorded, bit for bit."""

import pytest

from support import recorded
from support.cluster import twins
from support.recorded import cases


@pytest.mark.parametrize("mode", cases.MODES)
def test_batches_are_those_recorded(mode, twin_root, pytestconfig):
    found = {}
    with twins.quiet():
        for name, loader in cases.MODES[mode](twin_root):
            assert f"{mode}: {name}" not in found
            found[f"{mode}: {name}"] = recorded.summary(loader)
            if hasattr(loader, "shutdown"):
                loader.shutdown()
    if pytestconfig.getoption("write_recorded"):
        recorded.write(mode, found)
    expected = recorded.read(mode)
    assert set(found) == set(expected)
    changed = [name for name in found if found[name] != expected[name]]
    assert not changed, f"{len(changed)} of {len(found)}: {changed}"
