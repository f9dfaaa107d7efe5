# SPDX-License-Identifier: Apache-2.0
"""Names of the values of protobuf enums."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep_mq import connections, schedules
from lockstep_mq._enums import name_of
from lockstep_mq._proto import admin_pb2, connection_pb2, schedule_pb2, types_pb2
from lockstep_mq.message import StoredMessage

LATER: Any = 99  # a value of a later release


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (types_pb2.DEAD_LETTER_REASON_MAX_DELIVERIES, "max-deliveries"),
        (types_pb2.DEAD_LETTER_REASON_EXPIRED, "expired"),
        (LATER, "reason-99"),
    ],
)
def test_dead_letter_reasons(value: Any, name: str) -> None:
    """The names are those of the Go client."""
    letter = StoredMessage(types_pb2.StoredMessage(dead_letter=types_pb2.DeadLetter(reason=value))).dead_letter
    assert letter is not None
    assert letter.reason == name


def test_names() -> None:
    """A value of a later release has a name."""
    assert name_of(admin_pb2.Role, admin_pb2.ROLE_ACTIVE_ALONE, "role") == "active-alone"
    stream = connection_pb2.ConnectionStream(kind=LATER)
    (decoded,) = connections.decode(connection_pb2.Connection(streams=[stream])).streams
    assert decoded.kind == "kind-99"
    (run,) = schedules.decode(schedule_pb2.Schedule(history=[schedule_pb2.ScheduleRun(outcome=LATER)])).history
    assert run.outcome == "outcome-99"
