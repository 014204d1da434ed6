"""Order of tests: slow files first, or files at random. Tests of a file stay together."""

import random

# Folders whose files take longest. They go first: at the end there is something short for everyone.
_SLOW = ("scripts", "guide", "examples", "distributed", "cli", "bench")


def arrange(items, root, seed=None):
    """Sorts tests in place.

    Args:
        items: what pytest has collected.
        root: folder of tests.
        seed: of the order of files. If None, slow folders come first.
    """
    files = sorted({item.path for item in items})
    if seed is None:
        turn = {folder: place for place, folder in enumerate(_SLOW)}
        files.sort(key=lambda file: turn.get(file.relative_to(root).parts[0], len(_SLOW)))
    else:
        random.Random(seed).shuffle(files)
    places = {file: place for place, file in enumerate(files)}
    items.sort(key=lambda item: places[item.path])
