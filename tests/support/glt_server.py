"""Graph server with a part of arrays and splits. Arguments: rank, port. Clients come and go."""

import pickle
import sys

import torch

from khop import glt
from support.glt_parts import NUM, part_of_arrays


def main() -> None:
    """Serve until client 0 has left."""
    rank = int(sys.argv[1])
    made = part_of_arrays(rank)
    own = torch.arange(rank, NUM, 2)
    made.init_node_split((own[:10], own[10:15], own[15:]))
    dataset = pickle.loads(pickle.dumps(made))  # as processes that scripts start have it
    glt.distributed.init_server(2, rank, dataset, "127.0.0.1", sys.argv[2], is_dynamic=True)
    glt.distributed.wait_and_shutdown_server()


if __name__ == "__main__":
    main()
