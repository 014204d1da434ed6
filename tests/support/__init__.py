"""What tests share: references, graphs, programs of children, readers of formats.

- `reference`: brute-force references, which use nothing of khop, and statistics of draws.
- `kernels`: random batches for kernels, the ways to draw them, tables between guarded pages.
- `devices`: devices that kernels are tested on, and arrays in their memory.
- `loaders`: random graphs and options for loaders, links.
- `cluster`: trainers, graph servers and clients in processes of their own, their faults, and
  in-memory twins of their loaders.
- `fuzz`: what `scripts/fuzz` damages and reads.
- `formats`: readers of what khop writes, writers of what it reads.
- `levels`: which tests start processes, and what keeps the others from it.
- `processes`: how a test starts a program among these modules.
- `script_modules`: the programs of `scripts` as modules.
"""
