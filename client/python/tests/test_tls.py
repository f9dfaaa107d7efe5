# SPDX-License-Identifier: Apache-2.0
"""TLS with a pair that requires client certificates and with a node that requires none, and misconfiguration."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from secure import SecureNodes
from waiting import BOUND, steady_client, until

from lockstep_mq import Client, Receipt, errors


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecureNodes, SecureNodes]]:
    """A pair, and a standalone node."""
    binary = os.environ.get("LOCKSTEP_BINARY")
    if not binary:
        pytest.skip("LOCKSTEP_BINARY does not name a lockstep binary: test/python/run.sh builds one")
    pair = SecureNodes(binary, tmp_path_factory.mktemp("secure"))
    alone = SecureNodes(binary, tmp_path_factory.mktemp("alone"), standalone=True)
    try:
        pair.wait_in_sync()
        yield pair, alone
    finally:
        pair.close()
        alone.close()


async def refused(client: Client, text: str) -> str:
    """Return the error of a publish after the connections to all nodes have failed for a reason."""
    locator = client._called().locator
    await until(lambda: all(text in str(n.failure) for n in locator.nodes))
    with pytest.raises(errors.Unavailable) as caught:
        await client.publish("q", b"", timeout=0.05)
    assert text in str(caught.value)
    return str(caught.value)


def files(nodes: SecureNodes, name: str = "client") -> dict[str, Any]:
    return {
        "ca": nodes.certs / "ca.pem",
        "cert": nodes.certs / f"{name}.pem",
        "key": nodes.certs / f"{name}-key.pem",
    }


async def test_client_certificate_with_killed_active(nodes: tuple[SecureNodes, SecureNodes]) -> None:
    pair, total = nodes[0], 2000
    async with steady_client(pair.addresses, **files(pair)) as client:
        await client.admin.create_queue("secure", timeout=BOUND)
        active = await client.wait_active(timeout=BOUND)
        (mine,) = [c async for c in client.admin.list_connections(active, timeout=BOUND) if "grpc-python" in c.client]
        assert (mine.authentication, mine.tls) == ("certificate", "TLS 1.3")
        assert "client" in mine.principal
        async with client.producer() as producer, await client.consume("secure", timeout=BOUND) as consumer:
            futures: list[asyncio.Future[Receipt]] = []
            for i in range(total):
                if i == total // 2:
                    await asyncio.wait_for(asyncio.shield(futures[total // 4]), BOUND)
                    await asyncio.to_thread(pair.kill, active)
                futures.append(await producer.send("secure", str(i)))
            receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
            assert len({r.address for r in receipts}) == 2, "both nodes have acknowledged publishes"
            seen: set[int] = set()
            while len(seen) < total:
                for d in await consumer.receive_batch(timeout=BOUND):
                    seen.add(int(d.text))
                    d.ack()
        q = await client.admin.get_queue("secure", timeout=BOUND)
        assert (q.next_sequence - 1, q.messages, seen) == (total, 0, set(range(total))), "each message once"
    pair.start(active)
    await asyncio.to_thread(pair.wait_in_sync)


async def test_token_over_tls(nodes: tuple[SecureNodes, SecureNodes], tmp_path: Path) -> None:
    alone = nodes[1]
    made = alone.done(
        "access", "token", "create", "r1", "--principal", "robot", "--addr", alone.addresses[0], "--output", "json"
    )
    (token,) = [v for v in json.loads(made).values() if isinstance(v, str) and v.startswith("lsk_")]
    file = tmp_path / "token"
    file.write_text(token)
    ca = alone.certs / "ca.pem"
    async with steady_client(alone.addresses, ca=ca, token_file=file) as client:
        await client.admin.create_queue("with-token", timeout=BOUND)
        await client.publish("with-token", b"1", timeout=BOUND)
        everything = client.admin.list_connections(alone.addresses[0], timeout=BOUND)
        (mine,) = [c async for c in everything if "grpc-python" in c.client]
        assert (mine.authentication, mine.principal) == ("token", "robot")
    async with Client(alone.addresses, ca=ca, token="lsk_not-one-of-this-node") as client:
        with pytest.raises(errors.Unauthenticated):
            await client.publish("with-token", b"2", timeout=BOUND)
    async with Client(alone.addresses, ca=ca) as client:  # no rule requires more
        assert [m.text async for m in client.browse("with-token", timeout=BOUND)] == ["1"]
    with pytest.raises(errors.InvalidRequest, match="unencrypted"):
        async with Client(["node.example.net:7420"], token_file=file):
            pass


async def test_misconfiguration_is_reported(
    nodes: tuple[SecureNodes, SecureNodes], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pair, alone = nodes
    foreign, own = files(alone), files(pair)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nothing = [f"127.0.0.1:{free.getsockname()[1]}"]
        mistakes: list[tuple[list[str], dict[str, Any], str]] = [
            (pair.addresses, {**own, "ca": foreign["ca"]}, "certificate was not issued by a CA in ca"),
            (pair.addresses, {"tls": True}, "certificate was not issued by a CA in ca"),
            (pair.addresses, {"ca": own["ca"]}, "requires a client certificate"),
            (pair.addresses, {**foreign, "ca": own["ca"]}, "requires a client certificate"),
            (pair.addresses, {}, "if it requires TLS, set ca"),
            (nothing, own, "connection refused: no process is listening"),
        ]

        async def make(addresses: list[str], options: dict[str, Any], text: str) -> None:
            async with steady_client(addresses, **options) as client:
                error = await refused(client, text)
                assert "ipv4:" not in error, "without the prefix of gRPC"

        with caplog.at_level(logging.WARNING, "lockstep_mq"):
            await asyncio.gather(*(make(*m) for m in mistakes))
    logged = [r.getMessage() for r in caplog.records if r.name == "lockstep_mq"]
    for addresses, _, text in mistakes[:-1]:
        assert any(text in line and addresses[0] in line for line in logged)
    assert not any("connection refused" in line for line in logged), "a node may be about to start"
    assert max(Counter(logged).values()) <= 2, "each of the two clients logs the error once"


async def test_unusable_files(nodes: tuple[SecureNodes, SecureNodes], tmp_path: Path) -> None:
    pair = nodes[0]
    own = files(pair)
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({**own, "ca": tmp_path / "not-there.pem"}, "No such file"),
        ({**own, "ca": nonsense}, "nonsense.pem has no certificate in PEM"),
        ({**own, "ca": own["key"]}, "has no certificate in PEM"),
        ({**own, "key": files(pair, "node-a")["key"]}, "not a certificate in PEM and its key"),
        ({**own, "cert": nonsense}, "not a certificate in PEM and its key"),
    ]
    for options, text in mistakes:
        with pytest.raises(errors.InvalidRequest, match="the certificates cannot be used") as caught:
            async with Client(pair.addresses, **options):
                pass
        assert text in str(caught.value)


async def test_tls_over_slow_connection(nodes: tuple[SecureNodes, SecureNodes]) -> None:
    """A TLS handshake succeeds although each of its round trips takes 200 ms."""
    host, port = nodes[1].addresses[0].split(":")

    async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            asyncio.get_running_loop().call_later(0.1, to.write, data)
        to.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_node, to_node = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, to_node), copy(from_node, writer), return_exceptions=True)

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, steady_client([address], ca=files(nodes[1])["ca"], follow_hints=False) as client:
        assert await client.wait_active(timeout=BOUND) == address


async def test_tls_mismatch_is_reported(nodes: tuple[SecureNodes, SecureNodes]) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # HTTP/2, as from a node without TLS
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, steady_client([address], ca=files(nodes[0])["ca"]) as client:
        await refused(client, "the node does not use TLS, and this client does")


async def test_certificate_for_another_host(nodes: tuple[SecureNodes, SecureNodes]) -> None:
    """The CA is correct, but the certificate is not valid for 127.0.0.1."""
    alone = nodes[1]
    names = ("--peer", "--hosts", "elsewhere.example.net")
    alone.done("cert", "issue", "--name", "elsewhere", "--dir", str(alone.certs), *names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files(alone, "elsewhere")["cert"], files(alone, "elsewhere")["key"])
    context.set_alpn_protocols(["h2"])

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0, ssl=context)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, steady_client([address], ca=files(alone)["ca"]) as client:
        await refused(client, "certificate is not for the host of this address")
