"""`khop keygen`: encryption keys for graph servers and their clients."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from khop.cli.arguments import declare

_TABLE = """\
folder DIR              where to write server.key and client.key; made if missing
--json                  print the names of files as JSON
"""
_CLIENTS = """\
--clients N             a key of its own for each of N clients, client-0.key and so on: they get
                        turns of their own, and one can be shut out
--add NAME              let one more client in: writes NAME.key
--revoke NAME           shut a client out: takes its key from server.key
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `khop keygen` to its parser."""
    declare(parser, _TABLE)
    declare(parser.add_mutually_exclusive_group(), _CLIENTS)


def run(arguments: argparse.Namespace) -> int:
    """Write new keys, add a client, or revoke one. Existing key files are never replaced."""
    from khop.distributed.rpc.key_files import add_client, revoke_client, write_keys
    from khop.distributed.rpc.keys import KEY_FILE_VARIABLE

    again = "servers read server.key within seconds; copy it to those that have their own"
    if arguments.revoke is not None:
        revoke_client(arguments.folder, arguments.revoke)
        written: dict[str, object] = {"revoked": arguments.revoke}
        text = f"'{arguments.revoke}' is let in no more: {again}"
    elif arguments.add is not None:
        added = add_client(arguments.folder, arguments.add)
        written, text = {"clients": [str(added)]}, f"{added}: {again}"
    else:
        server, *clients = write_keys(arguments.folder, arguments.clients)
        written = {"server": str(server), "clients": [str(client) for client in clients]}
        text = _text_of(server, clients, KEY_FILE_VARIABLE)
    print(json.dumps(written) if arguments.json else text)
    return 0


def _text_of(server: Path, clients: Sequence[Path], variable: str) -> str:
    which = str(clients[0]) if len(clients) == 1 else f"{clients[0]} to {clients[-1].name}"
    return (
        f"{server}: for graph servers (khop serve --key-file, init_server(key_file=))\n"
        f"{which}: for trainers (init_client(key_file=))\n"
        f"Or name one in ${variable}. Copy them over an encrypted channel (scp -p): "
        "they must stay readable by their owner alone."
    )
