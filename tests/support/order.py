"""Order of tests: slow files first, or files at random. Tests of a file stay together."""

import random
from collections import Counter

from support import durations


def arrange(items, seed=None):
    """Sort tests in place, by file.

    Args:
        items: the tests that pytest has collected.
        seed: seed of a random order of files. If None, the slowest files come first, so that short
            ones fill the end.
    """
    files = sorted({item.path for item in items})
    if seed is None:
        seconds = Counter()
        for item in {durations.function_of(item.nodeid): item for item in items}.values():
            seconds[item.path] += durations.measured().get(durations.function_of(item.nodeid), 0)
        files.sort(key=lambda file: -seconds[file])
    else:
        random.Random(seed).shuffle(files)
    places = {file: place for place, file in enumerate(files)}
    items.sort(key=lambda item: places[item.path])
