"""How batches and requests travel between processes. Imports no torch."""
