"""Samplers with PyG's interface, for graphs that users pass.

Runs in trainers and in torch's worker processes, and imports torch. `neighbor` has the sampler,
over `base`. `source`, `edges` and `stores` read users' graphs. `drawer` draws. `links` and `output`
convert inputs and outputs. `device` and `streams` do so on GPUs. `draw_scope` has what a sampler
knows of its loader, `random_walks` has `random_walk`.
"""
