# SPDX-License-Identifier: Apache-2.0
"""The adapter of Qpid Proton for the cases of test/amqp: requests as lines of JSON (../README.md).

Proton reconnects automatically, with its sessions and links. This adapter resends unsettled messages.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
from collections import deque

from proton import Data, Delivery, Described, Message, SSLDomain, symbol
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import ApplicationEvent, Container, Copy, DurableSubscription, EventInjector, Filter, ReceiverOption, Selector, SenderOption


def put_symbols(data, names):
    data.put_array(False, Data.SYMBOL)
    data.enter()
    for n in names:
        data.put_symbol(symbol(n))
    data.exit()


class SourceCapabilities(ReceiverOption):
    def __init__(self, names):
        self.names = names

    def apply(self, receiver):
        put_symbols(receiver.source.capabilities, self.names)


class TargetCapabilities(SenderOption):
    def __init__(self, names):
        self.names = names

    def apply(self, sender):
        put_symbols(sender.target.capabilities, self.names)


class Consumer:
    def __init__(self, request, link):
        self.request, self.link = request, link
        self.messages, self.waiting, self.open, self.count = deque(), deque(), {}, 0


class Producer:
    def __init__(self, link):
        self.link, self.waiting, self.sent = link, deque(), {}


class Client(MessagingHandler):
    """A connection. All methods run on the thread of the container."""

    def __init__(self, program, request):
        super().__init__(prefetch=20, auto_accept=False)
        self.program, self.request = program, request
        self.producers, self.consumers, self.opening, self.closing = {}, {}, {}, {}
        self.transactions = {}
        self.temporary, self.connected = None, False
        self.open_id = request["id"]
        container = program.container
        container.container_id = request.get("client_id") or "proton-%d-%d" % (os.getpid(), request["id"])
        more, scheme = {}, "amqp://"
        if "tls" in request:
            scheme, domain = "amqps://", SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(request["tls"])
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME, request["tls"])
            if "certificate" in request:
                domain.set_credentials(request["certificate"], request["certificate"], None)
                more["allowed_mechs"] = "EXTERNAL"
            more["ssl_domain"] = domain
        self.connection = container.connect(
            urls=[scheme + u for u in request["urls"]], handler=self, reconnect=delays(), user=request.get("user"),
            password=request.get("password"), sasl_enabled=True, **more,
        )

    # Events.

    def on_connection_opened(self, event):
        if (event.connection.remote_properties or {}).get(symbol("amqp:connection-establishment-failed")):
            return  # a close with the reason follows
        self.connected = True
        for t in self.transactions.values():
            t.declare()
        if self.open_id is not None:
            self.program.answer(self.open_id, {})
            self.open_id = None

    def on_connection_closed(self, event):
        if self in self.closing:
            self.program.answer(self.closing.pop(self), {})

    def denied(self, condition):
        if self.open_id is not None:
            self.program.answer(self.open_id, None, condition)
            self.open_id = None

    def on_transport_error(self, event):
        if event.transport.condition.name == "amqp:unauthorized-access":
            self.denied(event.transport.condition)
        super().on_transport_error(event)

    def on_connection_error(self, event):
        self.denied(event.connection.remote_condition)
        print("proton: connection closed: %s" % event.connection.remote_condition, file=sys.stderr)

    def on_disconnected(self, event):
        self.connected = False
        for request_id in self.closing.values():
            self.program.answer(request_id, {})  # links end with their connection
        self.closing = {}
        for p in self.producers.values():
            again = list(p.sent.values()) + list(p.waiting)
            for one in again:
                if one["transaction"]:
                    one["done"]({"outcome": "failed", "text": "transaction lost: connection lost"})
            p.sent, p.waiting = {}, deque(one for one in again if not one["transaction"])
        for k in self.consumers.values():
            k.messages.clear()
            k.open.clear()
        for t in self.transactions.values():
            t.disconnected()

    def on_link_opened(self, event):
        link = event.link
        if link in self.opening and (link.is_sender or link.remote_source.address is not None or link.remote_source.dynamic):
            self.opening.pop(link)(None)

    def on_link_error(self, event):
        link = event.link
        why = "%s: %s" % (link.remote_condition.name, link.remote_condition.description)
        if link in self.opening:
            self.opening.pop(link)(why)
        for key, p in list(self.producers.items()):
            if p.link == link:
                for one in list(p.sent.values()) + list(p.waiting):
                    one["done"]({"outcome": "failed", "text": why})
                del self.producers[key]

    def on_link_closed(self, event):
        if event.link in self.closing:
            self.program.answer(self.closing.pop(event.link), {})

    def on_sendable(self, event):
        for p in self.producers.values():
            if p.link == event.sender:
                self.flush(p)

    def settled(self, event, outcome):
        for p in self.producers.values():
            one = p.sent.pop(event.delivery.tag, None) if p.link == event.link else None
            if one:
                condition = event.delivery.remote.condition
                text = "%s: %s" % (condition.name, condition.description) if condition else outcome
                one["done"]({"outcome": "accepted"} if outcome == "accepted" else {"outcome": "failed", "text": text})

    def on_accepted(self, event):
        self.settled(event, "accepted")

    def on_rejected(self, event):
        self.settled(event, "rejected")

    def on_released(self, event):
        self.settled(event, "released")

    def on_delivery(self, event):
        # The handler has no method for a transactional state.
        d = event.delivery
        if d.link.is_sender and d.updated and d.remote_state == 0x34:
            self.settled(event, "accepted")
            d.settle()

    def on_message(self, event):
        for k in self.consumers.values():
            if k.link == event.receiver:
                k.messages.append((event.message, event.delivery))
                if k.waiting:
                    k.waiting.popleft()()

    # Requests.

    def producer(self, to, kind):
        if (to, kind) not in self.producers:
            link = self.program.container.create_sender(
                self.connection, to, name="%s-%s-%d" % (kind, to, len(self.producers)), options=TargetCapabilities([kind])
            )
            self.producers[to, kind] = Producer(link)
        return self.producers[to, kind]

    def flush(self, p):
        while p.waiting and p.link.credit > 0:
            one = p.waiting.popleft()
            t = one["transaction"]
            d = t.send(p.link, one["message"]) if t else p.link.send(one["message"])
            p.sent[d.tag] = one

    def send(self, r):
        results = [None] * len(r["messages"])
        p = self.producer(r["to"], r.get("kind", "queue"))
        t = self.transactions.get(r.get("session"))
        if t and (t.lost or t.current is None):
            self.program.answer(r["id"], None, "transaction lost: connection lost")
            return

        def done(at, got):
            results[at] = got
            if all(results):
                self.program.answer(r["id"], {"results": results})

        for i, m in enumerate(r["messages"]):
            p.waiting.append({"message": encode(m), "done": lambda got, i=i: done(i, got), "transaction": t and t.current})
        self.flush(p)

    def consume(self, r):
        if self.temporary and self.temporary.link.remote_source.address == r["from"]:
            self.consumers[r["consumer"]] = self.temporary
            self.program.answer(r["id"], {})
            return
        names, options = [r.get("kind", "queue")], []
        name = "%s-%d" % (r["consumer"], r["id"])
        if r.get("shared"):
            names.append("shared")
        if r.get("durable"):
            options.append(DurableSubscription())
            name = r["durable"]
            if r.get("shared") and r["consumer"] != "k":
                name += "|" + r["consumer"]  # a further link of the subscription, named as by Qpid JMS
        if r.get("selector"):
            options.append(Selector(r["selector"]))
        if r.get("no_local"):
            options.append(Filter({symbol("no-local"): Described(symbol("apache.org:no-local-filter:list"), [])}))
        options.append(SourceCapabilities(names))
        link = self.program.container.create_receiver(self.connection, r["from"], name=name, options=options)
        self.consumers[r["consumer"]] = Consumer(r, link)
        self.opening[link] = lambda why: self.program.answer(r["id"], {}, why)

    def receive(self, r):
        k = self.consumers[r["consumer"]]
        answered = []

        def take():
            if answered:
                if k.messages and k.waiting:
                    k.waiting.popleft()()
                return
            answered.append(True)
            if not k.messages:
                self.program.answer(r["id"], {})
                return
            message, delivery = k.messages.popleft()
            k.count += 1
            k.open[k.count] = delivery
            t = self.transactions.get(r.get("session"))
            if t:
                t.received(delivery)
            self.program.answer(r["id"], {"delivery": k.count, "message": decode(message)})

        if k.messages:
            take()
            return
        k.waiting.append(take)
        self.program.after(r["timeout_ms"] / 1000, take)

    def answer(self, r):
        d = self.consumers[r["consumer"]].open.pop(r["delivery"], None)
        if d is None:
            self.program.answer(r["id"], None, "delivery is not open: connection lost")
            return
        if r["how"] == "fail":
            d.local.failed = True
        d.update({"accept": Delivery.ACCEPTED, "release": Delivery.RELEASED, "reject": Delivery.REJECTED, "fail": Delivery.MODIFIED}[r["how"]])
        d.settle()
        self.program.answer(r["id"], {})

    def browse(self, r):
        Browser(self, r)

    def temporary_queue(self, r):
        link = self.program.container.create_receiver(
            self.connection, None, dynamic=True, name="temporary", options=SourceCapabilities(["temporary-queue"])
        )
        self.temporary = Consumer(r, link)
        self.opening[link] = lambda why: self.program.answer(r["id"], {"address": link.remote_source.address}, why)

    def consumer_close(self, r):
        k = self.consumers[r["consumer"]]
        if k.request.get("durable"):
            k.link.detach()
            self.program.answer(r["id"], {})
            return
        if self.connected:
            self.closing[k.link] = r["id"]
        else:  # not reattached
            self.program.answer(r["id"], {})
        k.link.close()

    def unsubscribe(self, r):
        # Closing a link deletes its subscription; detaching does not.
        link = self.program.container.create_receiver(
            self.connection, r["from"], name=r["durable"], options=[DurableSubscription(), SourceCapabilities(["topic"])]
        )

        def opened(why):
            if why:
                self.program.answer(r["id"], None, why)
                return
            self.closing[link] = r["id"]
            link.close()

        self.opening[link] = opened

    def session(self, r):
        if r.get("transacted"):
            self.transactions[r["session"]] = Transacted(self, r["id"])
        else:
            self.program.answer(r["id"], {})

    def commit(self, r):
        self.transactions[r["session"]].end(r["id"], True)

    def rollback(self, r):
        self.transactions[r["session"]].end(r["id"], False)

    def close_connection(self, r):
        self.closing[self] = r["id"]
        self.connection.close()


class Transacted(TransactionHandler):
    """Consecutive transactions on a connection."""

    def __init__(self, client, request_id):
        super().__init__()
        self.client, self.waiting, self.current, self.deliveries = client, request_id, None, []
        self.lost = self.declaring = False
        self.declare()

    def received(self, delivery):
        self.deliveries.append(delivery)

    def end(self, request_id, commit):
        if self.lost or self.current is None:
            self.lost = False
            self.client.program.answer(request_id, None, "transaction lost: connection lost")
            self.deliveries = []
            return
        self.waiting = request_id
        if commit:
            for d in self.deliveries:
                self.current.accept(d)
            self.current.commit()
        else:
            self.current.abort()

    def declare(self):
        if self.declaring or self.current is not None or not self.client.connected:
            return  # on_connection_opened calls declare again
        self.declaring = True
        self.client.program.container.declare_transaction(self.client.connection, handler=self)

    def disconnected(self):
        self.lost, self.current, self.deliveries, self.declaring = True, None, [], False
        if self.waiting is not None:
            self.client.program.answer(self.waiting, None, "connection lost")
            self.waiting, self.lost = None, False

    def done(self, why=None):
        self.deliveries, self.current = [], None
        if self.waiting is not None:
            self.client.program.answer(self.waiting, {}, why)
            self.waiting = None
        self.declare()

    def on_transaction_declared(self, event):
        self.current, self.declaring = event.transaction, False
        if self.waiting is not None:
            self.client.program.answer(self.waiting, {})
            self.waiting = None

    def on_transaction_declare_failed(self, event):
        self.declaring = False

    def on_transaction_committed(self, event):
        self.done()

    def on_transaction_aborted(self, event):
        # Release the deliveries of the transaction.
        for d in self.deliveries:
            d.update(Delivery.RELEASED)
            d.settle()
        self.done()

    def on_transaction_commit_failed(self, event):
        self.done("commit rejected: %s" % event.delivery.remote.condition)


class Browser(MessagingHandler):
    """Reads the messages of a queue until the credit is drained."""

    def __init__(self, client, request):
        super().__init__(prefetch=0, auto_accept=False)
        self.client, self.request, self.messages = client, request, []
        self.link = client.program.container.create_receiver(
            client.connection, request["from"], name="browse-%d" % request["id"], options=[Copy(), SourceCapabilities(["queue"])], handler=self
        )

    def on_link_opened(self, event):
        self.link.drain(1000)

    def on_message(self, event):
        self.messages.append(decode(event.message))
        event.delivery.settle()

    def on_link_flow(self, event):
        if self.link.credit == 0:
            self.link.close()
            self.client.program.answer(self.request["id"], {"messages": self.messages})


def delays():
    return [0] + [0.05] * 10000


def encode(m):
    out = Message(body=m["body"], durable=True, id=m.get("message_id") or os.urandom(8).hex(), priority=m.get("priority", 4))
    if "correlation_id" in m:
        out.correlation_id = m["correlation_id"]
    if "subject" in m:
        out.subject = m["subject"]
    if "group" in m:
        out.group_id = m["group"]
    if "reply_to" in m:
        out.reply_to = m["reply_to"]
    if "ttl_ms" in m:
        out.ttl = m["ttl_ms"] / 1000
    if "properties" in m:
        out.properties = m["properties"]
    if "delay_ms" in m:
        out.annotations = {symbol("x-opt-delivery-delay"): m["delay_ms"]}
    return out


def decode(m):
    body = m.body
    if isinstance(body, (bytes, memoryview)):
        body = bytes(body).decode()
    return {
        "body": body,
        "message_id": str(m.id or ""),
        "correlation_id": str(m.correlation_id or ""),
        "subject": m.subject or "",
        "group": m.group_id or "",
        "reply_to": m.reply_to or "",
        "priority": m.priority,
        "delivery_count": m.delivery_count,
        "properties": dict(m.properties or {}),
    }


class Timer:
    def __init__(self, call):
        self.call = call

    def on_timer_task(self, event):
        self.call()


class Program(MessagingHandler):
    def __init__(self):
        super().__init__()
        self.clients, self.lock = {}, threading.Lock()
        self.container = Container(self)
        self.injector = EventInjector()
        self.container.selectable(self.injector)

    def after(self, seconds, call):
        self.container.schedule(seconds, Timer(call))

    def answer(self, request_id, ok, error=None):
        line = {"id": request_id, "ok": ok} if error is None else {"id": request_id, "error": {"message": str(error)}}
        with self.lock:
            print(json.dumps(line), flush=True)

    def on_request(self, event):
        r = event.subject
        try:
            self.perform(r)
        except Exception as e:  # report any error to the runner
            self.answer(r["id"], None, repr(e))

    def perform(self, r):
        op = r["op"]
        if op == "can":
            self.answer(
                r["id"],
                ["transact", "browse", "durable", "shared", "selector", "delay", "answer", "no-local", "temporary", "follow", "resend"],
            )
        elif op == "open":
            self.clients[r["client"]] = Client(self, r)
        else:
            c = self.clients[r["client"]]
            {"close": c.close_connection, "temporary": c.temporary_queue}.get(op, getattr(c, op, None))(r)

    def read(self):
        for line in sys.stdin:
            self.injector.trigger(ApplicationEvent("request", subject=json.loads(line)))
        os._exit(0)


def main():
    faulthandler.register(signal.SIGQUIT, chain=True)  # writes the stacks of all threads and exits
    program = Program()
    threading.Thread(target=program.read, daemon=True).start()
    program.container.run()


if __name__ == "__main__":
    main()
