"""Exceptions that khop raises in addition to Python's. Any process, no torch."""

from __future__ import annotations


class KhopError(Exception):
    """Base of khop's own exceptions."""


class FolderError(KhopError, ValueError):
    """A partition folder is missing, damaged, of another version, or not the one that was meant."""


class RowStoreError(KhopError, RuntimeError):
    """A row store was closed, gave no rows in time, or is not what it was said to be."""


class ProtocolError(KhopError):
    """A process sent a message that does not follow khop's protocol."""


class PartitionUnavailableError(KhopError, ConnectionError):
    """The server of a partition cannot be reached."""


class StateLostError(KhopError, RuntimeError):
    """A server has lost what requests had written: it was restarted, or has forgotten this client.

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
    """A sampler process ended while batches were due from it, more often than allowed."""


class TaskDiedError(KhopError, RuntimeError):
    """A task of partitioning ended, on a machine of a cluster, more often than it is run again."""


class RendezvousError(KhopError, RuntimeError):
    """The trainers of a job do not agree, or one of them did not arrive in time."""


class SecurityError(KhopError, RuntimeError):
    """An operation would let strangers in: keys are missing, or others can read or change files."""


class PluginError(KhopError, ImportError):
    """A plugin that the user named cannot be imported, or several packages have one of its name."""
