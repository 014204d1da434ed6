"""Faults that are put into a copy of the kernels, to see that tests find them."""
