"""The example of going on after a trainer's death: no loss differs in one digit."""

import re

import pytest


@pytest.mark.fault
@pytest.mark.timeout(400)
def test_a_trainer_dies_in_the_middle_of_an_epoch(run_example, debian_parts, tmp_path):
    """Eleven batches an epoch; it dies in the second, four batches after a checkpoint."""

    def run(name, *more):
        where = ("--parts", debian_parts, "--checkpoints", tmp_path / name)
        sizes = ("--epochs", 2, "--batch-size", 128, "--hidden", 32, "--every", 5)
        return run_example("resume.py", *where, *sizes, *more, trainers=2, max_restarts=2)

    whole = run("whole")
    curve = re.findall(r"epoch \d: losses [\d. ]+", whole)
    num_batches = len(curve[0].split()) - 3
    assert len(curve) == 2 and num_batches > 10
    die_at = (num_batches // 5 + 1) * 5 + 4
    assert num_batches < die_at < 2 * num_batches
    again = run("killed", "--die-at", die_at)
    assert f"resuming from checkpoint step-{die_at - 4}" in again
    assert re.findall(r"epoch \d: losses [\d. ]+|test accuracy: .*", again) == [
        *curve,
        *re.findall(r"test accuracy: .*", whole),
    ]
    assert len(list((tmp_path / "killed").iterdir())) == 2  # the newest checkpoint, and its name
