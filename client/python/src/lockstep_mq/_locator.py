# SPDX-License-Identifier: Apache-2.0
"""The nodes, and which of them is active.

Only status reports, lost connections, and the report that a pair was removed from its fleet change the target. Any
other failed call only triggers a poll of the nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

import grpc
import grpc.aio

from lockstep_mq import _failure, _options, _reach, _rpc, errors
from lockstep_mq._failure import Failure
from lockstep_mq._options import Options, Tokens
from lockstep_mq._pair import Pairs, Report
from lockstep_mq._proto import admin_pb2

_log = logging.getLogger("lockstep_mq")
_MAX_REFUSED_WAIT = 30.0  # seconds


class Node:
    """One address with its connection and its last status."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        self.report = Report()
        self.pair_addresses: frozenset[str] = frozenset()  # of the nodes of its pair, as reported by this node
        self.names = ""  # address of the active node, as reported by this node
        self.why = ""
        self.observed = 0  # number of observations; a poll discards its response if the number has changed
        self.failure: Failure | None = None
        self.told: set[str] = set()  # failures that were logged
        self.refused: float | None = None  # time of the last rejection of the credentials
        self.asking = False  # a retry after a rejection is in progress
        self.users = 0  # attempts in progress
        self.trigger = asyncio.Event()
        self.again: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Target:
    """A node that is active in one term and epoch.

    `gone` is done when the locator has replaced the target, or, if the node rejects the credentials of the client,
    probe_interval later.
    """

    def __init__(self, node: Node, locator: Locator) -> None:
        self.node = node
        self.locator = locator
        self.term = node.report.term
        self.epoch = node.report.site.epoch
        self.lineage = node.report.site.lineage  # empty without sites
        self.pair_id = node.report.pair_id  # empty for a standalone node
        self.lossy_epoch = node.report.site.lossy_epoch
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        """Cancel the calls on this target."""
        if not self.gone.done():
            self.gone.set_result(None)

    @property
    def channel(self) -> grpc.aio.Channel:
        """The current connection."""
        return self.node.channel


class Locator:
    """Watches all nodes until close()."""

    def __init__(self, options: Options, tokens: Tokens) -> None:
        self._options = options
        self.tokens = tokens
        self.nodes: list[Node] = []
        self.target: Target | None = None
        self._pairs = Pairs()
        self._waiters = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False
        self._answered = False  # some node has reported its role
        for address in options.addresses:
            self._add(address)

    async def close(self) -> None:
        """End the target and all waiting calls, and close the connections."""
        if self.closed:
            return
        self.closed = True
        self._set_target(None)
        self._wake()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.nodes:
            await node.channel.close()

    async def wait(self, deadline: float | None = None) -> Target:
        """Wait for an active node.

        Raises:
            Closed: The client is closed.
            TimeoutError: The deadline, on the loop's clock, has passed.
            Failure: All reachable nodes reject this client.
        """
        loop = asyncio.get_running_loop()
        while True:
            if self.closed:
                raise errors.Closed("the client is closed")
            if self.target is not None:
                return self.target
            refusal = self._refusal()
            if refusal is not None and not self._ask_again():
                raise refusal
            changed = self._changed
            self._waiters += 1
            self.ask_now()
            try:
                timeout = None if deadline is None else max(deadline - loop.time(), 0)
                await asyncio.wait({changed}, timeout=timeout)
            finally:
                self._waiters -= 1
            if not changed.done():
                raise TimeoutError

    async def pause(self, target: Target, seconds: float, deadline: float | None = None) -> None:
        """Wait before the next attempt, at most until the target ends."""
        if deadline is not None:
            seconds = min(seconds, max(deadline - asyncio.get_running_loop().time(), 0))
        await asyncio.wait({target.gone}, timeout=seconds)

    def failed(self, f: Failure) -> None:
        """Handle a failed attempt: add the nodes in its hints, and poll all nodes."""
        if f.removed:
            for node in self.nodes:
                node.report.removed = node.report.removed or node.address == f.address
            self._choose()
        if self._options.follow_hints:
            for address in f.hints:
                self._learn_address(address)
        self.ask_now()

    def ask_now(self) -> None:
        """Trigger a poll of all nodes."""
        for node in self.nodes:
            node.trigger.set()

    def addresses(self) -> set[str]:
        """Return the addresses of the nodes, including those that they report for their pair."""
        return {a for n in self.nodes for a in (n.address, *n.pair_addresses)}

    def learn(self, addresses: Iterable[str]) -> None:
        """Add addresses of the nodes, up to the limit."""
        if not self.closed:
            for address in addresses:
                self._learn_address(address)

    def explain(self) -> str:
        """Describe the last status of each node."""
        parts = []
        for n in self.nodes:
            if n.failure is not None:
                parts.append(str(n.failure))
            elif n.report.role == admin_pb2.ROLE_UNSPECIFIED:
                parts.append(f"{n.address}: no response yet")
            else:
                parts.append(self._pairs.explain(n.report, n.address, n.why))
        return "; ".join(parts)

    def replica(self) -> Node | None:
        """Return a node that does not serve because its site is a replica or stopped; None if there is a target."""
        if self.target is not None:
            return None
        return next((n for n in self.nodes if n.failure is None and n.report.is_replica), None)

    def _add(self, address: str) -> None:
        if len(self.nodes) >= _options.MAX_ADDRESSES or any(n.address == address for n in self.nodes):
            return
        node = Node(address, _options.dial(self._options, address, self.tokens))
        self.nodes.append(node)
        for work in (self._watch(node), self._poll_when_asked(node)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _watch(self, node: Node) -> None:
        """Keep a WatchStatus stream open.

        A node that is down is retried within milliseconds while no other node is active, and with a longer backoff
        otherwise. A node that closes each connection without a response, for example because only one end uses TLS, is
        retried with a growing backoff, up to probe_interval.
        """
        retry, ended = _options.Backoff(), _options.Backoff(self._options.probe_interval)
        refused_wait = self._options.probe_interval
        while not self.closed:
            delivered, fresh, f = await self._watch_once(node)
            if delivered:
                retry.reset()
            wait = retry.next()
            if not delivered and f.mistake == _reach.PERHAPS:
                wait = max(wait, ended.next())
            else:
                ended.reset()
            changed = None
            if fresh:
                pass
            elif f.refuses_client:
                wait, refused_wait = refused_wait, min(2 * refused_wait, _MAX_REFUSED_WAIT)
            else:
                refused_wait = self._options.probe_interval
                if f.mistake == _reach.SURE:
                    wait = self._options.probe_interval  # a file must change first, on either end
                elif self.target is not None:
                    wait = min(10 * wait, self._options.probe_interval)
                changed = self._changed
            await self._rest(node, max(wait, f.retry_after), changed)

    async def _rest(self, node: Node, seconds: float, changed: asyncio.Future[None] | None) -> None:
        """Wait before a node is retried; a pending call or a change of the target ends the wait."""
        node.again = asyncio.get_running_loop().create_future()
        await asyncio.wait(
            {node.again} if changed is None else {node.again, changed},
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )

    async def _watch_once(self, node: Node) -> tuple[bool, bool, Failure]:
        """Read one stream. Return whether it delivered a status, whether a fresh token exists, and why it ended."""
        channel = node.channel
        delivered = False
        metadata: _rpc.Metadata = ()

        async def read() -> None:
            nonlocal delivered
            async for response in _rpc.watch_status(channel, metadata):
                delivered = True
                self._observe(node, response.status)

        try:
            metadata = await self.tokens.metadata()
            await _rpc.bound(read(), node.address)
            f = _failure.lost(node.address, "the node closed the stream")
        except Failure as err:
            f = err
        except Exception as err:  # the application's token source
            f = _failure.lost(node.address, f"no valid token: {err}")
        fresh = f.unauthenticated and await self.tokens.renewed(metadata)
        if delivered and fresh:
            return delivered, fresh, f  # an expired token; the node is unaffected
        self._lost(node, f, again=fresh)
        if not delivered and not f.refuses_client:
            # A new connection starts without gRPC's own backoff: only _watch decides when to retry.
            await self._replace(node, channel)
        return delivered, fresh, f

    async def _poll_when_asked(self, node: Node) -> None:
        """Request the status when triggered, and periodically while calls wait or attempts are in progress."""
        while not self.closed:
            searching = self.target is None and self._waiters > 0
            timeout = _options.RETRY_MAX if searching else self._options.probe_interval
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(node.trigger.wait(), timeout)
            triggered = node.trigger.is_set()
            node.trigger.clear()
            if triggered or searching or node.users > 0:
                await self._poll(node)
            if triggered:
                await asyncio.sleep(_options.RETRY_MIN)  # consecutive failed calls cause one request

    async def _poll(self, node: Node) -> None:
        """Request the status once. The connection to a node that does not respond in time is replaced."""
        asked, channel = node.observed, node.channel
        if asked == 0:
            return  # the first status arrives on the watch, which is being opened
        if node.failure is not None and node.failure.mistake != _reach.NONE:
            return  # the watch retries with its own backoff
        deadline = asyncio.get_running_loop().time() + self._options.probe_interval
        try:
            metadata = await self.tokens.metadata()
            call = _rpc.unary(
                channel, _rpc.GET_STATUS, admin_pb2.GetStatusRequest(), admin_pb2.GetStatusResponse, metadata
            )
            status = await _rpc.bound(call, node.address, deadline=deadline)
        except Failure:
            if asyncio.get_running_loop().time() >= deadline:
                await self._replace(node, channel)
            return
        except Exception:  # the application's token source
            return
        if node.observed == asked:
            self._observe(node, status)

    async def _replace(self, node: Node, old: grpc.aio.Channel) -> None:
        """Replace a connection that does not respond; all calls on it fail immediately."""
        if node.channel is not old or self.closed:
            return
        try:
            node.channel = _options.dial(self._options, node.address, self.tokens)
        except errors.InvalidRequest:
            return  # a file is being replaced
        await old.close()

    def _observe(self, node: Node, status: admin_pb2.GetStatusResponse) -> None:
        node.observed += 1
        self._answered = True
        removed = node.report.removed
        node.report = Report(status.role, status.pair.term, status.pair.pair_id, status.site, removed)
        node.why, node.failure, node.refused, node.asking = status.reason, None, None, False
        node.names = ""
        node.pair_addresses = frozenset(n.address for n in status.pair.nodes)
        for other in status.pair.nodes:
            if other.active and other.node_id != status.node.node_id:
                node.names = other.address
        self._choose()
        self._learn()

    def _lost(self, node: Node, f: Failure, *, again: bool) -> None:
        """Record that the connection to a node broke: the role is unknown until the node reports it again."""
        if f.mistake != _reach.NONE and not self._answered and f.message not in node.told:
            node.told.add(f.message)
            _log.warning("%s", f)  # a call without a timeout waits and would never report it
        node.observed += 1
        node.report.role, node.report.removed = admin_pb2.ROLE_UNSPECIFIED, False
        node.why, node.failure, node.asking = "", f, again
        loop = asyncio.get_running_loop()
        node.refused = loop.time() if f.refuses_client and not again else None
        if f.refuses_client and self.target is not None and self.target.node is node:
            # The node still responds to pending calls.
            loop.call_later(self._options.probe_interval, self.target.end)
            self.target = None
            self._wake()
        self._choose()
        self._learn()
        if self._refusal() is not None:
            self._wake()  # waiting calls fail

    def _learn(self) -> None:
        """Add the nodes of the other site and, without a target, the active node that a standby reports.

        It does nothing until each known node has reported its role or is unreachable, because an address may be an
        alias of a known node.
        """
        if not self._options.follow_hints or any(n.observed == 0 for n in self.nodes):
            return
        for node in list(self.nodes):
            if node.failure is not None:
                continue
            if self.target is None:
                self._learn_address(node.names)
            for address in node.report.site.remote_addresses:
                self._learn_address(address)

    def _learn_address(self, address: str) -> None:
        """Add an address that a node reports, unless it is empty or invalid."""
        # An address that cannot be dialed is not fatal: the known nodes are still watched.
        with contextlib.suppress(errors.InvalidRequest):
            _options.check_address(address)
            self._add(address)

    def _choose(self) -> None:
        """Set the target to the node that serves in the highest term, and among two sites in the highest epoch."""
        current = None if self.target is None else self.target.node.report
        report = self._pairs.choose([n.report for n in self.nodes], current)
        if report is None:
            self._set_target(None)
            return
        best = next(n for n in self.nodes if n.report is report)
        t = self.target
        if t is None or t.node is not best or (t.term, t.epoch) != (report.term, report.site.epoch):
            self._set_target(Target(best, self))

    def _set_target(self, target: Target | None) -> None:
        if self.target is target:
            return
        if self.target is not None:
            self.target.end()
        self.target = target
        self._wake()

    def _wake(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def _refusal(self) -> Failure | None:
        """Return a failure if all reachable nodes reject this client; None if a retry may succeed."""
        why: Failure | None = None
        for n in self.nodes:
            if n.asking or n.failure is None:
                return None
            if n.refused is not None:
                why = n.failure
        return why

    def _ask_again(self) -> bool:
        """Retry the nodes that have not rejected this client recently, and return whether there are such nodes."""
        now, asked = asyncio.get_running_loop().time(), False
        for n in self.nodes:
            if n.refused is not None and now - n.refused >= _options.TOKEN_REREAD:
                n.asking = asked = True
                if not n.again.done():
                    n.again.set_result(None)
        return asked
