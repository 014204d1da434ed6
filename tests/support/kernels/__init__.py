"""Graphs, batches and tables for tests of kernels."""
