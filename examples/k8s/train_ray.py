"""`train.py` in workers of Ray Train. The trainers are actors, each in a pod of the RayJob.

python examples/k8s/train_ray.py --num-workers 2 -- --parts /data/parts --epochs 1
"""

import argparse

from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from train import train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--num-workers", type=int, default=2)
parser.add_argument("--cpus", type=float, default=7, help="of each trainer")
parser.add_argument("words", nargs="*", help="arguments of train.py")
args = parser.parse_args()
TorchTrainer(
    lambda config: train(config["words"]),
    train_loop_config={"words": args.words},
    scaling_config=ScalingConfig(
        num_workers=args.num_workers, resources_per_worker={"CPU": args.cpus}
    ),
).fit()
