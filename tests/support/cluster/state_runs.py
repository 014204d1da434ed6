"""Requests that write, while connections are cut and servers killed: `scripts/soak state`.

Clients increment a counter, the state of a part (`support.cluster.counter`). Cuts: each increment
must be counted once, in its client's order, without an error. Kills: after each, every client must
get StateLostError before any value of the new server.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from khop.distributed import init_worker_group, shutdown_worker_group
from khop.distributed.partitions.service import PartitionService
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.partition_client import PartitionClient
from khop.distributed.rpc.partition_handler import RequestHandler
from khop.errors import StateLostError
from khop.partition import PartitionFolder
from support.cluster import twins
from support.cluster.counter import Counter, Increment, Order, ReadCounter
from support.cluster.partition_server import PART, make_part, serving
from support.cluster.proxy import Proxy

_TIMEOUT = 120.0
# A server that dies sooner after its start counts as not having worked.
_PEACE = 2.1


@dataclass
class Report:
    """Counts of a run."""

    faults: int = 0
    writes: int = 0
    losses: int = 0
    seconds: float = 0.0


def cut_connections(root: Path, cuts: int, clients: int = 3, seed: int = 1) -> Report:
    """Cut connections at random while clients increment. AssertionError if a count is wrong.

    Args:
        root: folder in which a partition folder is made.
        cuts: number of cuts.
        clients: number of clients.
        seed: seed of all random choices.
    """
    counter, part, began = Counter(), make_part(root), time.monotonic()
    server_pair, pair = KeyPair.new(), KeyPair.new()
    curve = {"public": server_pair.public, "secret": server_pair.secret, "clients": [pair.public]}
    handler = RequestHandler(part, types=counter.types())
    values: dict[int, list[int]] = {number: [] for number in range(clients)}
    errors: list[BaseException] = []
    over = threading.Event()
    with serving(part, handler=handler, curve=curve) as server:
        port = int(server.addresses["tcp"].rpartition(":")[2])
        with Proxy(port) as proxy:
            endpoint = Endpoint(proxy.address, curve["public"])

            def increment(number: int) -> None:
                generator = random.Random(seed * 1000 + number)
                client = PartitionClient({PART: endpoint}, pair, _TIMEOUT)
                own = values[number]
                try:
                    while not over.is_set():
                        tickets = [
                            client.write(PART, Increment(slices=generator.choice([1, 1, 30])))
                            if generator.random() < 0.2
                            else client.write(PART, Increment(who=str(number)))
                            for _ in range(generator.choice([1, 5, 150]))
                        ]
                        client.wait(tickets)
                        own += [int(ticket.result()[0][0]) for ticket in tickets]
                    named = client.read_state(PART, Order(str(number)))
                    client.wait([named])
                    named.result()
                except BaseException as error:
                    errors.append(error)
                    over.set()
                finally:
                    client.close()

            threads = [threading.Thread(target=increment, args=(n,)) for n in range(clients)]
            for thread in threads:
                thread.start()
            generator, done = random.Random(seed), 0
            while done < cuts and not over.is_set():
                before, end = len(counter.steps), time.monotonic() + 5
                while len(counter.steps) == before and time.monotonic() < end:
                    time.sleep(0.001)
                time.sleep(generator.uniform(0, 0.03))
                proxy.cut_somehow(generator)
                done += 1
            over.set()
            for thread in threads:
                thread.join()
    assert not errors, errors
    for own in values.values():
        assert own == sorted(set(own)), "a client's writes were not applied in order"
    everything = sorted(value for own in values.values() for value in own)
    assert len(set(everything)) == len(everything), "two writes have the same value"
    return _checked(counter, everything, Report(proxy.cuts, len(everything)), began)


def _checked(counter: Counter, values: list[int], report: Report, began: float) -> Report:
    """Check the counter's sum and each client's order. Return the report.

    A write of several slices adds one in each.
    """
    assert counter.value == sum(counter.steps), (counter.value, sum(counter.steps))
    assert len(counter.steps) == len(values), (len(counter.steps), len(values))
    report.seconds = time.monotonic() - began
    return report


def kill_servers(
    root: Path, kills: int, clients: int = 3, seed: int = 1, peace: float = _PEACE
) -> Report:
    """Kill the server with a part's state again and again. AssertionError if a client misses it.

    Args:
        root: folder in which a partition folder is made.
        kills: number of kills.
        clients: number of clients.
        seed: seed of all random choices.
        peace: seconds between a restart and the next kill.
    """
    began, report, generator = time.monotonic(), Report(), random.Random(seed)
    folder = PartitionFolder(twins.partitioned(twins.homogeneous(), root, 2))
    context = init_worker_group()
    service = PartitionService(context, folder, 0, [1], ["support.cluster.counter"])
    users = [service.state_client(_TIMEOUT) for _ in range(clients)]
    supervisor = service.endpoint_registry.supervisor
    try:
        expected = 0
        for round_ in range(kills):
            for client in users:
                expected += 1
                assert _value(client, client.write(0, Increment())) == expected
            counts = generator.choices([0, 1, 9], k=clients)
            in_flight = [
                [client.write(0, Increment(slices=1000)) for _ in range(count)]
                for client, count in zip(users, counts, strict=True)
            ]
            time.sleep(generator.uniform(0, 0.01))
            restarts = supervisor.num_restarts
            if round_ % 3 == 1:  # a folder that others may enter is not used again: it moves
                address = supervisor.servers[0].announcement["ipc"]
                Path(address.removeprefix("ipc://")).parent.chmod(0o755)
            os.kill(supervisor.servers[0].process.pid, signal.SIGKILL)
            report.faults += 1
            for client, tickets in zip(users, in_flight, strict=True):
                report.losses += _sees_the_loss(client, tickets)
                report.writes += len(tickets) + 1
            # All know of it: each decides by itself to go on with the new state.
            for client in users:
                client.accept_state_loss(0)
            expected = 0
            _wait(lambda: supervisor.num_restarts > restarts)  # noqa: B023
            time.sleep(peace)
        for number, client in enumerate(users, 1):
            assert _value(client, client.write(1, Increment())) == number  # the other part's lives
    finally:
        for client in users:
            client.close()
        shutdown_worker_group()
    report.seconds = time.monotonic() - began
    return report


def _value(client: PartitionClient, ticket: Any) -> int:
    client.wait([ticket])
    return int(ticket.result()[0][0])


def _sees_the_loss(client: PartitionClient, tickets: list[Any]) -> int:
    """Check that a client gets StateLostError before any value of the new server. Return 1.

    Writes in flight may have been answered by the old one, with values that grew since.
    """
    values = []
    for ticket in tickets:
        try:
            values.append(_value(client, ticket))
        except StateLostError:
            break
    assert all(value > 1000 for value in values), values
    for make in (lambda: client.read_state(0, ReadCounter()), lambda: client.write(0, Increment())):
        try:
            value = _value(client, make())
        except StateLostError as error:
            assert "partition 0" in str(error)
        else:
            raise AssertionError(f"a value of the new server: {value}")
    return 1


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "the server was not started again"
        time.sleep(0.01)


def main(words: list[str]) -> int:
    """Run cuts and kills as the command line says. Return the exit status."""
    parser = argparse.ArgumentParser(prog="soak state", description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        print("cuts:", cut_connections(Path(folder, "cuts"), given.cuts, seed=given.seed))
        print("kills:", kill_servers(Path(folder, "kills"), given.kills, seed=given.seed))
    return 0
