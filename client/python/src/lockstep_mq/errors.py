# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, by what it promises.

    LockstepError
    ├── NotDone             nothing was carried out, and nothing of this request ever will be
    │   ├── Closed              the client, producer or consumer was closed
    │   ├── Unavailable         the time ended before a node could do it
    │   └── Refused             a node, or this client, has said no: the subclasses say why
    └── OutcomeUnknown      it was carried out once or not at all, and no node has said which
        └── OutcomeLost         and none can say it any more

Never publish the content of a request with an unknown outcome again without asking yourself whether it may be doubled.
"""

from __future__ import annotations

from typing import ClassVar


class LockstepError(Exception):
    """Base of all errors of this package.

    Attributes:
        message: What happened.
        reason: Name of an ErrorReason, such as "QUEUE_FULL"; empty for an error that is not a node's.
        code: gRPC status code, such as "RESOURCE_EXHAUSTED"; empty for an error of this side.
        address: The node that said it, host:port; empty if none did.
        settled: The refusal is kept in the log: it holds for all attempts of the request.
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
    """Nothing was carried out, and nothing of this request ever will be."""

    promise = "nothing was carried out, and nothing of this request ever will be"
    what_to_do = "make the request again if it is still wanted"


class Closed(NotDone):
    """The client, producer or consumer was closed."""

    what_to_do = "make another one"


class Forked(NotDone):
    """This process was forked from one that had used a client: gRPC does not work in it, and would hang or crash."""


class Unavailable(NotDone):
    """The time ended before a node could do what was asked. Nothing is wrong with the request."""

    what_to_do = "look at the nodes with `lockstep status`, and make the request again"


class Refused(NotDone):
    """A node, or this client, has said no."""


class QueueNotFound(Refused):
    """There is no queue of that name."""

    what_to_do = "create the queue"


class SubscriptionNotFound(Refused):
    """The queue has no subscription of that name."""

    what_to_do = "create the subscription"


class AlreadyExists(Refused):
    """There is a queue, subscription, prepared transaction or token of that name."""

    what_to_do = "take another name, or use what is there"


class NotEmpty(Refused):
    """A queue that was to be deleted only if it is empty holds messages."""

    what_to_do = "consume or purge the messages first"


class LimitExceeded(Refused):
    """A limit of the queue, the node, a quota or this client would be exceeded; `reason` says which."""

    what_to_do = "consume messages, raise the limit, or make the request smaller"


class InvalidRequest(Refused, ValueError):
    """The request can never work."""

    what_to_do = "correct the request"


class SequenceReused(Refused):
    """Another producer has used the same id and epoch. The message was not stored."""

    what_to_do = "give each start of a producer a higher epoch, and each producer an id of its own"


class Fenced(Refused):
    """A producer with the same id and a higher epoch took over."""

    what_to_do = "stop this producer"


class TooOld(Refused):
    """The nodes have forgotten the producer, or this sequence of it."""

    what_to_do = "make another producer"


class WrongState(Refused):
    """The state of the pair or of the queue does not allow it now."""

    what_to_do = "read what the message says is in the way"


class Processed(Refused):
    """A message that the transaction takes was processed elsewhere. Nothing of the transaction was stored."""

    what_to_do = "drop what was made of the message"


class NoTransaction(Refused):
    """No transaction of that xid is prepared, and none is remembered."""

    what_to_do = "prepare it, or forget it if it was decided long ago"


class Decided(Refused):
    """The prepared transaction was decided the other way by its coordinator."""

    what_to_do = "keep to the first decision"


class Heuristic(Refused):
    """The prepared transaction was decided the other way by an operator, or by a time-out."""

    what_to_do = "tell an operator: the resource managers of the transaction differ"


class DataLoss(Refused):
    """Stored data is damaged."""

    what_to_do = "tell an operator: `lockstep verify`"


class NodeFailed(Refused):
    """A node failed in a way that it cannot explain, or does not know the request."""

    what_to_do = "read the log of the node"


class Denied(Refused):
    """This client has no right to do that."""

    what_to_do = "have an operator grant it: `lockstep access grant`"


class Unauthenticated(Refused):
    """The nodes do not believe what this client shows to say who it is."""

    what_to_do = "show another token or certificate"


class Busy(Refused):
    """Other maintenance is under way."""

    what_to_do = "wait until it has ended"


class OutcomeUnknown(LockstepError):
    """The request was sent and not answered: it was carried out once or not at all.

    Attributes:
        refusal: What a node said of a repetition, which does not tell what became of the first attempt; or None.
    """

    promise = "it was carried out once or not at all"
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
    """The outcome cannot be learned any more: the nodes have forgotten the producer, or it is fenced."""

    what_to_do = "look into the queue"
