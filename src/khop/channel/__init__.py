"""Transport of batches and requests between processes: shared memory, sockets, binary formats.

Used by trainers, samplers, receivers and servers. Imports no torch.

`arena` and `device_arena` are shared memory with slots, `layout` is the format of a batch in a
slot. `control` is the socket between a trainer and the processes that it started. `message` is the
format of messages between machines, and `bundle` of several in one buffer. `shared` is read-only
arrays for several processes. `pool` is reused memory of one process.
"""
