"""Assignment of partitions to servers, and the servers that this trainer runs. Runs in trainers.

The trainers of a group open the same folder, each with a home partition. They publish which
partitions they have, and check that together they have all. For each partition that other trainers
need, one trainer that has it starts a server, and keeps it running (`endpoint_registry`).

Requests that the user defines may have a state. One server of each part, its primary, has the
part's state. All trainers, also at home in the part, write to the primary and read from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import zmq

from khop.distributed.job.context import WorkerContext
from khop.distributed.partitions.endpoint_registry import EndpointRegistry
from khop.distributed.partitions.server_process import (
    Announcement,
    PartitionServerProcess,
    announced_endpoint,
)
from khop.distributed.processes.hosts import maps_same_host
from khop.distributed.rpc.endpoint import Endpoint, KeyPair
from khop.distributed.rpc.key_files import read_job_pair
from khop.distributed.rpc.keys import JOB_KEY_VARIABLE
from khop.distributed.rpc.partition_client import PartitionClient
from khop.errors import RendezvousError
from khop.storage.folder import PartitionFolder


@dataclass(frozen=True)
class Claim:
    """Machine and partitions of a trainer, as published to the other trainers.

    Attributes:
        host: identity of the machine, see `host_identity`.
        address: address at which other machines reach it.
        fingerprint: fingerprint of the folder.
        home: the home partition.
        parts: the home partition, and further partitions that it serves.
        readable: partitions whose files it can read. Empty if it requests all partitions.
    """

    host: str
    address: str
    fingerprint: str
    home: int
    parts: list[int]
    readable: list[int]


class PartitionService:
    """Access of a trainer to all partitions, and the servers that it runs for other trainers.

    All trainers create it together.

    Args:
        context: the trainer's group.
        folder: the partition folder.
        home: this trainer's partition.
        also_serve: further partitions that this trainer's machine serves.
        requests: modules of the user's requests, which primaries import (see `users_requests`). The
            same for all trainers.
        same_host_reads: read partitions of this host from their files. See `DistDataset.load`.

    Attributes:
        others: further partitions that this trainer and its samplers read from files.

    Raises:
        RendezvousError: trainers have different folders, or no trainer has some partition.
    """

    def __init__(
        self,
        context: WorkerContext,
        folder: PartitionFolder,
        home: int,
        also_serve: list[int],
        requests: Sequence[str] = (),
        same_host_reads: bool | None = None,
    ) -> None:
        self._requests = list(requests)
        self._context = context
        self._folder = folder
        self._name = context.next_name("service")
        self.endpoint_registry = EndpointRegistry(context, self._name)
        """Updates of servers that have moved or ended."""
        self.home = home
        parts = range(folder.num_parts) if maps_same_host(same_host_reads) else ()
        claim = Claim(
            context.host,
            context.address,
            folder.fingerprint,
            home,
            sorted({home, *also_serve}),
            [part for part in parts if folder.can_read_part(part)],
        )
        context.members.publish(f"{self._name}/claim", asdict(claim))
        gathered = context.members.all_gather(
            f"{self._name}/claim", "make a loader or node split of its DistDataset"
        )
        self.claims = [Claim(**c) for c in gathered]
        """Claim of each trainer, by rank."""
        self._check_claims()
        self.others = parts_read_by(self.claims[context.rank], self.claims)
        self._first_endpoints: dict[int, Endpoint] | None = None  # by key in the registry
        self.credentials: KeyPair | None = None

    @property
    def homes(self) -> list[int]:
        return [claim.home for claim in self.claims]

    def owners(self, part: int) -> list[int]:
        """Return the ranks of the trainers that have loaded a partition, else that serve it."""
        at_home = [r for r, claim in enumerate(self.claims) if claim.home == part]
        return at_home or [r for r, claim in enumerate(self.claims) if part in claim.parts]

    def primary(self, part: int) -> int:
        """Return the rank whose server has the state (users' data) of `part`: its first owner."""
        return self.owners(part)[0]

    def is_near(self, part: int) -> bool:
        """Return True if the primary of a partition runs on this host."""
        return self.claims[self.primary(part)].host == self._context.host

    def _check_claims(self) -> None:
        mine = self.claims[self._context.rank]
        for rank, claim in enumerate(self.claims):
            if claim.fingerprint != mine.fingerprint:
                raise RendezvousError(
                    f"trainers {self._context.rank} and {rank} have loaded different partition "
                    f"folders ('{self._folder.root}' is {mine.fingerprint}, theirs is "
                    f"{claim.fingerprint}): copy the same folder to all machines, and name the "
                    "same stores"
                )
        served = {part for claim in self.claims for part in claim.parts}
        missing = sorted(set(range(self._folder.num_parts)) - served)
        if missing:
            raise RendezvousError(
                f"the folder has {self._folder.num_parts} partitions, but the "
                f"{self._context.world_size} trainer(s) load only {sorted(served)}: nobody serves "
                f"{missing}. Start a trainer for each partition, partition the graph into "
                f"{self._context.world_size}, or name the others in "
                "DistDataset.load(..., also_serve=[...]) on a machine that has them"
            )

    def _asks_for(self, user: Claim, part: int) -> bool:
        """Return whether a trainer sends requests for a partition to a server."""
        # Rows of users' stores are read by the owner alone.
        is_read = part in parts_read_by(user, self.claims) and not self._folder.stores
        return part != user.home and not is_read

    def answering(self, user: int) -> dict[int, int]:
        """Return {partition: rank} of the trainers that answer requests of the trainer `user`.

        It asks for those partitions that it does not read from files. Trainers on its host come
        first, and trainers with the same partition share its users.
        """
        answering = {}
        for part in range(self._folder.num_parts):
            if self._asks_for(self.claims[user], part):
                having = self._servers_of(part, user)
                answering[part] = having[user % len(having)]
        return answering

    def endpoints(self) -> dict[int, Endpoint]:
        """Return the last known endpoints of the partitions that are not read from files alone.

        It is the partition that this trainer has loaded. Starts this trainer's servers first.
        """
        return {key: endpoint for key, endpoint in self._by_key().items() if key >= 0}

    def state_client(self, timeout: float) -> PartitionClient:
        """Connect to the servers with the state of each partition, also of the own one.

        `timeout` is in seconds, for each request.

        Raises:
            ValueError: the service was made without requests that have a state.
        """
        client = PartitionClient(self.primaries(), self.credentials, timeout)
        self.endpoint_registry.follow(client, primary_key)
        return client

    def primaries(self) -> dict[int, Endpoint]:
        """Return the last known endpoints of the servers with the state of each partition.

        Starts this trainer's servers first.

        Raises:
            ValueError: the service was made without requests that have a state.
        """
        if not self._requests:
            raise ValueError("no state: name modules of requests (requests=)")
        by_key = self._by_key()
        return {part: by_key[primary_key(part)] for part in range(self._folder.num_parts)}

    def client(self, timeout: float) -> PartitionClient | None:
        """Connect to the other partitions. None if all are read from files."""
        endpoints = self.endpoints()
        if not endpoints:
            return None
        client = PartitionClient(endpoints, self.credentials, timeout)
        self.endpoint_registry.follow(client)
        return client

    def _by_key(self) -> dict[int, Endpoint]:
        """Return the last known endpoint of each server, by its key in the trainers' table."""
        if self._first_endpoints is None:
            self._start_servers()
            self._first_endpoints = self._find_endpoints()
        newest, updates = {}, self.endpoint_registry.updates  # which other threads change
        for key, first in self._first_endpoints.items():
            update = updates.get(key)
            newest[key] = update if isinstance(update, Endpoint) else first
        return newest

    def _needed_by(self, part: int, server: int) -> tuple[bool, bool]:
        """Return if trainers on this host, and on others, get a partition from rank `server`."""
        is_primary = bool(self._requests) and server == self.primary(part)
        users = [
            claim
            for rank, claim in enumerate(self.claims)
            if is_primary or (self._asks_for(claim, part) and self._server_of(part, rank) == server)
        ]
        host = self.claims[server].host
        return any(c.host == host for c in users), any(c.host != host for c in users)

    def _server_of(self, part: int, user: int) -> int:
        """Return the rank whose server sends a partition to rank `user`."""
        return self._servers_of(part, user)[0]

    def _servers_of(self, part: int, user: int) -> list[int]:
        """Return the ranks that can send a partition to rank `user`: on its host, if any."""
        having = [r for r, c in enumerate(self.claims) if part in c.parts]
        near = [r for r in having if self.claims[r].host == self.claims[user].host]
        return near or having

    def _start_servers(self) -> None:
        rank = self._context.rank
        crosses_hosts = len({c.host for c in self.claims}) > 1
        uses_curve = crosses_hosts and not self._context.insecure
        if uses_curve:
            self.credentials = self._share_credentials()
        announced: dict[str, Announcement] = {}
        for part in self.claims[rank].parts:
            near, far = self._needed_by(part, rank)
            if near or far:
                announced[str(part)] = self._start_server(part, near, far)
        self._context.members.publish(f"{self._name}/servers", announced)
        if announced:
            self._context.keep_for_others(self.close)

    def _share_credentials(self) -> KeyPair:
        if not zmq.has("curve"):
            raise RendezvousError(
                "this libzmq has no CURVE: install pyzmq's own wheel, or pass insecure=True to "
                "init_worker_group on a closed network"
            )
        own = read_job_pair()
        if self._context.rank == 0:
            # Only the public key of a launcher's pair goes through the store, which is in clear.
            pair = KeyPair.new() if own is None else KeyPair(own.public, "")
            self._context.members.publish(f"{self._name}/key", asdict(pair))
        gathered = self._context.members.wait_for(f"{self._name}/key", [0], "make the job's key")
        shared = KeyPair(**gathered[0])
        if own is not None and shared.public == own.public:
            return own
        if own is not None or not shared.secret:
            raise RendezvousError(
                f"trainer 0 and this one have different keys ({JOB_KEY_VARIABLE}): start all by "
                "one khop run, or unset it for all"
            )
        return shared

    def _start_server(self, part: int, near: bool, far: bool) -> Announcement:
        requests = self._requests if self.primary(part) == self._context.rank else []
        server = PartitionServerProcess(
            self._context,
            "khop.distributed.rpc.partition_server",
            {
                "root": str(self._folder.root),
                "part": part,
                "requests": requests,
                "stores": [store.to_json() for store in self._folder.stores.values()],
                # Without a cache, so that the samplers' memory is all that there is.
                "disk": None if self._folder.disk is None else self._folder.disk.without_cache(),
            },
            f"partition {part}",
            near,
            far,
            self.credentials,
        )
        self.endpoint_registry.keep(part, server, *([primary_key(part)] if requests else []))
        return server.announcement

    def _find_endpoints(self) -> dict[int, Endpoint]:
        rank, parts = self._context.rank, range(self._folder.num_parts)
        mine = self.claims[rank]
        servers = [(p, p, self._server_of(p, rank)) for p in parts if self._asks_for(mine, p)]
        if self._requests:
            servers += [(primary_key(p), p, self.primary(p)) for p in parts]
        gathered = self._context.members.wait_for(
            f"{self._name}/servers",
            {server for _, _, server in servers},
            "start a partition server",
        )
        endpoints = {}
        for key, part, server in servers:
            is_near = self.claims[server].host == self._context.host
            self.endpoint_registry.assign(key, server, is_near)
            endpoints[key] = announced_endpoint(gathered[server][str(part)], is_near)
        return endpoints

    def close(self) -> None:
        self.endpoint_registry.close(
            f"has ended: trainer {self._context.rank} has finished or failed"
        )


def parts_read_by(reader: Claim, claims: Sequence[Claim]) -> list[int]:
    """Return the partitions, beside its home, that a trainer reads from files.

    These are partitions of trainers on its host. A folder that hosts share has files of other
    partitions, too. These are requested, so that their rows stay in their host's memory.
    """
    near = {part for claim in claims if claim.host == reader.host for part in claim.parts}
    return sorted(near.intersection(reader.readable) - {reader.home})


def primary_key(part: int) -> int:
    """Return the key, below 0, in `EndpointRegistry` of the server that has a partition's state."""
    return -1 - part
