"""Targets of `scripts/fuzz` and how their inputs are damaged."""
