"""Table of GLT's example scripts: data, edits, command lines, figures that they must reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edits import Edit

import data


@dataclass(frozen=True)
class Example:
    """A script of GLT's, and what it needs to run here.

    Attributes:
        name: name of the run.
        folder: folder of its scripts, below `examples`.
        steps: command lines: those of one step run at the same time, steps one after another.
        makes: writers of its data.
        figure: pattern of a figure that it prints; the last one counts. None: it prints none.
        least: least value of the figure: above chance.
        most: greatest value of the figure, for losses.
        edits: (script, edits) besides those of `edits.IMPORT` and `edits.CPU`.
        output: file, below its folder, that it prints to, too.
    """

    name: str
    folder: str
    steps: tuple[tuple[str, ...], ...]
    makes: tuple[Callable[[Path], None], ...] = ()
    figure: str | None = None
    least: float = 0.0
    most: float = float("inf")
    edits: tuple[tuple[str, tuple[Edit, ...]], ...] = ()
    output: str | None = None


def _epochs(last: int) -> Edit:
    """Return an edit that shortens a script's loop over epochs."""
    return r"for epoch in range\(1, \d+\)", f"for epoch in range(1, {last + 1})"


# An argument that PyG has dropped.
_HGT: Edit = (r", group='sum'", "")


def _small(script: str, last: int, *edits: Edit) -> tuple[tuple[str, tuple[Edit, ...]], ...]:
    return ((script, (_epochs(last), *edits)),)


_PARTITION = (("partition_ogbn_dataset.py --root_dir=../../data/products",),)
_TRAINER = (
    "dist_train_sage_supervised.py --node_rank={} --epochs=6 --batch_size=128 "
    "--training_pg_master_port=21111 --train_loader_master_port=21112 "
    "--test_loader_master_port=21113"
)
_CLIENT = "sage_supervised_client.py --node_rank={} --epochs=6 --batch_size=128"
_LINKS = (
    "dist_sage_unsup.py --dataset=links --dataset_root_dir=../../../data/links --in_channel=16 "
    "--epochs=11 --batch_size=256 --with_weight --node_rank={}"
)
_IGBH = "--dataset_size=tiny --num_classes=19"
_RGNN = (
    f"{_IGBH} --in_memory=1 --model={{}} --fan_out=5,5 --num_layers=2 --hidden_channels=32 "
    "--num_heads=2 --learning_rate=0.02 --train_batch_size=128 --val_batch_size=64 --epochs=3 "
    "--evaluate_on_epoch_end --validation_acc=0.99 --validation_frac_within_epoch=1"
)
_RGNN_NODES = tuple(
    f"dist_train_rgnn.py {_RGNN} --cpu_mode --train_channel_size=64MB --val_channel_size=64MB "
    f"--with_trim --node_rank={rank}"
    for rank in range(2)
)
_SEEDS = f"split_seeds.py {_IGBH} --validation_frac=0.1"
# The download's sizes are in the scripts.
_IGBH_SIZES: tuple[Edit, ...] = ((r"'tiny':100000", "'tiny':2000"),)
_IGBH_EDITS = (
    ("split_seeds.py", _IGBH_SIZES),
    ("dataset.py", _IGBH_SIZES),
)
_MLPERF = r"eval_accuracy (\d\.\d+)"
_ACCURACY = r"Val: (\d\.\d+)"

EXAMPLES = (
    Example(
        "train_sage_ogbn_products",
        ".",
        (("train_sage_ogbn_products.py",),),
        (data.products,),
        r"Final Test: (\d\.\d+)",
        0.4,
        edits=_small(
            "train_sage_ogbn_products.py",
            8,
            (r"from torch_geometric.loader import", "from layers import"),
        ),
    ),
    Example(
        "train_sage_prod_with_trim",
        ".",
        (("train_sage_prod_with_trim.py",),),
        (data.products,),
        r"Loss: (\d+\.\d+)",
        most=2.5,
    ),
    Example("feature_mp", ".", (("feature_mp.py",),)),
    Example(
        "graph_sage_unsup_ppi",
        ".",
        (("graph_sage_unsup_ppi.py",),),
        (data.ppi,),
        r"Test F1: (\d\.\d+)",
        0.6,
        edits=_small("graph_sage_unsup_ppi.py", 2),
    ),
    Example(
        "seal_link_pred",
        ".",
        (("seal_link_pred.py",),),
        (data.cora,),
        r"Test: (\d\.\d+)",
        0.8,
        edits=_small("seal_link_pred.py", 8),
    ),
    Example(
        "hetero/train_hgt_mag",
        "hetero",
        (("train_hgt_mag.py",),),
        (data.mag,),
        _ACCURACY,
        0.5,
        edits=_small("train_hgt_mag.py", 5, _HGT),
    ),
    Example(
        "hetero/train_hgt_mag_mp",
        "hetero",
        (("train_hgt_mag_mp.py",),),
        (data.mag,),
        _ACCURACY,
        0.5,
        edits=_small("train_hgt_mag_mp.py", 5, _HGT),
    ),
    Example(
        "hetero/hierarchical_sage",
        "hetero",
        (("hierarchical_sage.py",),),
        (data.mag,),
        _ACCURACY,
        0.5,
    ),
    Example(
        "hetero/bipartite_sage_unsup",
        "hetero",
        (("bipartite_sage_unsup.py",),),
        (data.taobao,),
        r"Test: (\d\.\d+)",
        0.6,
        edits=(("bipartite_sage_unsup.py", ((r"batch_size=2048", "batch_size=256"),)),),
    ),
    Example(
        "multi_gpu/train_sage_ogbn_papers100m",
        "multi_gpu",
        (("train_sage_ogbn_papers100m.py",),),
        (data.papers,),
        r"Loss: (\d+\.\d+)",
        most=4.5,
    ),
    Example("gpt/arxiv", "gpt", (("arxiv.py",),), (data.arxiv,)),
    Example(
        "distributed/dist_train_sage_supervised",
        "distributed",
        (*_PARTITION, (_TRAINER.format(0), _TRAINER.format(1))),
        (data.products,),
        r"Test Accuracy: (\d\.\d+)",
        0.4,
        output="dist_sage_sup.txt",
    ),
    Example(
        "distributed/server_client_mode",
        "distributed",
        (
            *_PARTITION,
            (
                "server_client_mode/sage_supervised_server.py --node_rank=0",
                "server_client_mode/sage_supervised_server.py --node_rank=1",
                f"server_client_mode/{_CLIENT.format(0)}",
                f"server_client_mode/{_CLIENT.format(1)}",
            ),
        ),
        (data.products,),
        r"Test Accuracy: (\d\.\d+)",
        0.4,
        edits=(
            (
                "server_client_mode/sage_supervised_client.py",
                # A machine without GPUs has none to count.
                ((r"num_workers=server_device_count", "num_workers=1"),),
            ),
        ),
    ),
    Example(
        "distributed/dist_sage_unsup",
        "distributed/dist_sage_unsup",
        (
            ("preprocess_template.py --dataset_name=links --dst_path=../../../data/links",),
            (_LINKS.format(0), _LINKS.format(1)),
        ),
        figure=r"Test AUC: (\d\.\d+)",
        least=0.55,
        edits=(
            (
                "preprocess_template.py",
                (
                    (r"^import graphlearn_torch", "from links import Links\n\\g<0>"),
                    (r"data = FakeDataset\(", "data = Links("),
                ),
            ),
            ("dist_sage_unsup.py", ((r"lr=1e-5", "lr=0.003"),)),
        ),
    ),
    Example(
        "igbh/train_rgnn_multi_gpu",
        "igbh",
        ((_SEEDS,), (f"train_rgnn_multi_gpu.py {_RGNN.format('rsage')}",)),
        (data.igbh,),
        _MLPERF,
        0.4,
        edits=_IGBH_EDITS,
    ),
    Example(
        "igbh/train_rgnn_multi_gpu, CSC and fp16",
        "igbh",
        (
            (_SEEDS,),
            ("compress_graph.py --dataset_size=tiny --layout=CSC --use_fp16",),
            (f"train_rgnn_multi_gpu.py {_RGNN.format('rgat')} --layout=CSC --use_fp16",),
        ),
        (data.igbh,),
        _MLPERF,
        0.4,
        edits=_IGBH_EDITS,
    ),
    Example(
        "igbh/dist_train_rgnn",
        "igbh",
        (
            (_SEEDS,),
            (f"partition.py {_IGBH} --in_memory=1",),
            tuple(command.format("rsage") for command in _RGNN_NODES),
        ),
        (data.igbh,),
        _MLPERF,
        0.4,
        edits=_IGBH_EDITS,
    ),
    Example(
        "igbh/dist_train_rgnn, features apart",
        "igbh",
        (
            (_SEEDS,),
            (f"partition.py {_IGBH} --with_feature=0 --edge_assign_strategy=by_dst",),
            tuple(
                f"build_partition_feature.py --dataset_size=tiny --partition_idx={i} --use_fp16"
                for i in range(2)
            ),
            tuple(c.format("rgat") + " --edge_dir=in --precision=fp16" for c in _RGNN_NODES),
        ),
        (data.igbh,),
        _MLPERF,
        0.4,
        edits=(
            *_IGBH_EDITS,
            # 1e-8, Adam's default, is 0 in half precision: its steps are not numbers.
            ("dist_train_rgnn.py", ((r"lr=learning_rate\)", "lr=learning_rate, eps=1e-4)"),)),
        ),
    ),
    Example(
        "pai/data_preprocess",
        "pai/ogbn_products",
        (("data_preprocess.py",),),
        (data.products,),
    ),
)

NOT_RUN = {
    "pai/ogbn_products/{train_products_sage,dist_train_products_sage}": "read tables of Alibaba's "
    "PAI through its package common_io",
    "distributed/run_dist_train_sage_sup": "starts the supervised example on other machines by ssh",
    "igbh/download": "downloads IGBH",
}
"""Scripts of GLT's that need a service or a network: why they are not run."""
