# SPDX-License-Identifier: Apache-2.0
"""The nodes, and which of them is active.

Facts come from the nodes only; calls that fail do not change what is known, they have the nodes asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import grpc
import grpc.aio

from lockstep_mq import _failure, _options, _reach, _rpc, errors
from lockstep_mq._failure import Failure
from lockstep_mq._options import Options, Tokens
from lockstep_mq._proto import admin_pb2

_RANK: dict[int, int] = {admin_pb2.ROLE_ACTIVE: 2, admin_pb2.ROLE_ACTIVE_ALONE: 2, admin_pb2.ROLE_BLOCKED: 1}
_log = logging.getLogger("lockstep_mq")
_MAX_REFUSED_WAIT = 30.0  # seconds


class Node:
    """One address."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        self.role: int = admin_pb2.ROLE_UNSPECIFIED
        self.term = 0
        self.pair_id = ""
        self.names = ""  # address of the active, as it says
        self.why = ""
        self.observed = 0  # a poll whose answer was overtaken is dropped
        self.failure: Failure | None = None
        self.told: set[str] = set()  # failures that were logged
        self.refused: float | None = None  # when it refused what this client shows
        self.asking = False  # it is asked once more after that
        self.users = 0  # attempts under way
        self.kick = asyncio.Event()
        self.again: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def rank(self) -> int:
        """2 for a node that serves, 1 for one that may serve again, 0 for others."""
        return _RANK.get(self.role, 0)


class Target:
    """One node being active in one term. `gone` is done when that ends."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.term = node.term
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def channel(self) -> grpc.aio.Channel:
        """The connection to use now."""
        return self.node.channel


class Locator:
    """Watches all nodes from start() to close()."""

    def __init__(self, options: Options, tokens: Tokens) -> None:
        self._options = options
        self.tokens = tokens
        self.nodes: list[Node] = []
        self.target: Target | None = None
        self._max_term = 0
        self._pair_id = ""
        self._waiters = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = False
        self._answered = False  # some node has said what it is
        for address in options.addresses:
            self._add(address)

    async def close(self) -> None:
        """End everything that is bound to the target, and all that waits."""
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
            Closed: The client was closed.
            TimeoutError: The deadline, of the loop's clock, has passed.
            Failure: All nodes that can be reached refuse this client.
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
        """Wait before the next attempt; the end of the target ends it."""
        if deadline is not None:
            seconds = min(seconds, max(deadline - asyncio.get_running_loop().time(), 0))
        await asyncio.wait({target.gone}, timeout=seconds)

    def failed(self, f: Failure) -> None:
        """Take note of a failed attempt: a hint may name a node that is not known, and all are asked again."""
        if f.hint and self._options.follow_hints:
            # A hint that cannot be dialled is no reason to fail: the given addresses go on being watched.
            with contextlib.suppress(errors.InvalidRequest):
                _options.check_address(f.hint)
                self._add(f.hint)
        self.ask_now()

    def ask_now(self) -> None:
        """Have all nodes asked for their status."""
        for node in self.nodes:
            node.kick.set()

    def explain(self) -> str:
        """Say what is known about each node."""
        parts = []
        for n in self.nodes:
            if n.failure is not None:
                parts.append(str(n.failure))
            elif n.role == admin_pb2.ROLE_UNSPECIFIED:
                parts.append(f"{n.address}: no answer yet")
            else:
                role = admin_pb2.Role.Name(n.role).removeprefix("ROLE_").lower()
                parts.append(f"{n.address}: {role}" + (f", {n.why}" if n.why else ""))
        return "; ".join(parts)

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

        A node that is down is tried again at once while no other is active. One that is there and ends each connection
        before it answers, as when only one end speaks TLS, is tried ever less often, down to once per probe_interval.
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
                    wait = self._options.probe_interval  # a file must change first, here or there
                elif self.target is not None:
                    wait = min(10 * wait, self._options.probe_interval)
                changed = self._changed
            await self._rest(node, max(wait, f.retry_after), changed)

    async def _rest(self, node: Node, seconds: float, changed: asyncio.Future[None] | None) -> None:
        """Wait before a node is asked again; a call that wants it now, or a change of the target, ends it."""
        node.again = asyncio.get_running_loop().create_future()
        await asyncio.wait(
            {node.again} if changed is None else {node.again, changed},
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )

    async def _watch_once(self, node: Node) -> tuple[bool, bool, Failure]:
        """Read one stream to its end: whether it said anything, whether there is a fresh token, and why it ended."""
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
            f = _failure.lost(node.address, "the node ended the stream")
        except Failure as err:
            f = err
        except Exception as err:  # the application's own source of tokens
            f = _failure.lost(node.address, f"no token to show: {err}")
        fresh = f.unauthenticated and await self.tokens.renewed(metadata)
        if delivered and fresh:
            return delivered, fresh, f  # a token has expired: nothing has happened to the node
        self._lost(node, f, again=fresh)
        if not delivered and not f.refuses_client:
            # A new connection has no waits of gRPC's own behind it: this loop alone decides when to try again.
            await self._replace(node, channel)
        return delivered, fresh, f

    async def _poll_when_asked(self, node: Node) -> None:
        """Ask for the status when it is kicked, often while a call searches, and while attempts wait for the node."""
        while not self.closed:
            searching = self.target is None and self._waiters > 0
            timeout = _options.RETRY_MAX if searching else self._options.probe_interval
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(node.kick.wait(), timeout)
            kicked = node.kick.is_set()
            node.kick.clear()
            if kicked or searching or node.users > 0:
                await self._poll(node)
            if kicked:
                await asyncio.sleep(_options.RETRY_MIN)  # calls that fail one after the other ask once

    async def _poll(self, node: Node) -> None:
        """Ask once. A node that does not answer in time is stopped or cut off: its connection is replaced."""
        asked, channel = node.observed, node.channel
        if asked == 0:
            return  # the first word comes from the watch, which is being set up
        if node.failure is not None and node.failure.mistake != _reach.NONE:
            return  # the watch tries again, at its own pace
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
        except Exception:  # the application's own source of tokens
            return
        if node.observed == asked:
            self._observe(node, status)

    async def _replace(self, node: Node, old: grpc.aio.Channel) -> None:
        """Throw a connection away that does not answer; everything on it fails at once."""
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
        node.role, node.term, node.pair_id = status.role, status.pair.term, status.pair.pair_id
        node.why, node.failure, node.refused, node.asking = status.reason, None, None, False
        node.names = ""
        for other in status.pair.nodes:
            if other.active and other.node_id != status.node.node_id:
                node.names = other.address
        self._choose()
        self._learn()

    def _lost(self, node: Node, f: Failure, *, again: bool) -> None:
        """Take note that the connection to a node broke: whatever it was, it has to say so again."""
        if f.mistake != _reach.NONE and not self._answered and f.message not in node.told:
            node.told.add(f.message)
            _log.warning("%s", f)  # a call without a timeout waits, and would never tell
        node.observed += 1
        node.role, node.why, node.failure, node.asking = admin_pb2.ROLE_UNSPECIFIED, "", f, again
        node.refused = asyncio.get_running_loop().time() if f.refuses_client and not again else None
        self._choose()
        self._learn()
        if self._refusal() is not None:
            self._wake()  # those who wait give up

    def _learn(self) -> None:
        """Make the active known that a standby names, once each known node has said what it is."""
        if self.target is not None or not self._options.follow_hints or any(n.observed == 0 for n in self.nodes):
            return
        for node in list(self.nodes):
            if node.names and node.failure is None:
                with contextlib.suppress(errors.InvalidRequest):
                    self._add(node.names)

    def _choose(self) -> None:
        """Make the node the target that serves in the highest term."""
        best: Node | None = None
        for n in self.nodes:
            if n.rank == 0:
                continue
            if n.pair_id != self._pair_id:
                self._pair_id, self._max_term = n.pair_id, 0
            if n.term < self._max_term:
                continue  # was overtaken and does not know it yet
            present = self.target is not None and self.target.node is n
            if best is None or (n.term, n.rank, present) > (best.term, best.rank, False):
                best = n
        if best is None:
            self._set_target(None)
            return
        self._max_term = best.term
        if self.target is None or self.target.node is not best or self.target.term != best.term:
            self._set_target(Target(best))

    def _set_target(self, target: Target | None) -> None:
        if self.target is target:
            return
        if self.target is not None and not self.target.gone.done():
            self.target.gone.set_result(None)
        self.target = target
        self._wake()

    def _wake(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    def _refusal(self) -> Failure | None:
        """Why no node serves this client; None if another attempt may end otherwise."""
        why: Failure | None = None
        for n in self.nodes:
            if n.asking or n.failure is None:
                return None
            if n.refused is not None:
                why = n.failure
        return why

    def _ask_again(self) -> bool:
        """Have the nodes asked once more, if the last refusal is not of this moment."""
        now, asked = asyncio.get_running_loop().time(), False
        for n in self.nodes:
            if n.refused is not None and now - n.refused >= _options.TOKEN_REREAD:
                n.asking = asked = True
                if not n.again.done():
                    n.again.set_result(None)
        return asked
