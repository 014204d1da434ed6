"""Sampling with the kernels of a device: the `engine`, and the batch in its memory (`collect`).

Runs in trainers and samplers. Imports no torch: `khop.sampler.pyg.device_drawer` has torch's side.
"""
