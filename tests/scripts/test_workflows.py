"""What builds and publishes a release is pinned: actions by commit, packages by hash."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not WORKFLOWS, reason="source distributions have no workflows"),
]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_commits_and_packages_come_from_one_index(file):
    """A tag or a branch may mean something else tomorrow; the comment says what it was."""
    text = file.read_text()
    used = re.findall(r"uses: *(.*)", text)
    assert used
    for action in used:
        assert re.match(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+\b", action), action
    assert "EXTRA_INDEX" not in text


def test_what_builds_a_wheel_has_a_hash():
    lines = (ROOT / "scripts" / "build_requirements.txt").read_text().replace("\\\n", " ")
    packages = [line for line in lines.splitlines() if line and not line.startswith("#")]
    names = {re.match(r"[\w-]+", line)[0] for line in packages}
    for line in packages:
        assert re.match(r"[\w-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}", line), line
    project = (ROOT / "pyproject.toml").read_text()
    (required,) = re.findall(r"^requires = \[(.*)\]$", project, re.M)
    assert set(re.findall(r'"([\w-]+)', required)) <= names
    assert "--require-hashes" in project
