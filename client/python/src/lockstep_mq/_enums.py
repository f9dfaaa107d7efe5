# SPDX-License-Identifier: Apache-2.0
"""Names of the values of protobuf enums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper


def name_of(enum: _EnumTypeWrapper[Any], value: int, kind: str) -> str:
    """Return the name of a value, such as "max-deliveries" for DEAD_LETTER_REASON_MAX_DELIVERIES.

    For a value of a later release, return the kind and the number, such as "reason-9".
    """
    try:
        name = enum.Name(value)
    except ValueError:
        return f"{kind}-{value}"
    return name.removeprefix(enum.Name(0).removesuffix("UNSPECIFIED")).lower().replace("_", "-")
