"""An object whose pickle makes a folder `exploded` when it is run."""

import os


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)
