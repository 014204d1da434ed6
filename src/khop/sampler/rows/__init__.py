"""Rows of attributes of a drawn batch: `row_fetcher` locates them, `collect` writes the batch.

`row_fetch` has the rows of one batch in one table, on this machine or in flight. `ordered_pass`
writes wide rows from all sources in the order of the batch. `row_cache` keeps rows of other parts,
by the batches that are drawn ahead.

Runs in trainers, samplers and inference. Imports no torch.
"""
