# SPDX-License-Identifier: Apache-2.0
"""Client of Lockstep, a replicated message store for two machines.

    async with Client(["a:7420", "b:7420"]) as client:
        receipt = await client.publish("orders", b"hello")  # returns after the commit

        async with client.producer() as producer:  # a pipeline, retried in order after a failover
            for order in orders:
                await producer.send("orders", order)

        async with await client.consume("orders") as consumer:
            await consumer.run(process, concurrency=4)  # acknowledges; an exception requeues, Reject dead-letters

The class of an error states its guarantee: NotDone or OutcomeUnknown (see lockstep_mq.errors).
"""

from lockstep_mq._calls import Request
from lockstep_mq._options import TokenSource
from lockstep_mq._partition import partition, partition_name
from lockstep_mq._tracer import DeliveryTrace, Tracer
from lockstep_mq._version import __version__
from lockstep_mq.admin import Admin, NodeStatus
from lockstep_mq.client import Client
from lockstep_mq.connections import Connection, ConnectionStream, Traffic
from lockstep_mq.consumer import Consumer, Delivery, Reject
from lockstep_mq.errors import (
    AlreadyExists,
    Busy,
    Closed,
    DataLoss,
    Decided,
    Denied,
    Fenced,
    Forked,
    Heuristic,
    InvalidRequest,
    LimitExceeded,
    LockstepError,
    NodeFailed,
    NotDone,
    NotEmpty,
    NoTransaction,
    OutcomeLost,
    OutcomeUnknown,
    Processed,
    QueueNotFound,
    Refused,
    SequenceReused,
    SubscriptionNotFound,
    TooOld,
    Unauthenticated,
    Unavailable,
    WrongState,
)
from lockstep_mq.message import DeadLetter, Message, Publishable, Receipt, StoredMessage, Value
from lockstep_mq.producer import Producer
from lockstep_mq.queue_config import QueueConfig
from lockstep_mq.queues import (
    ActiveConsumer,
    Forward,
    History,
    HistoryPoint,
    Moved,
    Partition,
    Policy,
    PreparedQueue,
    PreparedTransaction,
    Queue,
    QueueActivity,
    QueueList,
    RedeliveryPolicy,
    SearchProgress,
    Subscription,
)
from lockstep_mq.schedules import Schedule, ScheduleRun
from lockstep_mq.transaction import OperationResult, Transaction, TransactionResult

__all__ = [
    "ActiveConsumer",
    "Admin",
    "AlreadyExists",
    "Busy",
    "Client",
    "Closed",
    "Connection",
    "ConnectionStream",
    "Consumer",
    "DataLoss",
    "DeadLetter",
    "DeliveryTrace",
    "Decided",
    "Delivery",
    "Denied",
    "Fenced",
    "Forked",
    "Forward",
    "Heuristic",
    "History",
    "HistoryPoint",
    "InvalidRequest",
    "LimitExceeded",
    "LockstepError",
    "Message",
    "Moved",
    "NoTransaction",
    "NodeFailed",
    "NodeStatus",
    "NotDone",
    "NotEmpty",
    "OperationResult",
    "OutcomeLost",
    "OutcomeUnknown",
    "Partition",
    "Policy",
    "PreparedQueue",
    "PreparedTransaction",
    "Processed",
    "Producer",
    "Publishable",
    "Queue",
    "QueueActivity",
    "QueueConfig",
    "QueueList",
    "QueueNotFound",
    "Receipt",
    "RedeliveryPolicy",
    "Refused",
    "Reject",
    "Request",
    "Schedule",
    "ScheduleRun",
    "SearchProgress",
    "SequenceReused",
    "StoredMessage",
    "Subscription",
    "SubscriptionNotFound",
    "TokenSource",
    "TooOld",
    "Tracer",
    "Traffic",
    "Transaction",
    "TransactionResult",
    "Unauthenticated",
    "Unavailable",
    "Value",
    "WrongState",
    "__version__",
    "partition",
    "partition_name",
]
