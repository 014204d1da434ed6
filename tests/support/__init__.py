"""Modules that tests share: references, graphs, programs of child processes, readers of formats.

- `reference`: brute-force references, which use nothing of khop, and statistics of draws.
- `kernels`: random batches for kernels, the ways to draw them, tables between guarded pages.
- `devices`: devices on which kernels are tested, and arrays in their memory.
- `loaders`: random graphs and options for loaders, links.
- `cluster`: trainers, graph servers and clients in separate processes, and their faults.
- `cluster.twins`: in-memory loaders that make the same batches as distributed ones.
- `fuzz`: inputs that `scripts/fuzz` damages and reads.
- `formats`: readers of files that khop writes, writers of files that it reads.
- `levels`: which tests start processes, and a guard that keeps the others from it.
- `processes`: how a test starts a program of these modules.
- `script_modules`: the programs of `scripts` as modules.
"""
