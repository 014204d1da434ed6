"""Checks and measurements of the CUDA half, in stages. `scripts/gpu_check` is the program.

`runner` runs a stage's commands within its time, and writes their results at once. The stages are
in `builds`, `testing`, `sanitizing` and `measuring`. These modules import neither torch nor khop,
because there is no extension before the first stage. `kernel_times` and `random_loaders` are
programs that stages run.
"""
