"""Graph servers, and trainers ("clients") that load no partition themselves.

`server` runs in graph servers and imports no torch. `client` runs in trainers and their receivers.
Both use the messages, `addresses` and `directory_client`, which import no torch. `launch` has
`init_server`.

A *graph server* (`server.main`, `khop serve`) answers the partition requests of other servers'
samplers as a partition server does, and runs sampler processes for clients. Server 0, at the
well-known address, also has the *directory*: servers with their partitions and addresses, clients,
and the values that clients publish. The directory is soft state: all processes register again every
second, so any server may die and come back, server 0 included, at the same address or another.

A client's loader runs the same `SamplerPool` as in worker mode, but its processes are *receivers*
(`client.receiver`): they request batches from graph servers and write them into the trainer's arena
as they arrive. For the trainer they are samplers: order, restarts, kept batches and errors are the
same code.

    trainer <- arena, line -> receiver <- ZeroMQ -> graph server <- arena, line -> sampler

A client on the machine of its servers needs no receiver: the servers start samplers that write into
its arenas (`server.local_clients` and `client.local_sampler`).

What is said
============
Requests, replies and events are the dataclasses of `directory_messages`, `session_messages` and
`graph_messages` (and, to a partition, of `khop.distributed.rpc.protocol`): a JSON header and
arrays, as `khop.channel.message` packs them. The header of a request has `op`, `protocol` and `id`,
an integer of the asker's choice; the reply has the same `id`, and `error` ({'type', 'message'}) if
it was refused. Requests are only ever named; those names are all there are. They may be repeated:
each says all that its answer depends on.

Who may ask what follows from the connection (`rpc.identity`): its key, or its user here.
A request for a session that the server does not have, or that another connection has opened, is
refused with `error` of type 'LookupError' and `session`: open it again.

A receiver's configuration
==========================
JSON of Op.CONFIG; its first descriptor is the arena, then `share()`d arrays if `has_arrays`.

    number          which receiver of its loader
    master          {'address': 'tcp://HOST:PORT', 'server_key': text or null} of server 0; all
                    servers have the same key
    credentials     {'public', 'secret'} or null
    servers         ranks, in order of preference. Batches of an epoch go to the least busy of them,
                    those of a lost one to the others; but if its plan has lists of seeds, those of
                    list i to server i of these and nowhere else
    session         `session_messages.SessionSpec` but for what receivers know themselves, and
                    'loader', hex text: sessions are called 'loader/number'
    schema          `BatchSchema`: what batches are checked against
    depth           batches that may be asked for at a time
    batch_limit     bytes of a batch; a larger one fails
    timeout         seconds without any progress after which a batch fails with
                    PartitionUnavailableError, or ProtocolError if its server has sent nonsense
    has_arrays      whether weights of negatives come along

`SamplerPool` adds `device` and `device_arena`, which receivers ignore.
"""
