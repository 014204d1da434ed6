"""The example of machines that come and go: each seed once. `test_elastic` changes their number."""

import re

import torch

from khop.storage.folder import PartitionFolder


def test_epochs_of_two_and_of_one(run_example, debian_parts, tmp_path):
    """Two trainers make an epoch. One goes on from the checkpoint with the next."""
    num_seeds = len(PartitionFolder(debian_parts).split("node", "train_mask"))
    arguments = ("--parts", debian_parts, "--checkpoints", tmp_path / "checkpoints")
    arguments = (*arguments, "--batch-size", 128, "--hidden", 16)
    for trainers, epochs in ((2, 1), (1, 2)):
        said = run_example("elastic.py", *arguments, "--epochs", epochs, trainers=trainers)
        found = re.findall(r"(\d+) steps by (\d) trainers; (\d+) seeds, (\d+) twice", said)
        assert len(found) == epochs  # it reports the saved one, too
        _, made_by, seeds, twice = found[-1]
        assert (int(made_by), int(seeds)) == (trainers, num_seeds)
        assert int(twice) <= (trainers - 1) * 128
    assert torch.load(tmp_path / "checkpoints" / "newest.pt")["steps"]
