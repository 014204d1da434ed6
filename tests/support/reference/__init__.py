"""Brute-force references in plain Python, and statistics of draws."""
