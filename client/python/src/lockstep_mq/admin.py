# SPDX-License-Identifier: Apache-2.0
"""Administration: queues, subscriptions, prepared transactions, connections, and the status of the pair."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from lockstep_mq import _rpc, connections, errors, message, queues
from lockstep_mq._calls import Request
from lockstep_mq._enums import name_of
from lockstep_mq._failure import Failure
from lockstep_mq._locator import Node
from lockstep_mq._partition_calls import Part
from lockstep_mq._proto import admin_pb2, connection_pb2, queue_pb2
from lockstep_mq._queue_calls import QueueCalls
from lockstep_mq._schedule_calls import ScheduleCalls
from lockstep_mq.connections import Connection
from lockstep_mq.queue_config import QueueConfig
from lockstep_mq.queues import Moved, PreparedTransaction, Queue, SearchProgress, Subscription

if TYPE_CHECKING:
    from google.protobuf.message import Message

_Answer = TypeVar("_Answer", bound="Message")
_Decided = TypeVar("_Decided", queue_pb2.CommitPreparedResponse, queue_pb2.RollbackPreparedResponse)


@dataclass(frozen=True)
class NodeStatus:
    """The status reported by a node.

    Attributes:
        address: Address of the node, host:port.
        name: Name of the node.
        role: Role of the node, such as "active", "active-alone" or "standby".
        reason: Reason for the role; may be empty.
        term: Term of the pair; 0 for a standalone node.
        version: Version of the software.
        conditions: Kinds of the current conditions.
    """

    address: str
    name: str
    role: str
    reason: str
    term: int
    version: str
    conditions: tuple[str, ...]


def _search(filter: str, position: SearchProgress) -> queue_pb2.Search:  # noqa: A002 # the protocol's name
    return queue_pb2.Search(filter=filter, from_sequence=position.start, before_sequence=position.before)


class Admin(QueueCalls, ScheduleCalls):
    """Administration of a pair, available as Client.admin: queues, subscriptions, schedules, messages and status.

    Calls that change state are retried without taking effect twice, unless the method states otherwise. Timeouts are
    in seconds.
    """

    async def replay_dead_letters(
        self,
        queue: str,
        *,
        subscription: str = "default",
        to: str = "",
        start: int = 0,
        limit: int = 0,
        filter: str = "",  # noqa: A002 # the protocol's name
        timeout: float | None = None,
    ) -> Moved:
        """Move messages from a dead-letter queue to their original queues, or to another queue.

        Messages in flight to a consumer are also moved. A moved message is a new message at the end of the target
        queue, for all subscriptions. Each message is moved at most once, in transactions of several messages. After an
        error, some messages may have been moved. An attempt without a response is not retried, because it could exceed
        limit: the call raises OutcomeUnknown, and another call moves the remaining messages. Such a call requires a
        limit that is reduced by the number of moved messages.

        Args:
            queue: The dead-letter queue.
            subscription: The subscription of that queue that the messages are moved from.
            to: The target queue; if empty, each dead letter is moved to its original queue, and other messages remain.
            start: The first sequence to move; 0 is the oldest. Not allowed for a partitioned queue.
            limit: The maximum number of messages; 0 is no limit.
            filter: A CEL expression that messages must match, as in Client.browse().
            timeout: Seconds to wait for a node.
        """
        moved = skipped = 0

        async def replay(part: Part, _: Request | None) -> None:
            nonlocal moved, skipped
            if limit and moved >= limit:
                return
            one = await self._replay(
                part.name,
                subscription=subscription,
                to=to,
                start=start,
                limit=max(limit - moved, 0),
                filter=filter,
                timeout=timeout,
            )
            moved, skipped = moved + one.moved, skipped + one.skipped

        if start:  # sequences belong to a partition
            await replay(Part(queue), None)
        else:
            await self._each(queue, replay, None, timeout)
        return Moved(moved, skipped)

    async def _replay(
        self,
        queue: str,
        *,
        subscription: str,
        to: str,
        start: int,
        limit: int,
        filter: str,  # noqa: A002 # the protocol's name
        timeout: float | None,
    ) -> Moved:
        progress, moved, skipped = SearchProgress(start=start), 0, 0
        while True:
            response = await self._caller.decide(
                f"replay dead letters of {queue}",
                _rpc.QUEUE + "ReplayDeadLetters",
                queue_pb2.ReplayDeadLettersRequest(
                    queue=queue,
                    subscription=subscription,
                    to=to,
                    from_sequence=progress.start,
                    before_sequence=progress.before,
                    limit=max(limit - moved, 0),
                    filter=filter,
                ),
                queue_pb2.ReplayDeadLettersResponse,
                timeout,
                again=False,
            )
            moved, skipped = moved + response.moved, skipped + response.skipped
            progress = progress.plus(response.progress)
            if progress.start >= progress.before or (limit and moved >= limit):
                return Moved(moved, skipped)

    async def move_matching(
        self,
        queue: str,
        filter: str,  # noqa: A002 # the protocol's name
        *,
        to: str = "",
        subscription: str = "",
        start: int = 0,
        before: int = 0,
        queue_id: int = 0,
        progress: Callable[[SearchProgress], None] | None = None,
        timeout: float | None = None,
    ) -> Moved:
        """Move the messages that match a filter, like move_messages(), in several transactions.

        After an error, some messages may have been moved; another call moves the remaining ones.

        Args:
            queue: The queue of the messages.
            filter: A CEL expression, as in Client.browse().
            to: The target queue; if empty, each dead letter is moved to its original queue.
            subscription: As in move_messages().
            start: The first sequence; 0 is the oldest.
            before: If not 0, only messages before this sequence. If 0, only messages that were stored when the search
                started.
            queue_id: As in move_messages().
            progress: Called after each part of the search.
            timeout: Seconds to wait for a node, for each part.
        """
        position, moved, skipped = SearchProgress(start=start, before=before, queue_id=queue_id), 0, 0
        while True:
            response = await self._caller.decide(
                f"move messages of {queue}",
                _rpc.QUEUE + "MoveMessages",
                queue_pb2.MoveMessagesRequest(
                    queue=queue,
                    subscription=subscription,
                    to=to,
                    queue_id=position.queue_id,
                    search=_search(filter, position),
                ),
                queue_pb2.MoveMessagesResponse,
                timeout,
            )
            moved, skipped = moved + response.moved, skipped + response.skipped
            position = position.plus(response.progress)
            if progress is not None:
                progress(position)
            if position.start >= position.before:
                return Moved(moved, skipped)

    async def remove_matching(
        self,
        queue: str,
        filter: str,  # noqa: A002 # the protocol's name
        *,
        subscription: str = "",
        start: int = 0,
        before: int = 0,
        queue_id: int = 0,
        progress: Callable[[SearchProgress], None] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Remove the messages that match a filter, like remove_messages(), in several transactions.

        Returns the number of removed messages. The arguments are those of move_matching().
        """
        position, removed = SearchProgress(start=start, before=before, queue_id=queue_id), 0
        while True:
            response = await self._caller.decide(
                f"remove messages of {queue}",
                _rpc.QUEUE + "RemoveMessages",
                queue_pb2.RemoveMessagesRequest(
                    queue=queue,
                    subscription=subscription,
                    queue_id=position.queue_id,
                    search=_search(filter, position),
                ),
                queue_pb2.RemoveMessagesResponse,
                timeout,
            )
            removed += response.removed
            position = position.plus(response.progress)
            if progress is not None:
                progress(position)
            if position.start >= position.before:
                return removed

    async def move_messages(
        self,
        queue: str,
        sequences: Iterable[int | tuple[int, int]],
        *,
        to: str = "",
        subscription: str = "",
        queue_id: int = 0,
        timeout: float | None = None,
    ) -> Moved:
        """Move selected messages to another queue, or dead letters to their original queues, in one transaction.

        The limit is 10,000 messages. Messages in flight to a consumer are also moved. A moved message is a new message
        at the end of the target queue, for all subscriptions. The call can be retried after any error: each message is
        moved at most once.

        Args:
            queue: The queue of the messages.
            sequences: Sequences, and ranges as pairs of the first and the last sequence.
            to: The target queue; if empty, each dead letter is moved to its original queue.
            subscription: The subscription that the messages are moved from; other subscriptions keep them. If empty,
                they are moved from all subscriptions, and the target receives each message once.
            queue_id: If not 0, the required ID of the queue: a later queue of the same name is not changed.
            timeout: Seconds to wait for a node.
        """
        response = await self._caller.decide(
            f"move messages of {queue}",
            _rpc.QUEUE + "MoveMessages",
            queue_pb2.MoveMessagesRequest(
                queue=queue,
                subscription=subscription,
                to=to,
                sequences=queues.encode_sequences(sequences),
                queue_id=queue_id,
            ),
            queue_pb2.MoveMessagesResponse,
            timeout,
        )
        return Moved(response.moved, response.skipped)

    async def remove_messages(
        self,
        queue: str,
        sequences: Iterable[int | tuple[int, int]],
        *,
        subscription: str = "",
        queue_id: int = 0,
        timeout: float | None = None,
    ) -> int:
        """Acknowledge up to 10,000 selected messages for a subscription, or for all if `subscription` is empty.

        Returns the number of messages removed by the attempt that received a response. The arguments are those of
        move_messages(). The call can be retried after any error.
        """
        response = await self._caller.decide(
            f"remove messages of {queue}",
            _rpc.QUEUE + "RemoveMessages",
            queue_pb2.RemoveMessagesRequest(
                queue=queue,
                subscription=subscription,
                sequences=queues.encode_sequences(sequences),
                queue_id=queue_id,
            ),
            queue_pb2.RemoveMessagesResponse,
            timeout,
        )
        return response.removed

    async def commit_prepared(self, xid: str, *, heuristic: bool = False, timeout: float | None = None) -> bool:
        """Commit a prepared transaction, and return whether an operator had already committed it.

        In a fleet, the call is sent to the pair where this client has prepared the transaction, otherwise to the pair
        of the client's addresses.

        The call is idempotent. With heuristic, the caller decides as an operator, in place of the transaction
        coordinator.

        Raises:
            NoTransaction: xid belongs neither to a prepared transaction nor to one of the last 10,000 decided ones.
            Decided: The transaction coordinator has rolled back the transaction.
            Heuristic: An operator or the timeout has rolled back the transaction.
            OutcomeUnknown: The call must be retried.
        """
        response = await self._decide(
            xid,
            f"commit {xid}",
            "CommitPrepared",
            queue_pb2.CommitPreparedRequest(xid=xid, heuristic=heuristic),
            queue_pb2.CommitPreparedResponse,
            timeout,
        )
        return response.heuristic

    async def rollback_prepared(self, xid: str, *, heuristic: bool = False, timeout: float | None = None) -> bool:
        """Roll back a prepared transaction, and return whether an operator or the timeout had already rolled it back.

        The errors correspond to those of commit_prepared().
        """
        response = await self._decide(
            xid,
            f"roll back {xid}",
            "RollbackPrepared",
            queue_pb2.RollbackPreparedRequest(xid=xid, heuristic=heuristic),
            queue_pb2.RollbackPreparedResponse,
            timeout,
        )
        return response.heuristic

    async def _decide(
        self, xid: str, op: str, method: str, request: Message, response: type[_Decided], timeout: float | None
    ) -> _Decided:
        try:
            pair = self._caller.fleet.prepared(xid)
            return await self._caller.decide(op, _rpc.QUEUE + method, request, response, timeout, pair=pair)
        except errors.OutcomeUnknown as err:
            if isinstance(err.refusal, errors.Decided | errors.Heuristic):
                raise err.refusal from None  # after an opposite decision, no attempt took effect
            raise

    async def list_prepared(self, *, timeout: float | None = None) -> AsyncIterator[PreparedTransaction]:
        """Iterate over the prepared transactions of the home pair that are not yet decided, oldest first."""
        asked = queue_pb2.ListPreparedRequest()
        while True:
            response = await self._ask(
                "list prepared transactions", "ListPrepared", asked, queue_pb2.ListPreparedResponse, timeout
            )
            for t in response.transactions:
                yield queues.decode_prepared(t)
            if not response.more or not response.transactions:
                return
            asked.after_lsn = response.transactions[-1].lsn

    async def status(self, *, timeout: float = 5.0) -> dict[str, NodeStatus | errors.LockstepError]:
        """Return the status of each known node by address, or the error of the request."""
        out: dict[str, NodeStatus | errors.LockstepError] = {}
        for node in list(self._caller.locator.nodes):
            try:
                s = await self._once(
                    "status",
                    node,
                    _rpc.GET_STATUS,
                    admin_pb2.GetStatusRequest(),
                    admin_pb2.GetStatusResponse,
                    timeout,
                )
            except errors.LockstepError as err:
                out[node.address] = err
                continue
            out[node.address] = NodeStatus(
                address=node.address,
                name=s.node.name,
                role=name_of(admin_pb2.Role, s.role, "role"),
                reason=s.reason,
                term=s.pair.term,
                version=s.version,
                conditions=tuple(c.kind for c in s.conditions),
            )
        return out

    async def list_connections(
        self, address: str, *, queue: str = "", timeout: float = 5.0
    ) -> AsyncIterator[Connection]:
        """Iterate over the connections to one node, oldest first. Requires the operate permission.

        Args:
            address: The address of the node, as returned by status().
            queue: If not empty, only connections with a stream that uses this queue.
            timeout: Seconds to wait for each page.

        Raises:
            Denied: This client does not have the operate permission.
            Unavailable: The node does not respond.
        """
        node = self._node(address)
        asked = connection_pb2.ListConnectionsRequest(queue=queue)
        while True:
            response = await self._once(
                "list connections",
                node,
                _rpc.CONNECTION + "ListConnections",
                asked,
                connection_pb2.ListConnectionsResponse,
                timeout,
            )
            for c in response.connections:
                yield connections.decode(c)
            if not response.more or not response.connections:
                return
            asked.after_id = response.connections[-1].id

    async def close_connection(self, address: str, id: int, *, timeout: float = 5.0) -> Connection:  # noqa: A002
        """Close a connection to a node by its number, and return its description. Requires the operate permission.

        The client reconnects automatically: to exclude it, revoke its permissions or its token.

        Raises:
            WrongState: The connection does not exist.
            InvalidRequest: The connection belongs to the other node of the pair.
            Denied: This client does not have the operate permission.
            OutcomeUnknown: The node did not respond.
        """
        response = await self._once(
            "close connection",
            self._node(address),
            _rpc.CONNECTION + "CloseConnection",
            connection_pb2.CloseConnectionRequest(id=id),
            connection_pb2.CloseConnectionResponse,
            timeout,
            unknown=True,
        )
        return connections.decode(response.connection)

    async def switchover(self, *, to: str = "", timeout: float = 10.0) -> str:
        """Transfer the active role to the other node, and return the address of the active node.

        `to` is the name or the UUID of the node to activate; if empty, it is the other node. timeout limits the
        transfer on the node; the call waits up to twice as long for each response. The call is retried until a node
        responds, which is safe: the target is determined before the first attempt.
        """
        limit = 2 * timeout
        if not to:
            status = await self._caller.ask(
                "switchover",
                _rpc.GET_STATUS,
                admin_pb2.GetStatusRequest(),
                admin_pb2.GetStatusResponse,
                limit,
            )
            others = [n.node_id for n in status.pair.nodes if not n.active]
            if not others:
                raise errors.WrongState("switchover: the pair has no other node", reason="NO_PEER")
            to = others[0]
        response = await self._caller.decide(
            "switchover",
            _rpc.ADMIN + "Switchover",
            admin_pb2.SwitchoverRequest(to=to, timeout=message.duration(timedelta(seconds=timeout))),
            admin_pb2.SwitchoverResponse,
            limit,
        )
        return response.active_address

    def _node(self, address: str) -> Node:
        known = {n.address: n for n in self._caller.locator.nodes}
        if address not in known:
            raise errors.InvalidRequest(f"unknown node {address}; known nodes: {', '.join(known)}")
        return known[address]

    async def _once(
        self,
        op: str,
        node: Node,
        method: str,
        request: Message,
        response: type[_Answer],
        timeout: float,
        *,
        unknown: bool = False,
    ) -> _Answer:
        """Send one request to one node, without retries. With `unknown`, the request changes state."""
        deadline = self._caller.deadline(timeout)
        metadata = await self._caller.locator.tokens.metadata()
        call: Awaitable[_Answer] = self._caller.unary(node.channel, method, request, response, metadata)
        try:
            return await _rpc.bound(call, node.address, deadline=deadline)
        except Failure as f:
            raise f.error(op, unknown=unknown and not f.answered) from None


__all__ = ["Admin", "Connection", "NodeStatus", "Queue", "QueueConfig", "Request", "Subscription"]
