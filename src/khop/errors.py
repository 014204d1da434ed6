"""Exceptions that khop raises in addition to Python's. Any process, no torch."""

from __future__ import annotations


class KhopError(Exception):
    """Base of khop's own exceptions."""


class FolderError(KhopError, ValueError):
    """A partition folder is missing, damaged, of another version, or not the expected folder."""


class RowStoreError(KhopError, RuntimeError):
    """A row store was closed, delivered no rows in time, or its module cannot be imported."""


class ProtocolError(KhopError):
    """A process sent a message that does not follow khop's protocol."""


class PartitionUnavailableError(KhopError, ConnectionError):
    """The server of a partition cannot be reached."""


class StateLostError(KhopError, RuntimeError):
    """A server restarted, or dropped this client's state: values that requests wrote are lost.

    Writes in flight may have been applied or not. No value of the server's new state is returned
    before the client has accepted the loss, see `accept_state_loss`.

    Example:
        >>> try:
        ...     raise StateLostError("partition 1 has been restarted")
        ... except KhopError as error:
        ...     print(error)
        partition 1 has been restarted
    """


class SamplerDiedError(KhopError, RuntimeError):
    """A sampler process ended before it had made all its batches, more often than allowed."""


class TaskDiedError(KhopError, RuntimeError):
    """A partitioning task died with its machine or for lack of memory, and no retry is left."""


class RendezvousError(KhopError, RuntimeError):
    """The trainers of a job have different settings, or one of them did not connect in time."""


class SecurityError(KhopError, RuntimeError):
    """An operation is unsafe: keys are missing, or other users can read or change files."""


class PluginError(KhopError, ImportError):
    """A plugin that the user named cannot be imported, or several packages have this name."""
