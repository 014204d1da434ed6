"""Reports on a cut and on folders: remote rows, comparison of methods, verification.

Imports no torch.
"""
