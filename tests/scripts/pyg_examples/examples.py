"""Table of PyG's examples that draw neighbours: how each is run, and what it has to reach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """One run of a script.

    Attributes:
        script: path below `examples/`.
        reaches: pattern of the figure to judge by, in the script's output; the last match counts.
        at_least: what the figure has to reach.
        at_most: or what it has to fall to, if it is an error.
        arguments: those of the command line.
        edits: further changes of the text, beside imports: each pattern (a regular expression) has
            to match. `EPOCHS` shortens a run; all others say what they are for.
        gpus: it trains on GPUs, for which the CPU stands in.
        nodes: 2 if it is started as torchrun starts one process on each of two machines.
        needs: packages beyond torch, PyG and scikit-learn.
    """

    script: str
    reaches: str
    at_least: float = 0.0
    at_most: float = float("inf")
    arguments: tuple[str, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    gpus: bool = False
    nodes: int = 1
    needs: tuple[str, ...] = ()


def epochs(last: int) -> tuple[str, str]:
    """Return the edit that ends training after epoch `last`."""
    return (r"for epoch in range\(1, \d+\)", f"for epoch in range(1, {last + 1})")


TEST = r"[Tt]est(?: F1| acc)?: (\d\.\d+)"
VAL = r"Val(?: Acc)?: (\d\.\d+)"
PERCENT = r"Test Accuracy: (\d+\.\d+)%"
# Batches are larger than the stand-ins are: smaller ones make more steps an epoch.
SMALL = (r"(batch_size'?[=:] ?)(1024|2048)", r"\g<1>128")
OGB_SIZES = ("--num_workers=2", "--hidden_channels=32", "--batch_size=128")
OGB_SIZES += ("--lr=0.01", "--dropout=0.2")
# The device is a name here, which nothing but an edit changes.
LIGHTNING = (
    (r"SingleDeviceStrategy\('cuda:0'\)", "SingleDeviceStrategy('cpu', accelerator='cpu')"),
    (r"max_epochs=20", "max_epochs=4"),
    SMALL,
)
# It has no figure of its own: the accuracy of its last batch.
PRINTED = (
    r"( +)loss\.backward\(\)",
    r"\1loss.backward()\n\1print('Train:', "
    r"f'{(out.argmax(1) == y).float().mean():.4f}')",
)

EXAMPLES = [
    Example(
        "cluster_gcn_ppi.py",
        TEST,
        at_least=0.8,
        edits=(epochs(8), (r"num_parts=50", "num_parts=10"), (r"channels=1024", "channels=64")),
        needs=("pymetis",),
    ),
    Example(
        "cluster_gcn_reddit.py",
        TEST,
        at_least=0.5,
        edits=(epochs(5), (r"num_parts=1500", "num_parts=60")),
        needs=("pymetis",),
    ),
    Example("graph_sage_unsup.py", TEST, at_least=0.4, edits=(epochs(12),)),
    Example("graph_sage_unsup_ppi.py", TEST, at_least=0.7, edits=(epochs(2),)),
    # It ends at once without torch-sparse, which khop's sampler does not need.
    *(
        Example(
            "graph_saint.py",
            TEST,
            at_least=0.5,
            arguments=arguments,
            edits=(
                epochs(6),
                (r"if not WITH_TORCH_SPARSE:\n +quit\(.*\)\n", ""),
                (r"batch_size=6000", "batch_size=300"),
                (r"sample_coverage=100", "sample_coverage=5"),
            ),
        )
        for arguments in ((), ("--use_normalization",))
    ),
    Example("hierarchical_sampling.py", r"Train: (\d\.\d+)", at_least=0.5, edits=(SMALL, PRINTED)),
    Example(
        "infomax_inductive.py",
        r"Test Accuracy: (\d\.\d+)",
        at_least=0.5,
        edits=(epochs(3), (r"512", "64")),
    ),
    Example(
        "ogbn_proteins_deepgcn.py",
        TEST,
        at_least=0.6,
        edits=(epochs(8), (r"num_parts=40", "num_parts=4"), (r"num_layers=28", "num_layers=4")),
    ),
    *(
        Example("ogbn_train.py", PERCENT, at_least=50, arguments=(*model, *OGB_SIZES))
        for model in (
            ("--model=sage", "--epochs=8"),
            ("--model=gat", "--epochs=8"),
            ("--model=sgformer", "--epochs=3"),
            ("--model=polynormer", "--epochs=3", "--local_epochs=2"),
        )
    ),
    Example("reddit.py", TEST, at_least=0.6, edits=(epochs(3), SMALL)),
    Example("rev_gnn.py", r"Final Test: (\d\.\d+)", at_least=0.5, edits=(epochs(15),)),
    Example("shadow.py", TEST, at_least=0.5, edits=(epochs(3), SMALL)),
    Example(
        "hetero/bipartite_sage_unsup.py",
        TEST,
        at_least=0.7,
        edits=(epochs(6), (r"batch_size=2048", "batch_size=256")),
    ),
    Example("hetero/hierarchical_sage.py", VAL, at_least=0.5, edits=(epochs(3), SMALL)),
    Example(
        "hetero/recommender_system.py",
        r"Test Precision@20: (\d\.\d+)",
        at_least=0.03,
        edits=(epochs(4),),
        needs=("faiss",),
    ),
    Example(
        "hetero/temporal_link_pred.py",
        r"Test RMSE: (\d\.\d+)",
        at_most=1.0,
        edits=(epochs(8), SMALL, (r"lr=0\.001", "lr=0.01")),
    ),
    *(
        Example(
            "hetero/to_hetero_mag.py",
            VAL,
            at_least=0.5,
            arguments=arguments,
            edits=(epochs(3), SMALL),
        )
        for arguments in ((), ("--use_hgt_loader",))
    ),
    Example(
        "pytorch_lightning/graph_sage.py",
        r"test_acc\W+(\d\.\d+)",
        at_least=0.6,
        edits=LIGHTNING,
        needs=("pytorch_lightning",),
    ),
    Example(
        "pytorch_lightning/relational_gnn.py",
        r"test_acc\W+(\d\.\d+)",
        at_least=0.5,
        edits=LIGHTNING,
        needs=("pytorch_lightning",),
    ),
    Example(
        "multi_gpu/distributed_sampling.py",
        r"Test acc: (\d\.\d+)",
        at_least=0.6,
        edits=(epochs(5), SMALL),
        gpus=True,
    ),
    Example(
        "multi_gpu/distributed_sampling_multinode.py",
        TEST,
        at_least=0.6,
        edits=(epochs(5), SMALL),
        gpus=True,
        nodes=2,
    ),
    Example(
        "multi_gpu/mag240m_graphsage.py",
        VAL,
        at_least=0.5,
        arguments=("--num_devices=1", "--num_epochs=3", "--batch_size=64", "--hidden_channels=64"),
        edits=((r"if not torch\.cuda\.is_available\(\):\n +args\.num_devices = 0\n +el", ""),),
        gpus=True,
        needs=("torchmetrics",),
    ),
    Example(
        "multi_gpu/papers100m_gcn.py",
        PERCENT,
        at_least=50,
        arguments=("--epochs=3", "--batch_size=32", "--fan_out=10"),
        gpus=True,
        needs=("torchmetrics",),
    ),
    Example(
        "multi_gpu/papers100m_gcn_multinode.py",
        PERCENT,
        at_least=0.5,
        edits=(
            epochs(5),
            (r"batch_size=1024", "batch_size=32"),
            (r"warmup_steps = 100", "warmup_steps = 10"),
            (r"torch\.device\(local_id\)", "torch.device('cpu')"),
        ),
        gpus=True,
        nodes=2,
        needs=("torchmetrics",),
    ),
    Example(
        "multi_gpu/taobao.py",
        r"Test AUC: (\d\.\d+)",
        at_least=0.6,
        arguments=("--epochs=6", "--batch_size=256", "--num_workers=2"),
        gpus=True,
    ),
]

# Examples that draw neighbours and are not run.
LEFT_OUT = {
    "multi_gpu/distributed_sampling_xpu.py": "written for Intel GPUs: it runs on a CPU once its "
    "devices are renamed by hand",
    "quiver/single_gpu_quiver.py": "needs Quiver, and a GPU",
    "quiver/multi_gpu_quiver.py": "needs Quiver, and GPUs",
    "llm/glem.py": "needs a language model from the network",
    "rdl.py": "needs RelBench, and its data from the network: with RelBench's FakeDataset it runs",
    "node2vec.py": "imports no loader: its walks are those of PyG's Node2Vec, which cannot be "
    "constructed without pyg-lib",
    "hetero/metapath2vec.py": "imports no loader: its walks are the model's, which needs no "
    "pyg-lib; MetaPath2VecLoader takes the place of model.loader",
    "distributed/kuzu/papers_100M/train.py": "needs a Kuzu database of OGB's papers",
    "distributed/graphlearn_for_pytorch/partition_ogbn_dataset.py": "see khop.glt",
    "distributed/graphlearn_for_pytorch/dist_train_sage_supervised.py": "see khop.glt",
    "pytorch_lightning/gin.py": "batches of whole graphs, LightningDataset, draw no neighbours",
    "tgn.py": "its loader of last neighbours is a part of PyG's TGN",
}
