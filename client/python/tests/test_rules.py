# SPDX-License-Identifier: Apache-2.0
"""The rules of retries, against a scripted node."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
from scripted import (
    ConsumeRequests,
    Context,
    Node,
    Requests,
    abort,
    answer,
    bundles,
    not_active,
    refuses,
    stores,
    takes,
    unrolled,
)
from waiting import BOUND, TIMEOUT, Clock, steady_client, until

from lockstep_mq import Client, Delivery, Receipt, _failure, _options, _reasons, errors
from lockstep_mq._proto import admin_pb2, errors_pb2, queue_pb2, types_pb2


async def test_retry_keeps_sequence() -> None:
    async with Node() as node, steady_client([node.address]) as client:
        node.streams = [takes(1), takes(1), stores]
        receipt = await client.publish("q", b"1", timeout=BOUND)
        assert receipt.duplicate
        assert receipt.sequence == 101
        sent = [s[0].publish.producer for s in node.seen]
        assert [(p.sequence, p.retry) for p in sent] == [(1, False), (1, True), (1, True)]
        assert len({p.id for p in sent}) == 1


async def test_connect_with_url() -> None:
    async with (
        Node() as node,
        Client(f"lockstep://{node.address}/?fixed-addresses=true&probe-interval=6000s") as client,
    ):
        node.streams = [stores]
        assert (await client.publish("q", b"1", timeout=BOUND)).sequence == 101
    url = _options.parse_url(
        "lockstep://lsk_a%2Fb@a,b:1,[::1]?tls-ca=%2Fca.pem&tls=1&token-file=t&probe-interval=500ms&max-message-bytes=5"
    )
    assert url == _options.URL(
        addresses=("a:7420", "b:1", "[::1]:7420"),
        token="lsk_a/b",
        ca="/ca.pem",
        tls=True,
        token_file="t",
        probe_interval=0.5,
        max_message_bytes=5,
    )
    for wrong in ("lockstep://", "lockstep://a?compress=1", "lockstep://a?tls=maybe", "lockstep://a?tls=1&tls=1"):
        with pytest.raises(errors.InvalidRequest):
            Client(wrong)


async def test_arguments_override_parameters_of_url() -> None:
    url = "lockstep://127.0.0.1:1?max-message-bytes=5&probe-interval=2s"
    for client, limit, interval in (
        (Client(url), 5, 2.0),
        (Client(url, max_message_bytes=3, probe_interval=7), 3, 7.0),
        (Client("lockstep://127.0.0.1:1", max_message_bytes=3, probe_interval=7), 3, 7.0),
        (Client("lockstep://127.0.0.1:1"), 64 << 20, 1.0),
    ):
        async with client:
            with pytest.raises(errors.LimitExceeded):
                await client.publish("q", bytes(limit + 1), timeout=BOUND)
            assert client._options.probe_interval == interval


async def test_order_after_broken_stream() -> None:
    connected = asyncio.Event()

    async def second(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        connected.set()
        async for response in stores(requests, context):
            yield response

    async with Node() as node, steady_client([node.address]) as client, client.producer(batch_messages=1) as p:
        node.streams = [takes(3), second]
        futures = [await p.send("q", str(i)) for i in range(10)]
        await asyncio.wait_for(connected.wait(), BOUND)
        futures += [await p.send("q", str(i)) for i in range(10, 20)]
        receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert [r.sequence for r in receipts] == list(range(101, 121))
        again = [(r.publish.producer.sequence, r.publish.producer.retry) for r in node.seen[1]]
        assert [s for s, _ in again] == list(range(1, 21))
        flags = [retry for _, retry in again]
        assert flags == sorted(flags, reverse=True), "retries go first"
        assert all(flags[: len(node.seen[0])])
        assert not any(flags[10:]), "these requests were first sent on the second stream"


async def test_bundled_requests() -> None:
    async with Node() as node, steady_client([node.address]) as client, client.producer() as p:
        node.streams = [bundles]
        await p.publish("q", b"first", timeout=BOUND)
        queues = ["a", "b", "full", "c"]
        futures = [await p.send(queues[i % 4], str(i)) for i in range(200)]
        results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), BOUND)
        for i, r in enumerate(results):
            assert isinstance(r, errors.LimitExceeded if queues[i % 4] == "full" else Receipt), "separate outcomes"
        assert all(r.accepts_more for r in node.seen[0])
        assert len(node.seen[0]) < 30, "200 requests were sent in few frames"
        assert max(len(r.more) for r in node.seen[0]) == 200 // 4 - 1, "a fraction of the window per frame"
        sent = [one for r in node.seen[0] for one in unrolled(r)]
        assert [one.correlation for one in sent] == list(range(1, 202))
        assert [one.publish.producer.sequence for one in sent] == list(range(1, 202))
        assert [m.body for one in sent[1:] for m in one.publish.messages] == [str(i).encode() for i in range(200)]


async def test_unbundled_requests_to_older_nodes() -> None:
    async with Node() as node, steady_client([node.address]) as client, client.producer() as p:
        node.streams = [stores]
        futures = [await p.send("ab"[i % 2], str(i)) for i in range(40)]
        await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert [len(r.more) for r in node.seen[0]] == [0] * 40


async def test_bundle_is_retried_in_order() -> None:
    async def breaks(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        """Respond to the first request, and end within the responses to a frame of several requests."""
        async for r in requests:
            if len(r.more) >= 10:
                some = [answer(one) for one in unrolled(r)[:3]]
                some[0].more.extend(some[1:])
                yield some[0]
                break
            first = answer(r)
            first.accepts_more = True
            first.more.extend(answer(one) for one in r.more)
            yield first
        await abort(context, grpc.StatusCode.UNAVAILABLE, "OUTCOME_UNKNOWN")

    async def responds_late(requests: Requests, context: Context) -> AsyncIterator[queue_pb2.PublishStreamResponse]:
        """Respond after the client has sent the frames that it sends before the first response."""
        first = [await anext(requests) for _ in range(4)]
        for r in first:
            async for response in bundles(_only(r), context):
                yield response
        async for response in bundles(requests, context):
            yield response

    async with Node() as node, steady_client([node.address]) as client, client.producer() as p:
        node.streams = [breaks, responds_late]
        await p.publish("a", b"first", timeout=BOUND)
        futures = [await p.send("ab"[i % 2], str(i)) for i in range(100)]
        receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert [r.sequence for r in receipts] == list(range(102, 202)), "each has the sequence of its own request"
        assert [len(r.more) for r in node.seen[1][:4]] == [0] * 4, "the node may be an older one until it responds"
        assert any(r.more for r in node.seen[1]), "several requests per frame after the first response"
        again = [one.publish.producer for r in node.seen[1] for one in unrolled(r)]
        assert [w.sequence for w in again] == list(range(again[0].sequence, 102))
        before = {one.publish.producer.sequence for r in node.seen[0] for one in unrolled(r)}
        assert all(w.retry for w in again if w.sequence in before), "known requests have the retry flag"
        flags = [w.retry for w in again]
        assert flags == sorted(flags, reverse=True), "retries go first"


async def _only(r: queue_pb2.PublishStreamRequest) -> Requests:
    yield r


@pytest.mark.parametrize(
    ("settled", "reason", "code", "expected"),
    [
        (False, "QUEUE_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, errors.OutcomeUnknown),
        (True, "QUEUE_FULL", grpc.StatusCode.RESOURCE_EXHAUSTED, errors.LimitExceeded),
        (False, "TOO_OLD", grpc.StatusCode.OUT_OF_RANGE, errors.OutcomeLost),
        (False, "PRODUCER_UNKNOWN", grpc.StatusCode.OUT_OF_RANGE, errors.OutcomeLost),
        (False, "PRODUCER_FENCED", grpc.StatusCode.ABORTED, errors.OutcomeLost),
        (False, "OF_A_NEWER_NODE", grpc.StatusCode.NOT_FOUND, errors.OutcomeUnknown),
    ],
)
async def test_refused_retry(
    settled: bool, reason: str, code: grpc.StatusCode, expected: type[errors.LockstepError]
) -> None:
    async with Node() as node, steady_client([node.address]) as client:
        node.streams = [takes(1), refuses(code, reason, settled=settled)]
        with pytest.raises(expected) as caught:
            await client.publish("q", b"1", timeout=BOUND)
        assert type(caught.value) is expected
        assert caught.value.reason == reason


async def test_refused_first_attempt_is_not_applied() -> None:
    async with Node() as node, steady_client([node.address]) as client:
        node.streams = [refuses(grpc.StatusCode.NOT_FOUND, "QUEUE_NOT_FOUND")]
        with pytest.raises(errors.QueueNotFound) as caught:
            await client.publish("q", b"1", timeout=BOUND)
        assert caught.value.address == node.address
        assert "create the queue" in caught.value.what_to_do


async def test_evicted_producer_restarts_if_no_outcome_is_unknown() -> None:
    async with Node() as node, steady_client([node.address]) as client:
        node.streams = [refuses(grpc.StatusCode.OUT_OF_RANGE, "PRODUCER_UNKNOWN"), stores]
        await client.publish("q", b"1", timeout=BOUND)
        first, second = (s[0].publish.producer for s in node.seen)
        assert first.id != second.id
        assert (second.sequence, second.retry) == (1, False)


async def test_duplicate_result_of_first_attempt_is_sequence_reuse() -> None:
    async def duplicates(requests, context):  # type: ignore[no-untyped-def]
        async for r in requests:
            yield queue_pb2.PublishStreamResponse(
                correlation=r.correlation, published=queue_pb2.PublishResponse(first_sequence=1, duplicate=True)
            )

    async with Node() as node, steady_client([node.address]) as client, client.producer(id="mine", epoch=1) as p:
        node.streams = [duplicates]
        with pytest.raises(errors.SequenceReused):
            await p.publish("q", b"1", timeout=BOUND)


async def test_unsubmitted_requests_are_not_applied() -> None:
    async with Node() as node, steady_client([node.address]) as client:
        p = client.producer(batch_messages=1)
        node.streams = [takes(3, details=[queue_pb2.Submitted(through=1)]), stores]
        futures = [await p.send("q", str(i)) for i in range(3)]
        await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        again = [(r.publish.producer.sequence, r.publish.producer.retry) for r in node.seen[1]]
        assert again[0] == (1, True)
        assert all(not retry for sequence, retry in again if sequence > 1)


async def test_timeout_reports_outcome(clock: Clock) -> None:
    async with Node(role=admin_pb2.ROLE_STANDBY) as node, steady_client([node.address]) as client:
        locator = client._called().locator
        await until(lambda: locator.nodes[0].observed)
        with pytest.raises(errors.Unavailable, match="standby"):
            await client.publish("q", b"1", timeout=0.05)
        node.streams = [takes(2)]  # reads the request and does not respond
        node.set_role(admin_pb2.ROLE_ACTIVE, 2)
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(client.publish("q", b"2", timeout=TIMEOUT), until(lambda: node.seen and node.seen[0]))
        assert [r.publish.messages[0].body for r in node.seen[0]] == [b"2"]


async def test_close_reports_sent_and_unsent() -> None:
    async with Node() as node, steady_client([node.address]) as client:
        node.streams = [takes(1000)]
        p = client.producer(batch_messages=1, window=2)
        futures = [await p.send("q", str(i)) for i in range(4)]
        await until(lambda: node.seen and len(node.seen[0]) == 2)
        await p.close()
        kinds = [type(f.exception()) for f in futures]
        assert kinds == [errors.OutcomeUnknown, errors.OutcomeUnknown, errors.Closed, errors.Closed]
        with pytest.raises(errors.Closed):
            await p.send("q", b"later")


async def test_closed_producers_and_consumers_are_released() -> None:
    async def attaches(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        async for _request in requests:
            yield queue_pb2.ConsumeResponse(attached=True)

    async with Node() as node, steady_client([node.address]) as client:
        node.consumes = [attaches]
        async with client.producer(), await client.consume("q", timeout=BOUND):
            assert len(client._open) == 2
        assert not client._open


async def test_memory_is_bounded() -> None:
    async with Node(role=admin_pb2.ROLE_STANDBY) as node, steady_client([node.address]) as client:
        p = client.producer(max_pending_bytes=3000)
        body = b"x" * 1000
        futures = [await p.send("q", body) for _ in range(2)]
        waiting = asyncio.create_task(p.send("q", body))
        small = asyncio.create_task(p.send("q", b"small"))
        with pytest.raises(errors.Unavailable):
            await p.publish("q", body, timeout=0.1)
        assert not waiting.done(), "no memory is available"
        assert not small.done(), "a small publish does not overtake a waiting one"
        node.streams = [stores]
        node.set_role(admin_pb2.ROLE_ACTIVE, 2)
        futures += [await asyncio.wait_for(t, BOUND) for t in (waiting, small)]
        receipts = await asyncio.wait_for(asyncio.gather(*futures), BOUND)
        assert sorted(r.sequence for r in receipts) == [r.sequence for r in receipts], "in the order of the calls"
        await p.close()


async def test_publish_cancelled_before_send_is_not_sent() -> None:
    async with Node(role=admin_pb2.ROLE_STANDBY) as node, steady_client([node.address]) as client:
        p = client.producer()
        task = asyncio.create_task(p.publish("q", b"cancelled"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        node.streams = [stores]
        node.set_role(admin_pb2.ROLE_ACTIVE, 2)
        await p.publish("q", b"kept", timeout=BOUND)
        assert [m.body for r in node.seen[0] for m in r.publish.messages] == [b"kept"]


async def test_active_hints(clock: Clock) -> None:
    async with Node(term=2) as active, Node(term=1) as standby:
        active.streams = [stores]

        async def elsewhere(requests, context: Context):  # type: ignore[no-untyped-def]
            await abort(  # its status still reports that it is active
                context, grpc.StatusCode.FAILED_PRECONDITION, "NOT_ACTIVE", details=[not_active(active.address)]
            )
            yield queue_pb2.PublishStreamResponse()

        standby.streams = [elsewhere]
        async with steady_client([standby.address]) as client:
            assert (await client.publish("q", b"1", timeout=BOUND)).address == active.address
        refusals = len(standby.seen)
        async with steady_client([standby.address], follow_hints=False) as client:
            with pytest.raises(errors.LockstepError):
                await clock.expire(
                    client.publish("q", b"1", timeout=TIMEOUT), until(lambda: len(standby.seen) > refusals + 2)
                )


async def test_node_of_lower_term_is_ignored() -> None:
    async with Node(term=1) as old, Node(role=admin_pb2.ROLE_STANDBY, term=1) as new:
        old.streams = new.streams = [stores]
        async with steady_client([old.address, new.address]) as client:
            assert await client.wait_active(timeout=BOUND) == old.address
            new.set_role(admin_pb2.ROLE_ACTIVE, 2)
            while await client.wait_active(timeout=BOUND) != new.address:
                await asyncio.sleep(0.005)
            new.set_role(admin_pb2.ROLE_STANDBY, 2)
            locator = client._called().locator
            await until(lambda: locator.target is None)
            with pytest.raises(errors.Unavailable):
                await client.wait_active(timeout=0.05)
            with pytest.raises(errors.Unavailable):
                await client.publish("q", b"1", timeout=0.05)
            assert not old.seen


async def test_retried_commit_keeps_sequence(clock: Clock) -> None:
    async def commit(n: int, context: Context) -> queue_pb2.CommitResponse:
        if n == 1:
            await asyncio.Event().wait()  # the client times out
        if n == 2:
            await abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        return queue_pb2.CommitResponse(lsn=7, duplicate=True)

    async with Node() as node, steady_client([node.address]) as client:
        node.on_commit = commit
        t = client.transaction().publish("q", b"1")
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(t.commit(timeout=TIMEOUT), until(lambda: node.commits))
        with pytest.raises(errors.InvalidRequest):
            t.publish("q", b"too late")
        with pytest.raises(errors.OutcomeUnknown) as caught:
            await t.commit(timeout=BOUND)
        assert isinstance(caught.value.refusal, errors.LimitExceeded)
        assert (await t.commit(timeout=BOUND)).duplicate
        sent = [c.producer for c in node.commits]
        assert len({(p.id, p.sequence) for p in sent}) == 1
        assert [p.retry for p in sent] == [False, True, True]
        await client.transaction().publish("q", b"2").commit(timeout=BOUND)
        assert node.commits[-1].producer.sequence == sent[0].sequence + 1, "the sequencer is used again"


async def test_first_refusal_is_reported(clock: Clock) -> None:
    """The error of an attempt that timed out does not replace that of an earlier refused attempt."""

    async def commit(n: int, context: Context) -> queue_pb2.CommitResponse:
        if n == 1:
            await abort(context, grpc.StatusCode.UNAVAILABLE, "ONE_NODE_IN_SYNC")
        await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "")
        return queue_pb2.CommitResponse()

    async with Node() as node, steady_client([node.address]) as client:
        node.on_commit = commit
        with pytest.raises(errors.OutcomeUnknown, match="one_node_in_sync"):
            await clock.expire(
                client.transaction().publish("q", b"1").commit(timeout=TIMEOUT), until(lambda: len(node.commits) > 2)
            )


async def test_token_file_is_reread(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    async with Node() as node:
        node.streams = [stores]
        async with Client([node.address], token_file=file) as client:
            await client.publish("q", b"1", timeout=BOUND)
            node.accepts_token = lambda token: token == "new"
            file.write_text("new\n")
            p = client.producer()
            await p.publish("q", b"2", timeout=BOUND)
            file.write_text("nonsense that is long enough")
            assert set(node.tokens) == {"old", "new"}


async def test_rejected_token_is_reported() -> None:
    async with Node() as node:
        node.accepts_token = lambda _: False
        async with Client([node.address], token="wrong") as client:
            with pytest.raises(errors.Unauthenticated):
                await client.publish("q", b"1", timeout=BOUND)
            node.accepts_token, node.streams = lambda _: True, [stores]
            while True:  # permissions can change: the client retries
                try:
                    await client.publish("q", b"2", timeout=BOUND)
                    break
                except errors.Unauthenticated:
                    await asyncio.sleep(0.1)


async def test_failing_token_source_is_called_again() -> None:
    """An exception of the source does not end the retries. The client calls it at most once a second for all nodes."""
    calls: list[float] = []  # times at which the client decided to call the source

    async def source() -> str:
        calls.append(client._tokens._fetched)
        if len(calls) == 2:
            raise RuntimeError("the provider is not available")
        return "old" if len(calls) == 1 else "new"

    async with Node() as node:
        node.accepts_token, node.streams = lambda token: token == "new", [stores]
        async with Client([node.address, "127.0.0.1:1"], token_source=source) as client:
            while True:
                try:
                    await client.publish("q", b"1", timeout=BOUND)
                    break
                except errors.Unauthenticated:
                    await asyncio.sleep(0.1)
    assert len(calls) == 3
    assert all(later - earlier >= 1 for earlier, later in pairwise(calls))


def test_invalid_requests_fail_locally() -> None:
    for addresses in ([], ["host"], ["host:0"], ["host:port"], ["h:1", "h:1"], [f"h:{i}" for i in range(1, 18)]):
        with pytest.raises(errors.InvalidRequest):
            Client(addresses)
    with pytest.raises(errors.InvalidRequest):
        Client(["h:1"], token="two words")
    with pytest.raises(errors.InvalidRequest):
        Client(["h:1"], cert="only.pem")


async def test_token_requires_encryption() -> None:
    with pytest.raises(errors.InvalidRequest, match="unencrypted"):
        async with Client(["node.example.net:7420"], token="secret"):
            pass
    async with Client(["node.example.net:7420"], token="secret", allow_plaintext_token=True):
        pass


def test_reason_table_has_no_unknown_reasons() -> None:
    assert {f"ERROR_REASON_{n}" for n in _reasons.MEANING} <= set(errors_pb2.ErrorReason.keys())


def test_reasons_match_protocol() -> None:
    """The reasons are classified as in docs/reference/protocol.md, which a test of the Go client generates."""
    document = Path(__file__).parents[3] / "docs" / "reference" / "protocol.md"
    if not document.exists():
        pytest.skip("not in a checkout of the whole repository")
    rows = re.findall(r"^\| \d+ \| `(\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", document.read_text(), re.M)
    assert set(_reasons.MEANING) <= {row[0] for row in rows}
    for reason, code, attempt, then in rows:
        f = _failure.Failure("node:1", grpc.StatusCode[code], "", reason=reason)
        assert f.answered == (attempt == "not applied"), reason
        assert f.retry == (then in ("retry", "retry at the owner")), reason
        assert f.unauthenticated == then.startswith("retry with another token"), reason
        assert f.forgotten == then.startswith("retry as a new producer"), reason


async def test_refused_ack_is_not_resent() -> None:
    """A refused ack is not sent again on the next stream, where a node would accept it. Other acks are."""
    resent: asyncio.Future[list[tuple[int, int]]] = asyncio.get_running_loop().create_future()

    async def refusing(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        yield queue_pb2.ConsumeResponse(
            attached=True, messages=[types_pb2.StoredMessage(sequence=s) for s in (1, 2, 3)]
        )
        acked = 0
        async for r in requests:
            acked += sum(x.last - x.first + 1 for x in r.ack)
            if acked == 3:
                break
        refused = queue_pb2.ConsumeResponse()
        refused.refused.sequences.add(first=2, last=2)
        yield refused
        await abort(context, grpc.StatusCode.UNAVAILABLE, "")

    async def accepting(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        first = await anext(requests)
        resent.set_result([(x.first, x.last) for x in first.ack])
        yield queue_pb2.ConsumeResponse(attached=True, confirmed=first.confirm)
        async for r in requests:
            yield queue_pb2.ConsumeResponse(confirmed=r.confirm)

    async with Node() as node, steady_client([node.address]) as client:
        node.consumes = [refusing, accepting]
        consumer = await client.consume("q", timeout=BOUND)
        got = [await consumer.receive(timeout=BOUND) for _ in range(3)]
        for d in got:
            d.ack()
        assert await asyncio.wait_for(resent, BOUND) == [(1, 1), (3, 3)]
        with pytest.raises(errors.WrongState):
            await got[1].ack_confirmed(timeout=BOUND)
        await got[2].ack_confirmed(timeout=BOUND)


async def test_ack_after_seek_is_not_confirmed() -> None:
    """ack_confirmed() and extend() raise an error after a seek, also after ack(), because no node receives them."""
    attached = asyncio.Event()

    async def moved(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        yield queue_pb2.ConsumeResponse(attached=True, messages=[types_pb2.StoredMessage(sequence=s) for s in (1, 2)])
        async for r in requests:
            if r.ack:
                break
        await abort(context, grpc.StatusCode.UNAVAILABLE, "SUBSCRIPTION_MOVED")

    async def second(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        async for r in requests:
            assert not r.ack
            assert not r.nack
            yield queue_pb2.ConsumeResponse(attached=r.HasField("attach"), confirmed=r.confirm)
            attached.set()

    async with Node() as node, steady_client([node.address]) as client:
        node.consumes = [moved, second]
        consumer = await client.consume("q", timeout=BOUND)
        got = [await consumer.receive(timeout=BOUND) for _ in range(2)]
        got[0].ack()
        await asyncio.wait_for(attached.wait(), BOUND)
        await got[0].ack_confirmed(timeout=BOUND)  # the seek replaces the answer
        with pytest.raises(errors.InvalidRequest):
            await got[1].extend(timeout=BOUND)
        for answer in (None, got[1].ack, got[1].nack):
            if answer is not None:
                answer()
            with pytest.raises(errors.InvalidRequest):
                await got[1].ack_confirmed(timeout=BOUND)
        await consumer.flush(timeout=BOUND)
        await consumer.close()


async def test_ack_after_close_is_not_confirmed() -> None:
    """ack_confirmed() raises an error after close(), because no node receives the ack."""

    async def stream(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        yield queue_pb2.ConsumeResponse(attached=True, messages=[types_pb2.StoredMessage(sequence=1)])
        async for r in requests:
            if r.HasField("leave"):
                return

    async with Node() as node, steady_client([node.address]) as client:
        node.consumes = [stream]
        consumer = await client.consume("q", timeout=BOUND)
        d = await consumer.receive(timeout=BOUND)
        await consumer.close()
        with pytest.raises(errors.Closed):
            await d.ack_confirmed(timeout=BOUND)


async def test_flush_reports_errors_of_all_partitions(clock: Clock) -> None:
    """flush() reports one error per call, the most severe first. A later call reports those of other partitions."""
    confirm = asyncio.Event()

    async def partition(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        queue = (await anext(requests)).attach.queue
        yield queue_pb2.ConsumeResponse(attached=True, messages=[types_pb2.StoredMessage(sequence=1)])
        async for r in requests:
            answered = queue_pb2.ConsumeResponse(confirmed=r.confirm)
            if r.ack:
                answered.refused.sequences.extend(r.ack)
            if r.reject:
                assert queue == "q#0/2"
                answered.waiting.extend(r.reject)
                await confirm.wait()
            yield answered

    async with Node() as node, steady_client([node.address]) as client:
        client._called().fleet.partitions.learn(types_pb2.QueuePartitioned(queue="q", count=2))
        node.consumes = [partition, partition]
        consumer = await client.consume("q", timeout=BOUND)
        got = {d.partition: d for d in [await consumer.receive(timeout=BOUND) for _ in range(2)]}
        got["q#0/2"].reject()
        got["q#1/2"].ack()
        with pytest.raises(errors.OutcomeUnknown):
            await clock.expire(consumer.flush(timeout=TIMEOUT), until(lambda: got["q#1/2"].expired))
        confirm.set()
        for expected in (errors.WrongState, errors.LimitExceeded):
            with pytest.raises(expected):
                await consumer.flush(timeout=BOUND)
        await consumer.flush(timeout=BOUND)
        await consumer.close()


async def test_timeout_of_request_includes_all_steps(clock: Clock) -> None:
    attached = asyncio.Event()

    async def silent(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        clock.advance(TIMEOUT / 2)
        attached.set()
        async for r in requests:
            if r.HasField("leave"):
                return
            yield queue_pb2.ConsumeResponse()

    async with Node() as node, steady_client([node.address]) as client:
        node.consumes, node.on_create = [silent], lambda: clock.advance(TIMEOUT / 2)
        asking = asyncio.ensure_future(client.request("q", b"?", timeout=TIMEOUT))
        await attached.wait()
        await asyncio.wait({asking}, timeout=BOUND)
        assert asking.done()
        with pytest.raises(errors.Unavailable):
            await asking


async def test_run_extends_messages() -> None:
    """A message is extended several times per acknowledgement deadline, until its handler returns."""
    enough, acked = asyncio.Event(), asyncio.Event()
    extended: list[int] = []

    async def stream(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        attached = queue_pb2.ConsumeResponse(attached=True, messages=[types_pb2.StoredMessage(sequence=7)])
        attached.ack_timeout.FromMilliseconds(30)
        yield attached
        async for r in requests:
            extended.extend(x.first for x in r.extend.sequences)
            if len(extended) >= 3:
                enough.set()
            if r.ack:
                acked.set()
            yield queue_pb2.ConsumeResponse(confirmed=r.confirm)

    async def handle(_: Delivery) -> None:
        assert not acked.is_set()
        await asyncio.wait_for(enough.wait(), BOUND)

    async with Node() as node, steady_client([node.address]) as client:
        node.consumes = [stream]
        consumer = await client.consume("q", timeout=BOUND)
        running = asyncio.create_task(consumer.run(handle))
        await asyncio.wait_for(acked.wait(), BOUND)
        await consumer.close()
        await asyncio.wait_for(running, BOUND)
        assert set(extended) == {7}


@pytest.mark.parametrize(("prepare", "following"), [(False, 2), (True, 1)])
async def test_taken_message_is_not_redelivered_by_an_earlier_stream(prepare: bool, following: int) -> None:
    """A stream that was opened before a commit may deliver a taken message again.

    The consumer discards it, unless the transaction is only prepared: it may be rolled back.
    """
    broken, attached, taken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    messages = [types_pb2.StoredMessage(sequence=i, message=types_pb2.Message(body=b"%d" % i)) for i in (1, 2)]

    async def first(requests: ConsumeRequests, context: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        yield queue_pb2.ConsumeResponse(attached=True, messages=messages[:1])
        await broken.wait()
        await abort(context, grpc.StatusCode.UNAVAILABLE, "")

    async def second(requests: ConsumeRequests, _: Context) -> AsyncIterator[queue_pb2.ConsumeResponse]:
        await anext(requests)
        yield queue_pb2.ConsumeResponse(attached=True)
        attached.set()
        await taken.wait()
        yield queue_pb2.ConsumeResponse(messages=messages)
        async for _request in requests:
            pass

    async def commit(_: int, __: Context) -> queue_pb2.CommitResponse:
        return queue_pb2.CommitResponse(lsn=1)

    async with Node() as node, steady_client([node.address]) as client:
        node.consumes, node.on_commit = [first, second], commit
        consumer = await client.consume("q")
        t = client.transaction().take(await consumer.receive(timeout=BOUND))
        broken.set()
        await asyncio.wait_for(attached.wait(), BOUND)
        await (t.prepare("xid", timeout=BOUND) if prepare else t.commit(timeout=BOUND))
        taken.set()
        assert (await consumer.receive(timeout=BOUND)).sequence == following
        await consumer.close()
