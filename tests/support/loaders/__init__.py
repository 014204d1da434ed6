"""Graphs and options for tests of samplers and loaders."""
