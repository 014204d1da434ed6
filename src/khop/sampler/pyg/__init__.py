"""Samplers with PyG's interface, for graphs that users pass.

Runs in trainers and in torch's worker processes, and imports torch. `neighbor` has the sampler,
over `base`. `source`, `edges` and `stores` read users' graphs. `links` converts inputs of links.
`output` draws and converts outputs, `device_drawer` does so on GPUs, over `device`. `draw_scope`
connects a sampler with its loader's batch, `random_walks` has `random_walk`.
"""
