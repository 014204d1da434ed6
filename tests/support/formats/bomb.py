"""Object whose unpickling makes a folder `exploded`."""

import os


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)
