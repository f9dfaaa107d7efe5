# SPDX-License-Identifier: Apache-2.0
"""Errors, classified by their guarantee.

    LockstepError
    ├── NotDone             nothing was committed, and this request never will be
    │   ├── Closed              the client, producer or consumer is closed
    │   ├── Unavailable         the timeout expired before a node could serve the request
    │   └── Refused             a node or this client rejected the request: see the subclasses
    └── OutcomeUnknown      committed once or not at all, but no response arrived
        └── OutcomeLost         and the outcome can no longer be determined

Before you publish the content of a request with an unknown outcome again, consider whether duplicates are
acceptable.
"""

from __future__ import annotations

from typing import ClassVar


class LockstepError(Exception):
    """Base class of all errors of this package.

    Attributes:
        message: Description of the error.
        reason: Name of an ErrorReason, such as "QUEUE_FULL"; empty if the error does not originate from a node.
        code: gRPC status code, such as "RESOURCE_EXHAUSTED"; empty for an error of the client.
        address: The node that responded, host:port; empty without a response.
        settled: The refusal is recorded in the log and applies to all attempts of the request.
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

    def __str__(self) -> str:
        said = f"{self.address}: {self.message}" if self.address else self.message
        return f"{said} [{self.reason}]" if self.reason else said


class NotDone(LockstepError):
    """Nothing was committed, and this request never will be."""

    promise = "nothing was executed, and nothing of this request ever will be"
    what_to_do = "make the request again if it is still wanted"


class Closed(NotDone):
    """The client, producer or consumer is closed."""

    what_to_do = "make another one"


class Forked(NotDone):
    """This process was forked from one that had used a client: gRPC would hang or crash in it."""


class Unavailable(NotDone):
    """The timeout expired before a node could serve the request. The request itself is valid."""

    what_to_do = "look at the nodes with `lockstep status`, and make the request again"


class Refused(NotDone):
    """A node or this client rejected the request."""


class QueueNotFound(Refused):
    """The queue does not exist."""

    what_to_do = "create the queue"


class SubscriptionNotFound(Refused):
    """The queue has no subscription of that name."""

    what_to_do = "create the subscription"


class AlreadyExists(Refused):
    """A queue, subscription, prepared transaction or token of that name already exists."""

    what_to_do = "take another name, or use what is there"


class NotEmpty(Refused):
    """A queue to be deleted only if empty contains messages."""

    what_to_do = "consume or purge the messages first"


class LimitExceeded(Refused):
    """The request exceeds a limit of the queue, the node, a quota or this client; see `reason`."""

    what_to_do = "consume messages, raise the limit, or make the request smaller"


class InvalidRequest(Refused, ValueError):
    """The request is invalid and can never succeed."""

    what_to_do = "correct the request"


class SequenceReused(Refused):
    """Another producer has used the same ID and epoch. The message was not stored."""

    what_to_do = "give each start of a producer a higher epoch, and each producer an id of its own"


class Fenced(Refused):
    """A producer with the same ID and a higher epoch took over."""

    what_to_do = "stop this producer"


class TooOld(Refused):
    """The nodes have evicted the producer, or this sequence of it."""

    what_to_do = "make another producer"


class WrongState(Refused):
    """The current state of the pair or of the queue does not allow the request."""

    what_to_do = "read what the message says is in the way"


class Processed(Refused):
    """A message of the transaction was processed elsewhere. The transaction stored nothing."""

    what_to_do = "drop what was made of the message"


class NoTransaction(Refused):
    """No transaction with that xid is prepared or remembered."""

    what_to_do = "prepare it, or forget it if it was decided long ago"


class Decided(Refused):
    """The coordinator decided the prepared transaction the other way."""

    what_to_do = "keep to the first decision"


class Heuristic(Refused):
    """An operator or the timeout decided the prepared transaction the other way."""

    what_to_do = "tell an operator: the resource managers of the transaction differ"


class DataLoss(Refused):
    """Stored data is corrupt."""

    what_to_do = "tell an operator: `lockstep verify`"


class NodeFailed(Refused):
    """A node failed with an unexpected error, or does not implement the request."""

    what_to_do = "read the log of the node"


class Denied(Refused):
    """This client lacks the permission."""

    what_to_do = "have an operator grant it: `lockstep access grant`"


class Unauthenticated(Refused):
    """The nodes reject the credentials of this client."""

    what_to_do = "show another token or certificate"


class Busy(Refused):
    """Another maintenance operation is running."""

    what_to_do = "wait until it has ended"


class OutcomeUnknown(LockstepError):
    """The request was sent but no response arrived: it was committed once or not at all.

    Attributes:
        refusal: The refusal of a retry, which does not determine the outcome of the first attempt; or None.
    """

    promise = "it was executed once or not at all"
    what_to_do = "call commit() of a transaction again; of a publish, look into the queue before publishing it again"

    def __init__(self, message: str, *, refusal: NotDone | None = None) -> None:
        super().__init__(
            message,
            reason=refusal.reason if refusal else "",
            code=refusal.code if refusal else "",
            address=refusal.address if refusal else "",
        )
        self.refusal = refusal


class OutcomeLost(OutcomeUnknown):
    """The outcome can no longer be determined: the producer was evicted or fenced."""

    what_to_do = "look into the queue"
