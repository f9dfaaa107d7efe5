# SPDX-License-Identifier: Apache-2.0
"""Converts gRPC's descriptions of failed connections into messages with a remedy."""

from __future__ import annotations

import re

_FAILED = "failed to connect to all addresses"
_BEFORE_THE_CAUSE = re.compile(r"^.*?last error: \w+: (?:ipv[46]:[^ ]+: |unix:[^ ]+: )?")


NONE, PERHAPS, SURE = 0, 1, 2
"""Whether client and node disagree about TLS, which a retry cannot fix."""


def explain(message: str) -> tuple[str, int]:
    """Return why the connection failed, and whether client and node disagree about TLS: NONE, PERHAPS or SURE.

    gRPC reports the cause only as text. Unknown messages are returned unchanged.
    """
    if not message.startswith(_FAILED):
        return message, NONE
    cause = _BEFORE_THE_CAUSE.sub("", message)
    if "CERTIFICATE_VERIFY_FAILED: " in cause:
        why = cause.partition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
        return f"TLS: the node's certificate was not issued by a CA in ca: {why}", SURE
    if "Hostname Verification Check failed" in cause or "is not in peer certificate" in cause:
        return f"TLS: the node's certificate is not for the host of this address: {cause}", SURE
    if "WRONG_VERSION_NUMBER" in cause:
        return "the node does not use TLS, and this client does: remove ca, or enable TLS on the node", SURE
    if "Unwrap failed" in cause or "ALERT_" in cause:
        return (
            "TLS: the node closes the connection and requires a client certificate from a CA that it trusts: set cert "
            f"and key ({cause})"
        ), SURE
    if "Socket closed" in cause or "GOAWAY" in cause:
        return (
            "the node closes the connection immediately: if it requires TLS, set ca. The port may also belong to "
            "another service, such as a Raft voter"
        ), PERHAPS
    if "Connection refused" in cause:
        return "connection refused: no process is listening", NONE
    return cause, NONE
