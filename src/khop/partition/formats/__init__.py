"""Folders of other systems, and khop's own folder as input of a partitioner.

Imports no torch.
"""
