"""Folders of other systems and of khop's earlier versions, converted. Imports no torch."""
