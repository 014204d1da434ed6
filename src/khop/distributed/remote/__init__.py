"""Graph servers, and trainers ("clients") that load no partition themselves.

`server` runs in graph servers and imports no torch. `client` runs in trainers and their receivers.
Both use `messages`, `session_messages`, `addresses` and `directory_client`, which import no torch.
`launch` has `init_server`.

A *graph server* (`server.main`, `khop serve`) answers the partition requests of other servers'
samplers as a partition server does, and runs sampler processes for clients. Server 0, at the
well-known address, also has the *directory*: servers with their partitions and addresses, clients,
and the values that clients publish. The directory is soft state: all processes register again every
second. So any server, server 0 included, can be restarted, at the same address or another.

A client's loader runs a `SamplerPool` as loaders without graph servers do. Its processes are
*receivers* (`client.receiver`): they request batches from graph servers and write them into the
trainer's arena. The trainer uses receivers and samplers through the same interface. In this
diagram, `line` is a control line: a socket for requests and notices.

    trainer <- arena, line -> receiver <- ZeroMQ -> graph server <- arena, line -> sampler

A client on the machine of its servers needs no receiver: the servers start samplers that write into
its arenas (`server.local_clients` and `client.local_sampler`).

Messages are a JSON header and arrays, as `khop.channel.message` packs them. The header of a request
has `op`, `protocol` and `id`, an integer that the sender chooses. The reply has the same `id`, and
`error` ({'type', 'message'}) if the request was refused. Requests are idempotent, so that they can
be sent again after a reconnection.

The rights of a sender follow from its connection (`rpc.identity`): its key, or its user on this
machine. Only the connection that opened a session last can send requests for it. Others get an
`error` of type 'LookupError' with the name, `session`, and must open the session first.

`docs/protocol.md` has the list of requests, and the configuration of receivers.
"""
