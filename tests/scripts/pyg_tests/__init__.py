"""PyG's own tests with khop in PyG's place: `python tests/scripts/pyg_tests --checkout DIR`.

`swap` is a pytest plugin that puts khop under PyG's names, `left_out` has the tests that do not
concern khop, with the reasons, and `__main__` runs the files and prints a table.
"""
