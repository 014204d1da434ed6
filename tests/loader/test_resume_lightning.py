"""Lightning's own checkpoints take loaders along: training goes on in the middle of an epoch."""

import pytest
import torch
from torch_geometric.data import Data

from khop.loader import NeighborLoader

lightning = pytest.importorskip("lightning")

_NUM_NODES = 100


def make_loader(seed, num_workers):
    generator = torch.Generator().manual_seed(4)
    edges = torch.randint(_NUM_NODES, (2, 500), generator=generator)
    data = Data(x=torch.rand(_NUM_NODES, 4, generator=generator), edge_index=edges)
    return NeighborLoader(
        data, [3, 2], batch_size=10, shuffle=True, seed=seed, num_workers=num_workers
    )


class Model(lightning.LightningModule):
    """Keeps what it has seen: each batch's nodes, and its loss."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch.x).pow(2).mean()
        self.seen.append((self.current_epoch, batch_idx, batch.n_id.tolist(), float(loss)))
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


def train(folder, loader, checkpoint=None):
    """Trains three epochs; keeps a checkpoint of every fifth step. What the model has seen."""
    keep = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, "{step}", every_n_train_steps=5, save_top_k=-1
    )
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[keep],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_checkpoints_of_lightning(tmp_path, num_workers):
    """The steps after one in the middle of an epoch, batches and losses, are those without a stop.

    After one that was written with an epoch's last batch the next epoch follows. (Lightning counts
    the empty rest as an epoch, as it does with torchdata's loader.)
    """
    whole = train(tmp_path / "whole", make_loader(3, num_workers))
    assert len(whole) == 30
    for steps in (5, 15, 25, 10):
        torch.manual_seed(99)
        loader = make_loader(3, 2 - num_workers)
        rest = train(tmp_path / "rest", loader, tmp_path / "whole" / f"step={steps}.ckpt")
        if steps % 10:
            assert rest == whole[steps:], steps
    assert [step[1:] for step in rest] == [step[1:] for step in whole[10:20]]
