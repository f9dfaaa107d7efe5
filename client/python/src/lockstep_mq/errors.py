# SPDX-License-Identifier: Apache-2.0
"""Errors, classified by their guarantee.

    LockstepError
    ├── NotDone             the request was not committed and never will be
    │   ├── Closed              the client, producer or consumer is closed
    │   ├── Forked              this process was forked from one that had used a client
    │   ├── Unavailable         the timeout expired before a node could serve the request
    │   └── Refused             a node or this client rejected the request: see the subclasses
    └── OutcomeUnknown      the request was committed once or not at all: no response arrived
        └── OutcomeLost         and the outcome can no longer be determined

After OutcomeUnknown, a second publish may store a duplicate.
"""

from __future__ import annotations

from typing import ClassVar


class LockstepError(Exception):
    """Base class of all errors of this package.

    Attributes:
        message: Description of the error.
        reason: Name of an ErrorReason, such as "QUEUE_FULL"; may be empty if the error does not originate from a node.
        code: gRPC status code, such as "RESOURCE_EXHAUSTED"; empty for an error of the client.
        address: Address of the node, host:port; may be empty if the error does not originate from a node.
        partitions: Number of partitions, if the reason is "QUEUE_PARTITIONED"; otherwise 0.
        partitioned_queue: Name of the partitioned queue, if the reason is "QUEUE_PARTITIONED"; otherwise "".
        settled: The refusal is recorded in the log and applies to all attempts of the request.
        promise: Guarantee of the error class.
        what_to_do: Recommended action.
    """

    promise: ClassVar[str] = ""
    what_to_do: ClassVar[str] = ""

    def __init__(
        self, message: str, *, reason: str = "", code: str = "", address: str = "", settled: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.code = code
        self.address = address
        self.settled = settled
        self.partitions = 0
        self.partitioned_queue = ""

    def __str__(self) -> str:
        text = f"{self.address}: {self.message}" if self.address else self.message
        return f"{text} [{self.reason}]" if self.reason else text


class NotDone(LockstepError):
    """The request was not committed and never will be."""

    promise = "the request was not executed, and never will be"
    what_to_do = "retry the request if it is still required"


class Closed(NotDone):
    """The client, producer or consumer is closed."""

    what_to_do = "create another one"


class Forked(NotDone):
    """This process was forked from a process that had used a client: gRPC would hang or crash here."""


class Unavailable(NotDone):
    """No node could serve the request in time. A retry may succeed."""

    what_to_do = "check the nodes with `lockstep status`, then retry the request"


class Refused(NotDone):
    """A node or this client rejected the request."""


class QueueNotFound(Refused):
    """The queue does not exist."""

    what_to_do = "create the queue"


class SubscriptionNotFound(Refused):
    """The queue has no subscription with this name."""

    what_to_do = "create the subscription"


class AlreadyExists(Refused):
    """An object with this name exists, or the xid of a transaction to prepare is in use or was used recently."""

    what_to_do = "use another name, or the existing object"


class NotEmpty(Refused):
    """The queue contains messages, and must be deleted only if it is empty."""

    what_to_do = "consume or purge the messages first"


class LimitExceeded(Refused):
    """The request exceeds a limit of the queue, the node, a quota or this client; see `reason`."""

    what_to_do = "consume messages, raise the limit, or send a smaller request"


class InvalidRequest(Refused, ValueError):
    """The request is invalid. A retry without a change fails."""

    what_to_do = "correct the request"


class SequenceReused(Refused):
    """Another producer has used the same ID and epoch. The message was not stored."""

    what_to_do = "use a unique id for each producer, and a higher epoch at each start"


class Fenced(Refused):
    """A producer with the same ID and a higher epoch has taken over."""

    what_to_do = "stop this producer"


class TooOld(Refused):
    """The nodes have evicted the producer, or its result for this sequence."""

    what_to_do = "create another producer"


class WrongState(Refused):
    """The current state of the pair or of the queue does not allow the request."""

    what_to_do = "resolve the cause that the message describes"


class Processed(Refused):
    """A message of take() was already acknowledged, or is reserved by a prepared transaction."""

    what_to_do = "discard the results of processing the message"


class NoTransaction(Refused):
    """The xid belongs neither to a prepared transaction nor to one of the last 10,000 decided transactions."""

    what_to_do = "prepare the transaction, or ignore the error if it was decided long ago"


class Decided(Refused):
    """The transaction coordinator has made the opposite decision on the prepared transaction."""

    what_to_do = "keep the first decision"


class Heuristic(Refused):
    """An operator or the timeout has made the opposite decision on the prepared transaction."""

    what_to_do = "notify an operator: the participants of the transaction are inconsistent"


class DataLoss(Refused):
    """Stored data is corrupt."""

    what_to_do = "notify an operator: run `lockstep verify`"


class NodeFailed(Refused):
    """A node failed with an unexpected error, or does not implement the request."""

    what_to_do = "check the log of the node"


class Denied(Refused):
    """This client does not have the required permission."""

    what_to_do = "ask an operator for the permission: `lockstep access grant`"


class Unauthenticated(Refused):
    """The nodes reject the credentials of this client."""

    what_to_do = "use another token or certificate"


class Busy(Refused):
    """Another maintenance operation is running."""

    what_to_do = "wait until the operation has finished"


class OutcomeUnknown(LockstepError):
    """The request was sent and no response arrived: it was committed once or not at all.

    Attributes:
        refusal: The refusal of a retry, which does not determine the outcome of the first attempt; or None.
    """

    promise = "the request was executed once or not at all"
    what_to_do = "call commit() of a transaction again; after a publish, inspect the queue before you publish again"

    def __init__(self, message: str, *, refusal: NotDone | None = None) -> None:
        super().__init__(
            message,
            reason=refusal.reason if refusal else "",
            code=refusal.code if refusal else "",
            address=refusal.address if refusal else "",
        )
        self.refusal = refusal


class OutcomeLost(OutcomeUnknown):
    """The outcome can no longer be determined.

    For example, the producer was evicted or fenced, another site was promoted without a planned switch, or another
    pair became the owner of the queue.
    """

    what_to_do = "inspect the queue"
