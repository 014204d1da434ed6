"""Rows of an .npy file that is larger than memory, read past the page cache.

`DirectRows` is the store, and `rows_on_disk` opens one. `_Reads` belongs to one process: the
kernel's threads, the cache and the reads in flight. Used by samplers, servers and trainers. Imports
no torch.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from khop import _native
from khop.data.arrays import storage_dtype
from khop.data.files import load_npy, mapped_file, release_pages
from khop.data.hot_rows import parse_bytes
from khop.data.lookahead_rows import Expected
from khop.data.row_store import RowFormat, RowStore
from khop.data.tickets import ReadTicket, Ticket
from khop.errors import RowStoreError
from khop.log import EventLogger
from khop.typing import Array, Int64Array

log = EventLogger(__name__)

ENGINES = ("auto", "threads")
"""Engines of reads: io_uring where it is allowed, or threads."""

MAX_ROW_BYTES = 1 << 20
"""Most bytes of a row that is read past the page cache."""
