# SPDX-License-Identifier: Apache-2.0
"""The calls of Client.admin for queues and subscriptions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from lockstep_mq import errors, message, queues
from lockstep_mq._calls import Request
from lockstep_mq._partition import MAX_PARTITIONS, MIN_PARTITIONS, partition_name, tagged
from lockstep_mq._partition_calls import Part, PartitionCalls
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


class QueueCalls(PartitionCalls):
    """Calls for queues and subscriptions. A Request makes a call that changes state idempotent.

    Except for lists and the history, calls for a partitioned queue apply to its partitions, one after the other. If
    such a call raises an error, repeat it. The timeout applies to each partition.
    """

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
            topic: Create the queue without subscriptions. Without a retention, messages that are published before the
                first subscription exists are not stored.
            if_not_exists: Return an existing queue unchanged, instead of raising AlreadyExists.
            explicit: Names of options that are set to 0 on the queue itself, so that no policy applies to them.
            placement_group: In a fleet, the queue is created at the pair of the other queues of this group, or else of
                the queue with this name. By default, the text between the first { and the next } in the name, if any,
                or else config.dead_letter if both queues have the same number of partitions.
            partitions: If not 0, create a partitioned queue with 2 to 64 partitions. Limits in config apply to each
                partition. If config.dead_letter is a queue with the same number of partitions, the dead-letter queue of
                partition i is partition i of that queue. If placement_group is such a queue, partition i is created at
                the pair of partition i of that queue. If a call fails, another call creates the missing partitions.
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
        dead_letters = bool(config.dead_letter) and await self._partitions(config.dead_letter, timeout) == count
        if not group and dead_letters and not tagged(name):
            group = config.dead_letter
        groups = bool(group) and await self._partitions(group, timeout) == count

        async def create(part: Part, under: Request | None) -> queue_pb2.CreateQueueResponse:
            dead_letter = partition_name(config.dead_letter, part.index, count) if dead_letters else config.dead_letter
            return await self._create(
                part.name,
                replace(config, dead_letter=dead_letter),
                if_not_exists=True,
                placement_group=partition_name(group, part.index, count) if groups else group,
                request=under,
                timeout=timeout,
                **options,
            )

        created = await self._each_of(name, count, create, request)
        if not if_not_exists and len(created) == count and not any(c.created for c in created):
            raise errors.AlreadyExists(f"create queue {name}: the queue exists", reason="QUEUE_EXISTS")
        if not created:  # a retry: all calls had succeeded
            return await self._existing(name, count, timeout)
        return queues.total(name, [queues.decode_queue(c.queue) for c in created])

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

        async def alter(part: Part, under: Request | None) -> Queue:
            one = queue_pb2.AlterQueueRequest()
            one.CopyFrom(asked)
            one.name = part.name
            one.config.dead_letter = await self._part_of(part, config.dead_letter, timeout)
            response = await self._change(
                f"alter queue {part.name}", "AlterQueue", one, queue_pb2.AlterQueueResponse, under, timeout
            )
            return queues.decode_queue(response.queue)

        return await self._change_queue(name, alter, request, timeout)

    async def delete_queue(
        self, name: str, *, if_empty: bool = False, request: Request | None = None, timeout: float | None = None
    ) -> int:
        """Delete a queue with its messages, and return the number of messages.

        With if_empty, the call raises an error if the queue contains messages. The partitions of a queue are then
        deleted only if all of them are empty.
        """

        async def delete(part: Part, under: Request | None) -> int:
            asked = queue_pb2.DeleteQueueRequest(name=part.name, if_empty=if_empty)
            op = f"delete queue {part.name}"
            try:
                response = await self._change(op, "DeleteQueue", asked, queue_pb2.DeleteQueueResponse, under, timeout)
            except errors.QueueNotFound:
                if part.count:
                    return 0  # an earlier call has deleted it
                raise
            return response.messages

        try:
            return await delete(Part(name), request)
        except errors.LockstepError as err:
            if err.partitioned_queue != name:
                raise
            count = err.partitions
        if if_empty and (await self._existing(name, count, timeout)).messages:
            raise errors.NotEmpty(f"delete queue {name}: the queue contains messages", reason="QUEUE_NOT_EMPTY")
        return sum(await self._each_of(name, count, delete, request))

    async def purge_queue(
        self, name: str, subscription: str = "", *, request: Request | None = None, timeout: float | None = None
    ) -> int:
        """Acknowledge all messages of a subscription (if empty, of all subscriptions), and return their number."""

        async def purge(part: Part, under: Request | None) -> int:
            asked = queue_pb2.PurgeQueueRequest(name=part.name, subscription=subscription)
            response = await self._change(
                f"purge {part.name}", "PurgeQueue", asked, queue_pb2.PurgeQueueResponse, under, timeout
            )
            return response.messages

        return sum((await self._each(name, purge, request, timeout))[0])

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
        encoded = [queues.encode_forward(f) for f in forwards]

        async def forward(part: Part, under: Request | None) -> Queue:
            asked = queue_pb2.SetForwardsRequest(queue=part.name, forwards=encoded)
            response = await self._change(
                f"forward {part.name}", "SetForwards", asked, queue_pb2.SetForwardsResponse, under, timeout
            )
            return queues.decode_queue(response.queue)

        return await self._change_queue(queue, forward, request, timeout)

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

        async def pause(part: Part, under: Request | None) -> Queue:
            asked = queue_pb2.PauseQueueRequest(
                queue=part.name, subscription=subscription, publish=publish, deliver=deliver, reason=reason
            )
            response = await self._change(
                f"pause queue {part.name}", "PauseQueue", asked, queue_pb2.PauseQueueResponse, under, timeout
            )
            return queues.decode_queue(response.queue)

        return await self._change_queue(name, pause, request, timeout)

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

        async def resume(part: Part, under: Request | None) -> Queue:
            asked = queue_pb2.ResumeQueueRequest(
                queue=part.name, subscription=subscription, publish=publish, deliver=deliver
            )
            response = await self._change(
                f"resume queue {part.name}", "ResumeQueue", asked, queue_pb2.ResumeQueueResponse, under, timeout
            )
            return queues.decode_queue(response.queue)

        return await self._change_queue(name, resume, request, timeout)

    async def get_queue(self, name: str, *, timeout: float | None = None) -> Queue:
        """Return a queue. For a partitioned queue, return the sums of its existing partitions."""
        try:
            return await self._get(name, timeout)
        except errors.LockstepError as err:
            if err.partitioned_queue != name:
                raise
            count = err.partitions
        return await self._existing(name, count, timeout)

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
        """Iterate over the queues of the home pair with names that begin with prefix, sorted by name.

        timeout applies to each page.
        """
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
        """List one page of the queues of the home pair with their activity, in the given order.

        The call is expensive: the node scans all of its queues.

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
            if_not_exists: Return an existing subscription unchanged, instead of raising AlreadyExists. Always applies
                to a partitioned queue.
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

        async def create(part: Part, under: Request | None) -> Subscription:
            one = queue_pb2.CreateSubscriptionRequest()
            one.CopyFrom(asked)
            one.queue = part.name
            one.if_not_exists = asked.if_not_exists or part.count > 0  # completes an earlier call
            op, response = f"create subscription {part.name}/{name}", queue_pb2.CreateSubscriptionResponse
            created = await self._change(op, "CreateSubscription", one, response, under, timeout)
            return queues.decode_subscription(created.subscription)

        return await self._change_subscription(queue, name, create, request, timeout)

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
            filter: The new filter; if empty, the subscription receives all messages. Messages that did not match the
                old filter may already be acknowledged; they are not delivered.
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

        async def alter(part: Part, under: Request | None) -> Subscription:
            one = queue_pb2.AlterSubscriptionRequest()
            one.CopyFrom(asked)
            one.queue = part.name
            if policy.dead_letter:
                one.redelivery.dead_letter = await self._part_of(part, policy.dead_letter, timeout)
            op, response = f"alter subscription {part.name}/{name}", queue_pb2.AlterSubscriptionResponse
            altered = await self._change(op, "AlterSubscription", one, response, under, timeout)
            return queues.decode_subscription(altered.subscription)

        return await self._change_subscription(queue, name, alter, request, timeout)

    async def _change_subscription(
        self,
        queue: str,
        name: str,
        call: Callable[[Part, Request | None], Awaitable[Subscription]],
        under: Request | None,
        timeout: float | None,
    ) -> Subscription:
        """Change a subscription of a queue or of each of its partitions, and return it."""
        changed, partitioned = await self._each(queue, call, under, timeout)
        if not partitioned:
            return changed[0]
        described = await self.get_queue(queue, timeout=timeout)
        return next(s for s in described.subscriptions if s.name == name)

    async def delete_subscription(
        self, queue: str, name: str, *, request: Request | None = None, timeout: float | None = None
    ) -> None:
        """Delete a subscription.

        Messages that only this subscription had not acknowledged are deleted, unless the queue retains them.
        """

        async def delete(part: Part, under: Request | None) -> None:
            asked = queue_pb2.DeleteSubscriptionRequest(queue=part.name, name=name)
            op, response = f"delete subscription {part.name}/{name}", queue_pb2.DeleteSubscriptionResponse
            try:
                await self._change(op, "DeleteSubscription", asked, response, under, timeout)
            except errors.SubscriptionNotFound:
                if not part.count:
                    raise  # otherwise, an earlier call has deleted it

        await self._each(queue, delete, request, timeout)

    async def seek(
        self,
        queue: str,
        to: Start | int | datetime,
        *,
        subscription: str = "default",
        request: Request | None = None,
        timeout: float | None = None,
    ) -> int:
        """Move a subscription, and return the sequence of its next message, or 0 for a partitioned queue.

        A subscription of a partitioned queue can be moved to "latest", "earliest" or a time; a sequence requires the
        name of a partition.

        Messages below the position are acknowledged. Stored messages from the position on are delivered, even if they
        were delivered before. Answers to earlier deliveries of attached consumers have no effect.

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

        async def move(part: Part, under: Request | None) -> int:
            one = queue_pb2.SeekSubscriptionRequest()
            one.CopyFrom(asked)
            one.queue = part.name
            op, response = f"seek {part.name}/{subscription}", queue_pb2.SeekSubscriptionResponse
            return (await self._change(op, "SeekSubscription", one, response, under, timeout)).sequence

        if isinstance(to, int):  # sequences belong to a partition
            return await move(Part(queue), request)
        moved, partitioned = await self._each(queue, move, request, timeout)
        return 0 if partitioned else moved[0]
