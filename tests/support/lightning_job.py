"""Training with Lightning, which writes each trainer's batches to a file.

Arguments: partition folder, folder of results, kind of training, number of devices.
"""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer

from khop.lightning import LightningNodeData, PartitionedLinkData, PartitionedNodeData

root, out, kind, devices = *sys.argv[1:4], int(sys.argv[4])


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = {"train": [], "val": []}

    def step(self, batch, stage):
        ids = batch.input_id if kind != "links" else batch.n_id[batch.edge_label_index].T
        self.seen[stage] += ids.tolist()
        return self.layer(batch.x).mean()

    def training_step(self, batch, index):
        return self.step(batch, "train")

    def validation_step(self, batch, index):
        self.step(batch, "val")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if kind == "nodes":
    data = PartitionedNodeData(root, [2, 2], batch_size=4, seed=1)
elif kind == "memory":
    graph = torch.load(f"{out}/graph.pt", weights_only=False)
    data = LightningNodeData(graph, num_neighbors=[2, 2], batch_size=4, seed=1)
else:
    edges = torch.stack([torch.arange(40), (torch.arange(40) + 1) % 40])
    links = {"train": edges[:, :30], "val": edges[:, 30:]}
    data = PartitionedLinkData(root, [2], links, batch_size=4, seed=1)
model = Model()
trainer = Trainer(
    accelerator="cpu",
    devices=devices,
    strategy="ddp" if devices > 1 else "auto",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    use_distributed_sampler=kind == "memory",
    num_sanity_val_steps=0,
)
trainer.fit(model, data)
torch.save(model.seen, f"{out}/{trainer.global_rank}.pt")
