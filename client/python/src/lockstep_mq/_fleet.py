# SPDX-License-Identifier: Apache-2.0
"""The pairs of a fleet, and the owners of queues as reported by NOT_OWNER."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from google.protobuf.message import Message

from lockstep_mq import _options, errors
from lockstep_mq._failure import Failure
from lockstep_mq._locator import Locator
from lockstep_mq._options import Options, Tokens
from lockstep_mq._partition import Partitions
from lockstep_mq._proto import queue_pb2, schedule_pb2, types_pb2

MAX_OWNERS = 10_000  # queues with a recorded owner
_NAMED = (
    queue_pb2.CreateQueueRequest,
    queue_pb2.AlterQueueRequest,
    queue_pb2.DeleteQueueRequest,
    queue_pb2.PurgeQueueRequest,
    queue_pb2.GetQueueRequest,
)


def queue_of(request: Message) -> str:
    """Return the queue of an administrative request; empty if it has none."""
    if isinstance(request, _NAMED):
        return request.name
    if isinstance(request, schedule_pb2.PutScheduleRequest):
        return request.schedule.queue
    queue: str = getattr(request, "queue", "")
    return queue


@dataclass
class Sequencer:
    """The identity of a producer with one outstanding request at a time, at one pair."""

    id: str
    next: int = 1


class Pair:
    """A pair with its nodes and the unused identities of this client at the pair."""

    def __init__(self, name: str, locator: Locator) -> None:
        self.name = name  # empty until a node has reported it
        self.locator = locator
        self._sequencers: list[Sequencer] = []

    def __str__(self) -> str:
        return f"pair {self.name}" if self.name else f"the pair of {self.locator.nodes[0].address}"

    def take(self) -> Sequencer:
        """Return an unused identity."""
        return self._sequencers.pop() if self._sequencers else Sequencer(str(uuid.uuid4()))

    def release(self, s: Sequencer) -> None:
        """Return an identity after its request has a known outcome."""
        self._sequencers.append(s)


class Fleet:
    """The home pair, and the pairs that nodes have reported as owners of queues."""

    def __init__(self, options: Options, tokens: Tokens) -> None:
        self._options, self._tokens = options, tokens
        self.home = Pair("", Locator(options, tokens))
        self._pairs = [self.home]
        self._owners: OrderedDict[str, tuple[Pair, int]] = OrderedDict()  # least recently used first
        self._prepared: OrderedDict[str, Pair] = OrderedDict()  # by xid
        self._closed = False
        self.partitions = Partitions()

    async def close(self) -> None:
        """End all calls, and close all connections."""
        self._closed = True
        await asyncio.gather(*(p.locator.close() for p in self._pairs))

    def owner(self, queue: str) -> Pair | None:
        """Return the recorded owner of a queue; None if it is unknown."""
        known = self._owners.get(queue)
        if known is None:
            return None
        self._owners.move_to_end(queue)
        return known[0]

    def route(self, queue: str) -> Pair:
        """Return the pair to which the first attempt of a request is sent."""
        return self.owner(queue) or self.home

    def named(self, name: str, addresses: Iterable[str]) -> Pair | None:
        """Return a pair that the home pair has reported.

        Return None if it has no usable address, or if the client does not follow addresses that nodes report.

        Raises:
            InvalidRequest: The token must not be sent to the addresses.
        """
        return self._pair(self.home, types_pb2.NotOwner(pair=name, addresses=addresses)) if self.follows else None

    def unavailable(self, pair: Pair) -> None:
        """Remove the owners of a pair other than the home pair, if it has no active node.

        The next request for such a queue is sent to the home pair, which reports the owner.
        """
        if pair is not self.home and pair.locator.target is None:
            for queue in [queue for queue, known in self._owners.items() if known[0] is pair]:
                del self._owners[queue]

    def prepared(self, xid: str) -> Pair:
        """Return the pair of a transaction that this client has prepared; by default the home pair."""
        return self._prepared.get(xid, self.home)

    def record_prepared(self, xid: str, pair: Pair) -> None:
        """Record the pair of a prepared transaction."""
        self._prepared.pop(xid, None)  # of an earlier attempt at another pair
        if pair is not self.home:
            self._prepared[xid] = pair
            if len(self._prepared) > MAX_OWNERS:
                self._prepared.popitem(last=False)

    def redirect(self, at: Pair, n: types_pb2.NotOwner) -> Pair:
        """Record the owner that a pair has reported, and return the pair for the next attempt.

        A recorded owner with a higher epoch is retained, unless it is the pair that responded. It can be the target of
        a move, as reported by a fenced source. If the move is canceled, the owner has a lower epoch than the target.

        Raises:
            InvalidRequest: The token must not be sent to the addresses of the owner.
        """
        known = self._owners.get(n.queue)
        if known is not None and known[1] > n.epoch and known[0] is not at:
            return known[0]  # the response is outdated
        owner = self._pair(at, n)
        if owner is None:
            return at
        self._owners[n.queue] = (owner, n.epoch)
        self._owners.move_to_end(n.queue)
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)
        return owner

    def _pair(self, at: Pair, n: types_pb2.NotOwner) -> Pair | None:
        """Return the reported pair, with connections to its addresses; None if it has no usable address.

        A node never reports its own pair. If the response is from the home pair, the reported pair is therefore another
        one, although the addresses of the client may contain nodes of both.
        """
        if self._closed:
            return None
        addresses = list(_valid(n.addresses))[: _options.MAX_ADDRESSES]
        found = next((p for p in self._pairs if n.pair and p.name == n.pair), None)
        if found is None:
            found = next((p for p in self._pairs if not p.locator.addresses().isdisjoint(addresses)), None)
        if found is at and at is self.home:
            if at.name == n.pair:
                at.name = ""
            found = None
        if found is not None:
            found.name = n.pair or found.name
            if self._options.follow_hints:
                found.locator.learn(addresses)
            return found
        if not addresses:
            return None
        for address in addresses:
            _options.check_token(self._options, address, self._tokens)
        pair = Pair(n.pair, Locator(replace(self._options, addresses=tuple(addresses)), self._tokens))
        self._pairs.append(pair)
        return pair

    @property
    def probe_interval(self) -> float:
        """The interval and the timeout of probes, in seconds."""
        return self._options.probe_interval

    @property
    def follows(self) -> bool:
        """Return whether the client connects to addresses that nodes report."""
        return self._options.follow_hints


class Redirects:
    """The NOT_OWNER responses to one request, or to consecutive requests for one queue."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._owners: dict[Pair, str] = {}  # names of the owners, by the pair that reported them
        self.last: Failure | None = None  # describes all responses

    def clear(self) -> None:
        """Discard the responses after a pair has accepted a request."""
        if self._owners:
            self._owners.clear()
            self.last = None

    def follow(self, op: str, at: Pair, f: Failure, *, unknown: bool = False) -> tuple[Pair, bool]:
        """Return the pair for the next attempt, and whether to wait before it.

        The next attempt must wait if its pair has already refused an attempt.

        Raises:
            LockstepError: The client does not follow addresses that nodes report.
            InvalidRequest: The token must not be sent to the addresses of the owner.
        """
        assert f.not_owner is not None  # noqa: S101 # a precondition
        owner = self._fleet.redirect(at, f.not_owner) if self._fleet.follows else at
        self._owners[at] = f.not_owner.pair
        reports = "; ".join(f"{p} reports pair {name} as the owner" for p, name in self._owners.items())
        self.last = replace(f, message=f"queue {f.not_owner.queue}: {reports}")
        if not self._fleet.follows:
            raise self.last.error(op, unknown=unknown)
        return owner, owner in self._owners


def _valid(addresses: Iterable[str]) -> Iterable[str]:
    for address in dict.fromkeys(addresses):
        try:
            _options.check_address(address)
        except errors.InvalidRequest:
            continue
        yield address
