# SPDX-License-Identifier: Apache-2.0
"""Queues, subscriptions, prepared transactions, connections, and the status of the pair."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from lockstep_mq import _rpc, connections, errors, message, queues
from lockstep_mq._calls import Request
from lockstep_mq._failure import Failure
from lockstep_mq._locator import Node
from lockstep_mq._proto import admin_pb2, connection_pb2, queue_pb2
from lockstep_mq._queue_calls import QueueCalls
from lockstep_mq.connections import Connection
from lockstep_mq.queues import Moved, PreparedTransaction, Queue, QueueConfig, Subscription

if TYPE_CHECKING:
    from google.protobuf.message import Message

_Answer = TypeVar("_Answer", bound="Message")
_Decided = TypeVar("_Decided", queue_pb2.CommitPreparedResponse, queue_pb2.RollbackPreparedResponse)


@dataclass(frozen=True)
class NodeStatus:
    """What a node says of itself."""

    address: str
    name: str
    role: str
    reason: str
    term: int
    version: str
    conditions: tuple[str, ...]


class Admin(QueueCalls):
    """Queues, subscriptions, messages, connections and status, as Client.admin.

    What changes something is repeated until it is answered, so that it is done once. Errors are those of
    lockstep_mq.errors; a timeout is in seconds.
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
        """Move messages from a dead-letter queue back to the queues that they come from, or to another one.

        Also those that a consumer holds. A message that is moved back is a new one there, at the end, for all
        subscriptions. Each is moved once at most, together with some others in one transaction, and what was moved
        stays moved when the call fails. An attempt that was not answered is not made again, since it could move more
        than limit: it ends with OutcomeUnknown, and another call moves what is left.

        Args:
            queue: The queue that holds them.
            subscription: Of it, that they are taken from.
            to: The queue that they are moved to; empty: each to the one that it comes from. Messages that are no dead
                letters are moved only if this is set.
            start: First sequence to move; 0 is the oldest.
            limit: At most so many; 0 is all.
            filter: Only messages that match this expression in CEL.
            timeout: Seconds to wait for a node.
        """
        response = await self._caller.decide(
            f"replay dead letters of {queue}",
            _rpc.QUEUE + "ReplayDeadLetters",
            queue_pb2.ReplayDeadLettersRequest(
                queue=queue, subscription=subscription, to=to, from_sequence=start, limit=limit, filter=filter
            ),
            queue_pb2.ReplayDeadLettersResponse,
            timeout,
            again=False,
        )
        return Moved(response.moved, response.skipped)

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
        """Move chosen messages of a queue to another one, or dead letters back; at most 10,000, in one transaction.

        Also those that a consumer holds. A message that is moved is a new one at the end of its queue, for all
        subscriptions. The call may be made again after any error: each message is moved once at most.

        Args:
            queue: The queue that they are in.
            sequences: Sequences, and inclusive ranges of them as pairs.
            to: The queue that they are moved to; empty: each to the one that it comes from as a dead letter.
            subscription: That they are taken from; the others keep theirs. Empty: all of them, and the target gets each
                message once.
            queue_id: If not 0, the number that the queue must have: another one of its name is left alone.
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
        """Acknowledge chosen messages for a subscription, or for all; returns how many the answered attempt removed.

        The arguments are those of move_messages(), and it may be made again after any error, too.
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
        """Carry a prepared transaction out, and return whether an operator had decided so before. It may be repeated.

        heuristic: an operator decides in the coordinator's place, which will be told.

        Raises:
            NoTransaction: None of that xid is prepared, nor among the last 10,000 that were decided.
            Decided: The coordinator has rolled it back.
            Heuristic: An operator, or the time-out, has rolled it back.
            OutcomeUnknown: It is to be called again.
        """
        response = await self._decide(
            f"commit {xid}",
            "CommitPrepared",
            queue_pb2.CommitPreparedRequest(xid=xid, heuristic=heuristic),
            queue_pb2.CommitPreparedResponse,
            timeout,
        )
        return response.heuristic

    async def rollback_prepared(self, xid: str, *, heuristic: bool = False, timeout: float | None = None) -> bool:
        """Drop a prepared transaction. As commit_prepared(), the other way round."""
        response = await self._decide(
            f"roll back {xid}",
            "RollbackPrepared",
            queue_pb2.RollbackPreparedRequest(xid=xid, heuristic=heuristic),
            queue_pb2.RollbackPreparedResponse,
            timeout,
        )
        return response.heuristic

    async def _decide(
        self, op: str, method: str, request: Message, response: type[_Decided], timeout: float | None
    ) -> _Decided:
        try:
            return await self._caller.decide(op, _rpc.QUEUE + method, request, response, timeout)
        except errors.OutcomeUnknown as err:
            if isinstance(err.refusal, errors.Decided | errors.Heuristic):
                raise err.refusal from None  # that it was decided otherwise is true of every attempt
            raise

    async def list_prepared(self, *, timeout: float | None = None) -> AsyncIterator[PreparedTransaction]:
        """Describe the transactions that wait for a decision, the oldest first."""
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
        """Ask each known node for its status: by address, the status or why there is none."""
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
                role=admin_pb2.Role.Name(s.role).removeprefix("ROLE_").lower(),
                reason=s.reason,
                term=s.pair.term,
                version=s.version,
                conditions=tuple(c.kind for c in s.conditions),
            )
        return out

    async def list_connections(
        self, address: str, *, queue: str = "", timeout: float = 5.0
    ) -> AsyncIterator[Connection]:
        """Describe the connections to one node, the oldest first. It needs the right to operate.

        Args:
            address: Of the node, as status() names it.
            queue: Only connections with a stream that uses this queue.
            timeout: Seconds to wait for each page.

        Raises:
            Denied: This client may not operate.
            Unavailable: The node does not answer.
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
        """Close a connection to a node by its number, and return what it was. It needs the right to operate.

        A client connects again by itself: to keep it away, take its rights or its token.

        Raises:
            WrongState: There is no such connection.
            InvalidRequest: It is the connection of the other node.
            Denied: This client may not operate.
            OutcomeUnknown: The node did not answer.
        """
        response = await self._once(
            "close connection",
            self._node(address),
            _rpc.CONNECTION + "CloseConnection",
            connection_pb2.CloseConnectionRequest(id=id),
            connection_pb2.CloseConnectionResponse,
            timeout,
            doubt=True,
        )
        return connections.decode(response.connection)

    async def switchover(self, *, to: str = "", timeout: float = 10.0) -> str:
        """Hand the active role to the other node, or to the one named; returns the address of the active.

        It is repeated until it is answered, which is safe: where the role is to go is decided before it is asked for.
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
            raise errors.InvalidRequest(f"this client knows no node at {address}; it knows {', '.join(known)}")
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
        doubt: bool = False,
    ) -> _Answer:
        """Ask one node, once. doubt: the call changes something."""
        deadline = self._caller.deadline(timeout)
        metadata = await self._caller.locator.tokens.metadata()
        call: Awaitable[_Answer] = self._caller.unary(node.channel, method, request, response, metadata)
        try:
            return await _rpc.bound(call, node.address, deadline=deadline)
        except Failure as f:
            raise f.error(op, doubt=doubt and not f.answered) from None


__all__ = ["Admin", "Connection", "NodeStatus", "Queue", "QueueConfig", "Request", "Subscription"]
