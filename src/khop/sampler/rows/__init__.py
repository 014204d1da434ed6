"""Rows of attributes of a drawn batch: `row_fetcher` locates them, `collect` writes the batch.

Runs in trainers, samplers and inference. Imports no torch.
"""
