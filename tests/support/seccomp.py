"""Program that runs a command in which the kernel refuses system calls, as containers do.

    python -m support.seccomp 237,238 COMMAND ...

A filter (seccomp) answers these calls with EPERM, in this process and in all that it starts.
"""

import ctypes
import os
import struct
import sys

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1


def refuse(calls):
    """Refuse system calls, by their numbers, from now on."""
    code = [(_LOAD, 0, 0, 0)]  # the number of the call
    for left, call in zip(range(len(calls), 0, -1), calls, strict=True):
        code.append((_IS_EQUAL, left, 0, call))
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    packed = b"".join(struct.pack("HBBI", *one) for one in code)
    program = ctypes.create_string_buffer(packed, len(packed))
    described = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for words in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, described, 0, 0)):
        if prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


if __name__ == "__main__":
    refuse([int(call) for call in sys.argv[1].split(",")])
    os.execvp(sys.argv[2], sys.argv[2:])
