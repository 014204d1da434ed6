"""`khop keygen`: the keys of a job whose graph servers stand apart from its trainers."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "folder", metavar="DIR", help="where to write server.key and client.key; made if missing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes new keys; never over old ones."""
    from khop.distributed.keys import KEY_FILE_VARIABLE, write_keys

    server, client = write_keys(arguments.folder)
    print(
        f"{server}: for graph servers (khop serve --key-file, init_server(key_file=))\n"
        f"{client}: for trainers (init_client(key_file=))\n"
        f"Or name one in ${KEY_FILE_VARIABLE}. Copy them over an encrypted channel (scp -p): "
        "they must stay readable by their owner alone."
    )
    return 0
