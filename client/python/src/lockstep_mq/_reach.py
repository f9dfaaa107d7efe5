# SPDX-License-Identifier: Apache-2.0
"""Puts what gRPC says of a connection that could not be made into words for the person who has to mend it."""

from __future__ import annotations

import re

_FAILED = "failed to connect to all addresses"
_BEFORE_THE_CAUSE = re.compile(r"^.*?last error: \w+: (?:ipv[46]:[^ ]+: |unix:[^ ]+: )?")


NONE, PERHAPS, SURE = 0, 1, 2
"""Whether the two ends disagree about TLS, which waiting does not mend."""


def explain(message: str) -> tuple[str, int]:
    """Say why there is no connection, and whether the two ends disagree about TLS: NONE, PERHAPS or SURE.

    What is not known is left as it is. gRPC tells it in text only.
    """
    if not message.startswith(_FAILED):
        return message, NONE
    cause = _BEFORE_THE_CAUSE.sub("", message)
    if "CERTIFICATE_VERIFY_FAILED: " in cause:
        why = cause.partition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
        return f"TLS: the node's certificate is not of an authority in ca: {why}", SURE
    if "Hostname Verification Check failed" in cause or "is not in peer certificate" in cause:
        return f"TLS: the node's certificate is not for the host of this address: {cause}", SURE
    if "WRONG_VERSION_NUMBER" in cause:
        return "the node does not speak TLS, and this client does: leave ca away, or turn TLS on at the node", SURE
    if "Unwrap failed" in cause or "ALERT_" in cause:
        return (
            "TLS: the node ends the connection: it wants a client certificate of an authority that it knows: give cert "
            f"and key ({cause})"
        ), SURE
    if "Socket closed" in cause or "GOAWAY" in cause:
        return (
            "the node ends the connection before it begins: if it speaks TLS, this client must, too: give ca. Or it is "
            "no port for clients, such as that of a raft voter"
        ), PERHAPS
    if "Connection refused" in cause:
        return "connection refused: no process listens there", NONE
    return cause, NONE
