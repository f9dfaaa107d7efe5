# SPDX-License-Identifier: Apache-2.0
"""The options of a client: addresses, certificates and tokens."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import random
import ssl
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import grpc
import grpc.aio

from lockstep_mq import errors

TokenSource = Callable[[], Awaitable[str]]
"""A coroutine function that returns a token. It is called again when a node rejects the token, at most once a second.

If it raises an exception, the client keeps using the last token, and calls it again later.
"""

MAX_ADDRESSES = 16  # limit of given and learned addresses: four nodes of two sites, and aliases
MAX_TOKEN_BYTES = 16 << 10
MAX_RECEIVE_BYTES = 512 << 20
RETRY_MIN = 0.002  # seconds between two attempts
RETRY_MAX = 0.05
TOKEN_REREAD = 1.0  # seconds between two reads of a file or source
PORTS = 65535


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a Client."""

    addresses: tuple[str, ...]
    ca: Path | None
    cert: Path | None
    key: Path | None
    tls: bool
    allow_plaintext_token: bool
    follow_hints: bool
    probe_interval: float
    max_message_bytes: int


SCHEME = "lockstep://"
DEFAULT_PORT = "7420"


@dataclass(frozen=True, kw_only=True)
class URL:
    """The options of a URL: lockstep://[TOKEN@]HOST[:PORT][,HOST[:PORT]...][?PARAMETER=VALUE[&...]]."""

    addresses: tuple[str, ...]
    token: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    token_file: str | None = None
    tls: bool = False
    allow_plaintext_token: bool = False
    fixed_addresses: bool = False
    max_message_bytes: int | None = None
    probe_interval: float | None = None


def parse_url(url: str) -> URL:
    """Parse a URL with the parameters of the Go client, as far as this client supports them."""
    rest, _, query = url[len(SCHEME) :].partition("?")
    token, found, hosts = rest.rpartition("@")
    names = {"tls-ca": "ca", "tls-cert": "cert", "tls-key": "key", "token-file": "token_file"}
    flags = {"tls", "allow-plaintext-token", "fixed-addresses"}
    given: dict[str, Any] = {"token": unquote(token)} if found else {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        key = names.get(name, name.replace("-", "_"))
        if key in given:
            raise errors.InvalidRequest(f"parameter {name} of the URL is set twice")
        try:
            if name in names:
                given[key] = value
            elif name in flags:
                given[key] = {"true": True, "1": True, "false": False, "0": False}[value]
            elif name == "max-message-bytes":
                given[key] = int(value)
            elif name == "probe-interval":
                given[key] = _seconds(value)
            else:
                raise errors.InvalidRequest(f"unknown parameter {name!r} of the URL")
        except (KeyError, ValueError):
            raise errors.InvalidRequest(f"parameter {name} of the URL: invalid value {value!r}") from None
    return URL(addresses=tuple(_with_port(h) for h in hosts.removesuffix("/").split(",")), **given)


def _seconds(value: str) -> float:
    """Parse a duration of one unit, such as 500ms or 2s."""
    if value.endswith("ms"):
        return float(value[:-2]) / 1000
    return float(value.removesuffix("s"))


def _with_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    if name and not host.endswith("]") and port.isdecimal():
        return host
    return f"{host}:{DEFAULT_PORT}" if host else host


def check_address(address: str) -> None:
    """Reject addresses that cannot be dialed."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= PORTS:
        raise errors.InvalidRequest(f"address {address!r} is not host:port")


def check_addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    """Reject invalid addresses."""
    if isinstance(addresses, str):
        addresses = addresses.split(",")
    if not addresses:
        raise errors.InvalidRequest("no addresses: set the host:port of both nodes")
    if len(addresses) > MAX_ADDRESSES:
        raise errors.InvalidRequest(f"{len(addresses)} addresses, the limit is {MAX_ADDRESSES}")
    if len(set(addresses)) < len(addresses):
        raise errors.InvalidRequest("duplicate address")
    for address in addresses:
        check_address(address)
    return tuple(addresses)


def is_local(address: str) -> bool:
    """Return whether connections to the address stay on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Tokens:
    """The token of a client, if any."""

    def __init__(self, token: str | None, file: Path | None, source: TokenSource | None) -> None:
        if sum(x is not None for x in (token, file, source)) > 1:
            raise errors.InvalidRequest("only one of token, token_file and token_source can be set")
        self._token = token
        self._file = file
        self._source = source
        self._fetched = float("-inf")  # time of the last fetch
        self._failed: Exception | None = None  # of the last fetch
        self._fetching = asyncio.Lock()
        if token is not None:
            _check_token(token)
        if file is not None:
            self._token = _read(file)  # report a wrong path early

    @property
    def any(self) -> bool:
        """Return whether the client has a token."""
        return self._token is not None or self._source is not None

    async def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of the next call."""
        if self._source is not None and self._token is None:
            await self._fetch()
        return () if self._token is None else (("authorization", f"Bearer {self._token}"),)

    async def renewed(self, refused: tuple[tuple[str, str], ...]) -> bool:
        """Return whether a token is available that is newer than the rejected one."""
        if await self.metadata() != refused:
            return True
        if self._source is None and self._file is None:
            return False
        await self._fetch()
        return await self.metadata() != refused

    async def _fetch(self) -> None:
        """Read the file or call the source, at most once per TOKEN_REREAD. Concurrent calls share the result."""
        async with self._fetching:
            now = asyncio.get_running_loop().time()
            if now - self._fetched < TOKEN_REREAD:
                if self._token is None and self._failed is not None:
                    raise self._failed
                return
            self._fetched = now
            try:
                if self._file is not None:
                    self._token = _read(self._file)
                elif self._source is not None:
                    token = await self._source()
                    _check_token(token)
                    self._token = token
                self._failed = None
            except Exception as err:  # the application's token source may raise any exception
                self._failed = err
                if self._token is None:
                    raise
                # The last token is used until another one is available: the node decides whether it is still valid.


def _read(file: Path) -> str:
    try:
        token = file.read_text().strip()
    except OSError as err:
        raise errors.InvalidRequest(f"read the token: {err}") from err
    _check_token(token)
    return token


def _check_token(token: str) -> None:
    if not token or len(token) > MAX_TOKEN_BYTES:
        raise errors.InvalidRequest(f"token has {len(token)} bytes, must have 1 to {MAX_TOKEN_BYTES}")
    if any(not "!" <= c <= "~" for c in token):
        raise errors.InvalidRequest("token contains a character that is not allowed")


_dialled_by: int | None = None
"""The process that created the first channel: gRPC then starts threads, which a fork does not copy."""


_channels: weakref.WeakSet[grpc.aio.Channel] = weakref.WeakSet()
_inherited: list[grpc.aio.Channel] = []


def _keep_inherited() -> None:
    """Keep the channels of the parent process alive.

    gRPC joins a thread when the last one is freed. The thread does not exist in this process, so the garbage
    collector would hang.
    """
    _inherited.extend(_channels)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_inherited)


def was_forked() -> bool:
    """Return whether this process was forked from one that had created a channel."""
    return _dialled_by is not None and _dialled_by != os.getpid()


def check_process() -> None:
    """Raise an error in a process where gRPC would hang or crash.

    Raises:
        Forked: See was_forked().
    """
    if was_forked():
        raise errors.Forked(
            f"process {os.getpid()} was forked from process {_dialled_by}, which had used a client, and gRPC does "
            "not work after a fork: open the first client after the fork, or start processes with multiprocessing's "
            '"spawn" or "forkserver"'
        )


def check_token(o: Options, address: str, tokens: Tokens) -> None:
    """Reject an address to which the token would be sent unencrypted, unless this is allowed."""
    if tokens.any and not o.tls and not o.allow_plaintext_token and not is_local(address):
        raise errors.InvalidRequest(
            f"the token would be sent to {address} unencrypted: set ca, or allow_plaintext_token if the network is "
            "trusted"
        )


def dial(o: Options, address: str, tokens: Tokens) -> grpc.aio.Channel:
    """Create a channel, which connects on first use. The files are read again for each channel."""
    check_token(o, address, tokens)
    global _dialled_by  # noqa: PLW0603 # a fact about the process
    if _dialled_by is None:
        _dialled_by = os.getpid()
    channel_options: list[tuple[str, int]] = [
        ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
        ("grpc.max_send_message_length", MAX_RECEIVE_BYTES),
        ("grpc.enable_retries", 0),  # gRPC cannot decide whether a retry is safe
        ("grpc.use_local_subchannel_pool", 1),  # a replaced channel gets a new connection
        ("grpc.initial_reconnect_backoff_ms", 100),
        # The timeout of one attempt, including the TLS handshake, despite the name of the option.
        ("grpc.min_reconnect_backoff_ms", max(100, int(o.probe_interval * 1000))),
        ("grpc.max_reconnect_backoff_ms", max(100, int(o.probe_interval * 1000))),
    ]
    if not o.tls:
        return _noted(grpc.aio.insecure_channel(address, options=channel_options))

    try:
        credentials = _credentials(o)
    except OSError as err:  # includes ssl.SSLError
        raise errors.InvalidRequest(f"the certificates cannot be used: {err}") from err
    return _noted(grpc.aio.secure_channel(address, credentials, options=channel_options))


def _noted(channel: grpc.aio.Channel) -> grpc.aio.Channel:
    _channels.add(channel)
    return channel


def _credentials(o: Options) -> grpc.ChannelCredentials:
    """Read the files, and report errors early and in detail: gRPC would report them only on connect."""

    def content(file: Path | None) -> bytes | None:
        return None if file is None else file.read_bytes()

    ca, cert, key = content(o.ca), content(o.cert), content(o.key)
    checked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if o.ca is not None:
        try:
            checked.load_verify_locations(cafile=o.ca)
        except ssl.SSLError as err:
            raise OSError(f"{o.ca} has no certificate in PEM: {err}") from err
    if o.cert is not None:
        try:
            checked.load_cert_chain(o.cert, o.key, password="")  # no prompt on the terminal
        except ssl.SSLError as err:
            raise OSError(f"{o.cert} and {o.key} are not a certificate in PEM and its key: {err}") from err
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=cert)


class Backoff:
    """An exponential backoff from RETRY_MIN to a maximum, with jitter."""

    def __init__(self, maximum: float = RETRY_MAX) -> None:
        self._next = RETRY_MIN
        self._maximum = maximum

    def reset(self) -> None:
        """Reset the backoff after a success."""
        self._next = RETRY_MIN

    def next(self) -> float:
        """Return the next wait in seconds."""
        wait, self._next = self._next, min(self._next * 1.7, self._maximum)
        return wait * random.uniform(0.7, 1.3)  # noqa: S311 # no secret depends on it
