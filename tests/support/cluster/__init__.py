"""Trainers, graph servers and clients of tests, in processes of their own."""
