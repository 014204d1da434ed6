"""Loaders over many machines: context, dataset, options, and the processes behind them.

Worker mode, on each machine, started by torchrun or by hand::

    trainer 0 ──┬─ partition server      serves: this machine's folder, to other machines' samplers
                ├─ sampler 0 ┐           read: the mapped folder, and other machines' servers
                └─ sampler 1 ┴─ shared memory ─> trainer 0
    trainer 1 ──┬─ sampler 0 ┐
                └─ sampler 1 ┴─ shared memory ─> trainer 1

Trainers publish addresses, keys and the partitions that they serve in torch.distributed's store
(`job.torch_store`). Samplers and servers are started with exec, import no torch, and end when their
trainer ends, however it ends. The order of teardown: iterators drop their batches, loaders end
their samplers, each trainer leaves the group. The trainer that started a server ends it when all
other trainers have left, too.

Server-client mode: graph servers (`khop serve`, or `init_server` in Python) have the folder and the
samplers. Trainers are their clients (`init_client`) and have neither::

    graph server 0 ──┬─ sampler ┐                          has the directory: all servers' addresses
                     └─ sampler ┴─ arena ─> ZeroMQ ─> receiver ─ shared memory ─> client 0
    graph server 1 ──── sampler ── arena ─> ZeroMQ ─> receiver ─ shared memory ─> client 1

Loaders and batches are the same, with `data=None` and `RemoteDistSamplingWorkerOptions`.
`khop.distributed.remote` describes this mode. Teardown: loaders end their receivers, which close
their sessions. Then clients leave, and servers end when all clients have left.
"""

from khop._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
