"""Graph servers, and trainers ("clients") that load no partition themselves. Imports no torch.

A *graph server* (`program`, `khop serve`) answers the partition requests of other servers' samplers
as a partition server does, and runs sampler processes on clients' behalf. Server 0, at the
well-known address, also keeps the *directory*: who serves what, where; who the clients are; what
they tell each other. The directory is soft state: everybody registers again every second, so any
server may die and come back, server 0 included, at the same address or another.

A client's loader runs the same `SamplerGroup` as in worker mode, but its processes are *receivers*
(`receiver`): they ask graph servers for batches and write them into the trainer's ring as they
arrive. To the trainer they are samplers: order, restarts, kept batches and errors are the same
code.

    trainer <- ring, line -> receiver <- ZeroMQ -> graph server <- ring, line -> sampler

A client on the machine of its servers needs no receiver: they start samplers that write into its
rings themselves (`hosting`, on the server's side; `nearby`, on the client's).

Messages
========
All are frames of `khop.channel.message.pack`: a JSON header and arrays. A request's header has
`op`, `protocol` (`khop.distributed.wire.PROTOCOL`) and `id`, an integer of the asker's choice. The
reply has the same `id`, and `error` ({'type', 'message'}) if it was refused. Requests are only ever
named; the names below are all there are. Requests may be repeated: each says all that its answer
depends on.

Directory (server 0):

    register    role 'server': rank, incarnation, num_servers, num_clients, parts, addresses
                {'tcp': .., 'ipc': ..}, host, fingerprint, digest, pid, gone
                role 'client': rank, incarnation, num_servers, num_clients, name, pid
                -> what `lookup` gives. Every second; who is silent for longer is taken for lost.
    lookup      -> directory (its incarnation), num_servers, num_clients, num_parts, fingerprint,
                servers {rank: {incarnation, parts, addresses, host, pid, silent}}, clients {rank:
                {incarnation, name, pid, silent, gone}}, finished (all clients have come and gone).
                `silent`: seconds since it was heard of. Ranks are strings, as JSON has it.
    tell        rank, name, value (JSON, 64 KiB): what a client publishes
    hear        name, ranks, wait (seconds, at most 10) -> told {rank: value}, as soon as all are
                there or when the time is over
    goodbye     role, rank, incarnation

About the graph (every server); replies hold at most `answers.MAX_ROWS` rows, so ask in pieces:

    graph           -> uint8, JSON {'meta': `FolderMeta`, labels included as attribute 'y',
                    'fingerprint', 'root', 'rank', 'parts'}
    to_new_ids      node_type (index); ids, int64 -> new ids
    to_original_ids node_type; new ids -> original ids
    node_times      node_type; new ids -> int64 keys of their times
    split           node_type, name, begin -> [total], new ids (ascending), their original ids
    home_edges      edge_type (index), partition, begin, end, step -> [2, n] original ids of sources
                    and destinations of edges begin, begin + step, ... < end of the partition's
    device_count    -> [number of CUDA devices]
    sample, induce, has_edges, fetch (with `part`): see `khop.distributed.handler`

About the server:

    statistics      -> statistics: `ServerCounters.snapshot()`
    ping            -> rank, incarnation

Sessions: what a client's loader has on a server.

    open        session (`loader/number`), client, pipeline, num_workers, buffer_bytes, concurrency,
                depth (batches that may be asked for at a time), worker_devices, max_restarts,
                timeout, credits (bytes that may be on their way), outstanding (ids of batches that
                are still wanted; all others are dropped), names (of the arrays that follow: weights
                of negatives) -> batches held. Opening a session again moves it to this connection.
    batch       session, id, batch (its number), run_key; [num_columns, n] int64 columns.
                No reply, but what follows.
    cancel      session, ids: those batches are not wanted any more. No reply.
    ack         session, bytes: so many more may be sent. No reply.
    alive       session: every second -> made (batches, so far), waiting_for (text or null).
                A session that is silent for 10 s ends.
    close       session -> nothing. Ends it.

What a server says of a session, unasked; `event` instead of `id`:

    layout      session, number, layout (`Layout.to_json`): before the first batch of it
    chunk       session, batch_id, offset, nbytes (of the batch), layout, extras (or null; with the
                last chunk); one frame of bytes, that begin at `offset`. Chunks of a batch come in
                order, 1 MiB each but the last.
    failed      session, batch_id, error {'type', 'message', 'traceback'}

A request for a session that the server does not have is refused with `error` of type 'LookupError'
and `session`: open it again.

A receiver's configuration
==========================
JSON of Op.CONFIG; its first descriptor is the ring, then `share()`d arrays if `has_arrays`.

    number          which receiver of its loader
    master          {'address': 'tcp://HOST:PORT', 'server_key': text or null} of server 0; all
                    servers have the same key
    credentials     {'public', 'secret'} or null
    servers         ranks, in order of preference. Batches of an epoch go to the least busy of them,
                    those of a lost one to the others; but if its plan has lists of seeds, those of
                    list i to server i of these and nowhere else
    session         {'loader': hex text, 'client': name, 'pipeline': `PipelineSpec.to_json()`,
                    'num_workers', 'buffer_bytes', 'concurrency', 'worker_devices': list or null,
                    'max_restarts'}
    schema          `BatchSchema`: what batches are checked against
    depth           batches that may be asked for at a time
    timeout         seconds without any progress after which a batch fails with
                    PartitionUnavailableError, or ProtocolError if its server has sent nonsense
    has_arrays      whether weights of negatives come along

`SamplerGroup` adds `device` and `slab`, which receivers ignore.
"""
