# SPDX-License-Identifier: Apache-2.0
"""The calls of Client.admin for queues and subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.field_mask_pb2 import FieldMask

from lockstep_mq import _rpc, errors, message, queues
from lockstep_mq._calls import Caller, Request
from lockstep_mq._partition import MAX_PARTITIONS, MIN_PARTITIONS, partition_name
from lockstep_mq._proto import queue_pb2
from lockstep_mq.queue_config import QueueConfig
from lockstep_mq.queues import (
    Forward,
    History,
    Order,
    Policy,
    Queue,
    QueueList,
    RedeliveryPolicy,
    Start,
    Subscription,
)

if TYPE_CHECKING:
    from typing import TypeVar

    from google.protobuf.message import Message

    Resp = TypeVar("Resp", bound=Message)


class QueueCalls:
    """Calls for queues and subscriptions. A Request makes a call that changes state idempotent."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def _change(
        self,
        op: str,
        method: str,
        request: Message,
        response: type[Resp],
        under: Request | None,
        timeout: float | None,
    ) -> Resp:
        return await self._caller.change(op, _rpc.QUEUE + method, request, response, timeout=timeout, under=under)

    async def _ask(self, op: str, method: str, request: Message, response: type[Resp], timeout: float | None) -> Resp:
        return await self._caller.ask(op, _rpc.QUEUE + method, request, response, timeout)

    async def create_queue(
        self,
        name: str,
        config: QueueConfig | None = None,
        *,
        subscriptions: Iterable[str] = (),
        topic: bool = False,
        if_not_exists: bool = False,
        explicit: Iterable[str] = (),
        placement_group: str = "",
        partitions: int = 0,
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """Create a queue.

        Args:
            name: Name of the queue: 1 to 255 characters of [A-Za-z0-9._/{}-], beginning with a letter or digit.
            config: Options that are set on the queue itself.
            subscriptions: Names of the initial subscriptions; by default one, "default".
            topic: Create the queue without subscriptions: messages are stored only for subscriptions that are created
                later.
            if_not_exists: Return an existing queue unchanged, instead of raising AlreadyExists.
            explicit: Names of options that are set to 0 on the queue itself, so that no policy applies to them.
            placement_group: In a fleet, the queue is created at the pair of the other queues of this group, or else of
                the queue with this name. By default, the text between the first { and the next } in the name, if any.
            partitions: If not 0, create a partitioned queue with 2 to 64 partitions, and return the first one. Limits
                in config apply to each partition. If config.dead_letter or placement_group is a queue with the same
                number of partitions, each partition has or follows the partition with the same index. If a call fails,
                another call creates the missing partitions. A request is not allowed.
            request: Makes the call idempotent after OutcomeUnknown.
            timeout: Seconds to wait for a node.
        """
        if partitions:
            return await self._create_partitions(
                name,
                config or QueueConfig(),
                partitions,
                placement_group,
                {"subscriptions": list(subscriptions), "topic": topic, "explicit": list(explicit)},
                if_not_exists=if_not_exists,
                request=request,
                timeout=timeout,
            )
        created = await self._create(
            name,
            config,
            subscriptions=subscriptions,
            topic=topic,
            if_not_exists=if_not_exists,
            explicit=explicit,
            placement_group=placement_group,
            request=request,
            timeout=timeout,
        )
        return queues.decode_queue(created.queue)

    async def _create_partitions(
        self,
        name: str,
        config: QueueConfig,
        count: int,
        group: str,
        options: dict[str, Any],
        *,
        if_not_exists: bool,
        request: Request | None,
        timeout: float | None,
    ) -> Queue:
        if not MIN_PARTITIONS <= count <= MAX_PARTITIONS:
            raise errors.InvalidRequest(f"{count} partitions, must be {MIN_PARTITIONS} to {MAX_PARTITIONS}")
        if request is not None:
            raise errors.InvalidRequest("a request cannot be used with partitions")
        dead_letters = await self._has_partitions(config.dead_letter, count, timeout)
        if not group and dead_letters:
            group = config.dead_letter
        groups = await self._has_partitions(group, count, timeout)
        created: list[queue_pb2.CreateQueueResponse] = []
        for i in range(count):
            one = replace(config, dead_letter=partition_name(config.dead_letter, i, count)) if dead_letters else config
            created.append(
                await self._create(
                    partition_name(name, i, count),
                    one,
                    if_not_exists=True,
                    placement_group=partition_name(group, i, count) if groups else group,
                    timeout=timeout,
                    **options,
                )
            )
        if not if_not_exists and not any(c.created for c in created):
            raise errors.AlreadyExists(f"create queue {name}: the queue exists", reason="QUEUE_EXISTS")
        return queues.decode_queue(created[0].queue)

    async def _has_partitions(self, queue: str, count: int, timeout: float | None) -> bool:
        """Return whether a queue has the given number of partitions."""
        if not queue:
            return False
        try:
            await self.get_queue(queue, timeout=timeout)
        except errors.QueueNotFound:
            return False
        except errors.LockstepError as err:
            if not err.partitions:
                raise
            return err.partitions == count
        return False

    async def _create(
        self,
        name: str,
        config: QueueConfig | None,
        *,
        subscriptions: Iterable[str],
        topic: bool,
        if_not_exists: bool,
        explicit: Iterable[str],
        placement_group: str,
        request: Request | None = None,
        timeout: float | None = None,
    ) -> queue_pb2.CreateQueueResponse:
        asked = queue_pb2.CreateQueueRequest(
            name=name,
            config=queues.encode_config(config or QueueConfig()),
            subscriptions=list(subscriptions),
            topic=topic,
            if_not_exists=if_not_exists,
            explicit_fields=list(explicit),
            placement_group=placement_group,
        )
        return await self._change(
            f"create queue {name}", "CreateQueue", asked, queue_pb2.CreateQueueResponse, request, timeout
        )

    async def alter_queue(
        self,
        name: str,
        config: QueueConfig,
        change: Iterable[str],
        *,
        reset: Iterable[str] = (),
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """Change options of a queue.

        Args:
            name: Name of the queue.
            config: Values of the options in `change`.
            change: Names of the options to set on the queue itself, even to 0. "*" sets all options that are not 0 in
                `config`; policies apply to all other options.
            reset: Names of options to unset on the queue, so that policies apply to them.
            request: Makes the call idempotent after OutcomeUnknown.
            timeout: Seconds to wait for a node.
        """
        asked = queue_pb2.AlterQueueRequest(
            name=name,
            config=queues.encode_config(config),
            update_mask=FieldMask(paths=list(change)),
            reset_fields=list(reset),
        )
        response = await self._change(
            f"alter queue {name}", "AlterQueue", asked, queue_pb2.AlterQueueResponse, request, timeout
        )
        return queues.decode_queue(response.queue)

    async def delete_queue(
        self, name: str, *, if_empty: bool = False, request: Request | None = None, timeout: float | None = None
    ) -> int:
        """Delete a queue with its messages, and return the number of messages."""
        asked = queue_pb2.DeleteQueueRequest(name=name, if_empty=if_empty)
        response = await self._change(
            f"delete queue {name}", "DeleteQueue", asked, queue_pb2.DeleteQueueResponse, request, timeout
        )
        return response.messages

    async def purge_queue(
        self, name: str, subscription: str = "", *, request: Request | None = None, timeout: float | None = None
    ) -> int:
        """Acknowledge all messages of a subscription (if empty, of all subscriptions), and return their number."""
        asked = queue_pb2.PurgeQueueRequest(name=name, subscription=subscription)
        response = await self._change(
            f"purge {name}", "PurgeQueue", asked, queue_pb2.PurgeQueueResponse, request, timeout
        )
        return response.messages

    async def set_forwards(
        self,
        queue: str,
        forwards: Iterable[Forward],
        *,
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """Replace the forwards of a queue: up to 16, each with a different target. An empty list removes all.

        Stored messages are not affected.
        """
        asked = queue_pb2.SetForwardsRequest(queue=queue, forwards=[queues.encode_forward(f) for f in forwards])
        response = await self._change(
            f"forward {queue}", "SetForwards", asked, queue_pb2.SetForwardsResponse, request, timeout
        )
        return queues.decode_queue(response.queue)

    async def put_policy(
        self, policy: Policy, *, request: Request | None = None, timeout: float | None = None
    ) -> Policy:
        """Create a policy, or replace the policy with the same pattern. Requires the operate permission."""
        asked = queue_pb2.PutPolicyRequest(policy=queues.encode_queue_policy(policy))
        response = await self._change(
            f"set policy {policy.pattern}", "PutPolicy", asked, queue_pb2.PutPolicyResponse, request, timeout
        )
        return queues.decode_queue_policy(response.policy)

    async def delete_policy(
        self, pattern: str, *, request: Request | None = None, timeout: float | None = None
    ) -> None:
        """Delete a policy. Requires the operate permission."""
        asked = queue_pb2.DeletePolicyRequest(pattern=pattern)
        await self._change(
            f"delete policy {pattern}", "DeletePolicy", asked, queue_pb2.DeletePolicyResponse, request, timeout
        )

    async def policies(self, *, timeout: float | None = None) -> tuple[Policy, ...]:
        """Return all policies, sorted by pattern."""
        response = await self._ask(
            "list policies",
            "ListPolicies",
            queue_pb2.ListPoliciesRequest(),
            queue_pb2.ListPoliciesResponse,
            timeout,
        )
        return tuple(queues.decode_queue_policy(p) for p in response.policies)

    async def pause_queue(
        self,
        name: str,
        subscription: str = "",
        *,
        publish: bool = False,
        deliver: bool = False,
        reason: str = "",
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """Pause publishing to a queue, its delivery or both, or the delivery of a subscription.

        If neither `publish` nor `deliver` is set, both are paused, or only delivery for a subscription. The pause
        survives failovers and restarts.
        """
        asked = queue_pb2.PauseQueueRequest(
            queue=name, subscription=subscription, publish=publish, deliver=deliver, reason=reason
        )
        response = await self._change(
            f"pause queue {name}", "PauseQueue", asked, queue_pb2.PauseQueueResponse, request, timeout
        )
        return queues.decode_queue(response.queue)

    async def resume_queue(
        self,
        name: str,
        subscription: str = "",
        *,
        publish: bool = False,
        deliver: bool = False,
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Queue:
        """End a pause, in whole or in part. Subscriptions that were paused separately stay paused."""
        asked = queue_pb2.ResumeQueueRequest(queue=name, subscription=subscription, publish=publish, deliver=deliver)
        response = await self._change(
            f"resume queue {name}", "ResumeQueue", asked, queue_pb2.ResumeQueueResponse, request, timeout
        )
        return queues.decode_queue(response.queue)

    async def get_queue(self, name: str, *, timeout: float | None = None) -> Queue:
        """Return a queue."""
        response = await self._ask(
            f"get queue {name}",
            "GetQueue",
            queue_pb2.GetQueueRequest(name=name),
            queue_pb2.GetQueueResponse,
            timeout,
        )
        return queues.decode_queue(response.queue)

    async def history(
        self, queue: str = "", period: timedelta = timedelta(hours=1), *, timeout: float | None = None
    ) -> History:
        """Return the recorded values of a queue, or the sum of all queues.

        Args:
            queue: Name of the queue; empty for all queues.
            period: Period before now, up to 24 hours.
            timeout: Seconds to wait for a node.
        """
        asked = queue_pb2.GetHistoryRequest(queue=queue, since=message.duration(period))
        response = await self._ask(
            f"get the history of {queue}", "GetHistory", asked, queue_pb2.GetHistoryResponse, timeout
        )
        return queues.decode_history(response)

    async def list_queues(self, prefix: str = "", *, timeout: float | None = None) -> AsyncIterator[Queue]:
        """Iterate over the queues with names that begin with prefix, sorted by name. timeout applies to each page."""
        asked = queue_pb2.ListQueuesRequest(prefix=prefix)
        while True:
            response = await self._ask("list queues", "ListQueues", asked, queue_pb2.ListQueuesResponse, timeout)
            for q in response.queues:
                yield queues.decode_queue(q)
            if not response.next_page_token:
                return
            asked.page_token = response.next_page_token

    async def queue_table(
        self,
        prefix: str = "",
        *,
        contains: str = "",
        order: Order = "name",
        descending: bool = False,
        offset: int = 0,
        limit: int = 1000,
        timeout: float | None = None,
    ) -> QueueList:
        """List one page of queues with their activity, in any order.

        The call is intended for tables: the node scans all of its queues for it, at most once a second for all
        clients.

        Args:
            prefix: Prefix of the names.
            contains: Case-insensitive substring of the names.
            order: Sort key; queues with equal keys are sorted by name.
            descending: Reverse the order.
            offset: Number of queues to skip.
            limit: Maximum number of queues, 1 to 1,000.
            timeout: Seconds to wait for a node.
        """
        asked = queue_pb2.ListQueuesRequest(
            prefix=prefix,
            contains=contains,
            order=queues.encode_order(order),
            descending=descending,
            offset=offset,
            page_size=limit,
            activity=True,
        )
        response = await self._ask("list queues", "ListQueues", asked, queue_pb2.ListQueuesResponse, timeout)
        return QueueList(
            queues=tuple(queues.decode_queue(q) for q in response.queues),
            total=response.total,
            uncertain=response.order_uncertain,
        )

    async def create_subscription(
        self,
        queue: str,
        name: str,
        *,
        start: Start | int | datetime = "latest",
        filter: str = "",  # noqa: A002 # the protocol's name
        redelivery: RedeliveryPolicy | None = None,
        if_not_exists: bool = False,
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """Create a subscription: a durable cursor on a queue.

        Args:
            queue: Name of the queue.
            name: Name of the subscription.
            start: First message: "latest" (published after the call), "earliest" (stored), a sequence, or a time with
                a time zone.
            filter: A CEL expression of up to 4,096 bytes that messages must match; empty for all messages.
            redelivery: Settings that override the configuration of the queue.
            if_not_exists: Return an existing subscription unchanged, instead of raising AlreadyExists.
            request: Makes the call idempotent after OutcomeUnknown.
            timeout: Seconds to wait for a node.
        """
        asked = queue_pb2.CreateSubscriptionRequest(queue=queue, name=name, filter=filter, if_not_exists=if_not_exists)
        if isinstance(start, datetime):
            asked.start_time.CopyFrom(message.timestamp(start, "start"))
        elif isinstance(start, int):
            asked.start_sequence = start
        else:
            asked.start = queues.START[start]
        if redelivery is not None:
            asked.redelivery.CopyFrom(queues.encode_policy(redelivery)[0])
        response = await self._change(
            f"create subscription {queue}/{name}",
            "CreateSubscription",
            asked,
            queue_pb2.CreateSubscriptionResponse,
            request,
            timeout,
        )
        return queues.decode_subscription(response.subscription)

    async def alter_subscription(
        self,
        queue: str,
        name: str = "default",
        *,
        filter: str | None = None,  # noqa: A002 # the protocol's name
        redelivery: RedeliveryPolicy | None = None,
        inherit: Iterable[str] = (),
        request: Request | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """Change a subscription. Settings without an argument remain unchanged.

        Args:
            queue: Name of the queue.
            name: Name of the subscription.
            filter: The new filter; if empty, the subscription receives all messages. Messages that the active has
                already read for a consumer, and that did not match the old filter, are acknowledged and not delivered
                later.
            redelivery: Settings to override.
            inherit: Names of RedeliveryPolicy fields to inherit from the queue again.
            request: Makes the call idempotent after OutcomeUnknown.
            timeout: Seconds to wait for a node.
        """
        policy, named = queues.encode_policy(redelivery or RedeliveryPolicy())
        inherited = list(inherit)
        for both in set(named) & set(inherited):
            raise errors.InvalidRequest(f"{both} is both set and inherited")
        paths = ([] if filter is None else ["filter"]) + [f"redelivery.{path}" for path in named + inherited]
        asked = queue_pb2.AlterSubscriptionRequest(
            queue=queue, name=name, filter=filter or "", redelivery=policy, update_mask=FieldMask(paths=paths)
        )
        response = await self._change(
            f"alter subscription {queue}/{name}",
            "AlterSubscription",
            asked,
            queue_pb2.AlterSubscriptionResponse,
            request,
            timeout,
        )
        return queues.decode_subscription(response.subscription)

    async def delete_subscription(
        self, queue: str, name: str, *, request: Request | None = None, timeout: float | None = None
    ) -> None:
        """Delete a subscription, and the messages that all other subscriptions have acknowledged."""
        await self._change(
            f"delete subscription {queue}/{name}",
            "DeleteSubscription",
            queue_pb2.DeleteSubscriptionRequest(queue=queue, name=name),
            queue_pb2.DeleteSubscriptionResponse,
            request,
            timeout,
        )

    async def seek(
        self,
        queue: str,
        to: Start | int | datetime,
        *,
        subscription: str = "default",
        request: Request | None = None,
        timeout: float | None = None,
    ) -> int:
        """Move a subscription, and return the sequence of its next message.

        Messages below the position are acknowledged. Stored messages from the position on are delivered, even if they
        were delivered before. Earlier deliveries to attached consumers count as answered.

        Args:
            queue: Name of the queue.
            to: The position: "latest", "earliest", a sequence, or a time with a time zone.
            subscription: Name of the subscription.
            request: Makes the call idempotent after OutcomeUnknown.
            timeout: Seconds to wait for a node.
        """
        asked = queue_pb2.SeekSubscriptionRequest(queue=queue, subscription=subscription)
        if isinstance(to, datetime):
            asked.time.CopyFrom(message.timestamp(to, "to"))
        elif isinstance(to, int):
            asked.sequence = to
        else:
            asked.position = queues.START[to]
        response = await self._change(
            f"seek {queue}/{subscription}",
            "SeekSubscription",
            asked,
            queue_pb2.SeekSubscriptionResponse,
            request,
            timeout,
        )
        return response.sequence
