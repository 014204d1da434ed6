"""Readers and writers of file formats and pages, for tests."""
