"""Targets of `scripts/fuzz`, and damage to their inputs."""
