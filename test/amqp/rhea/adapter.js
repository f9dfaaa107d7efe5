// SPDX-License-Identifier: Apache-2.0

// The adapter of rhea for the cases of test/amqp: requests as lines of JSON (../README.md). rhea has no transactions. It reconnects
// and reattaches links automatically, but loses unsettled messages; this adapter resends them.
'use strict';

const fs = require('fs');
const readline = require('readline');
const rhea = require('rhea');

const clients = new Map();

// errorOf converts an error of the node.
function errorOf(error) {
  return new Error(error ? error.condition + ': ' + error.description : 'closed');
}

class Client {
  constructor(request) {
    this.senders = new Map();
    this.consumers = new Map();
    this.links = new Set(); // links that are not open yet
    let attempts = 0;
    let secure;
    if (request.tls) {
      secure = {ca: fs.readFileSync(request.tls), servername: request.urls[0].split(':')[0]};
      if (request.certificate) {
        secure.cert = secure.key = fs.readFileSync(request.certificate);
      }
    }
    this.connection = rhea.create_container().connect({
      connection_details: () => { // the next URL: rhea's own counter restarts after the response of a standby
        const [host, port] = request.urls[attempts++ % request.urls.length].split(':');
        return secure ? {host, port: Number(port), transport: 'tls', options: secure} : {host, port: Number(port)};
      },
      cert: secure && secure.cert,
      enable_sasl_external: Boolean(request.certificate),
      container_id: request.client_id || rhea.generate_uuid(),
      username: request.user,
      password: request.password,
      reconnect: true,
      initial_reconnect_delay: 50,
      max_reconnect_delay: 500,
    });
    this.connection.on('disconnected', () => this.disconnected());
    this.connection.on('session_error', () => {});
    this.connection.on('error', (e) => console.error('rhea: ' + e));
    this.opened = new Promise((resolve, reject) => {
      this.connection.on('connection_error', () => reject(errorOf(this.connection.get_error())));
      this.connection.on('connection_open', (context) => {
        const properties = context.connection.properties || {};
        if (!properties['amqp:connection-establishment-failed']) { // otherwise a close with the reason follows
          resolve();
        }
      });
    });
  }

  disconnected() {
    for (const s of this.senders.values()) {
      s.waiting = [...s.sent.values(), ...s.waiting];
      s.sent.clear();
    }
    for (const k of this.consumers.values()) {
      k.messages = [];
      k.open.clear();
    }
  }

  sender(to, kind) {
    const name = kind + ' ' + to;
    if (this.senders.has(name)) {
      return this.senders.get(name);
    }
    const link = this.connection.open_sender({target: {address: to, capabilities: [kind]}});
    const s = {link, waiting: [], sent: new Map()};
    this.senders.set(name, s);
    const end = (outcome) => (context) => {
      const one = s.sent.get(context.delivery.id);
      if (one) {
        s.sent.delete(context.delivery.id);
        const error = context.delivery.remote_state && context.delivery.remote_state.error;
        one.done(outcome === 'accepted' ? {outcome} : {outcome: 'failed', text: error ? error.condition + ': ' + error.description : outcome});
      }
    };
    link.on('accepted', end('accepted'));
    link.on('rejected', end('rejected'));
    link.on('released', end('released'));
    link.on('modified', end('modified'));
    link.on('sendable', () => this.flush(s));
    link.on('sender_error', (context) => {
      this.senders.delete(name);
      const text = String(context.sender.error);
      for (const one of [...s.sent.values(), ...s.waiting]) {
        one.done({outcome: 'failed', text});
      }
    });
    return s;
  }

  flush(s) {
    while (s.waiting.length > 0 && s.link.sendable()) {
      const one = s.waiting.shift();
      s.sent.set(s.link.send(one.message).id, one);
    }
  }

  async send(r) {
    const s = this.sender(r.to, r.kind || 'queue');
    const all = r.messages.map((m) => new Promise((done) => s.waiting.push({message: encode(m), done})));
    this.flush(s);
    return {results: await Promise.all(all)};
  }

  receiver(source, more) {
    const link = this.connection.open_receiver(Object.assign({source, autoaccept: false, credit_window: 20}, more));
    const opened = new Promise((resolve, reject) => {
      link.once('receiver_open', () => setTimeout(() => resolve(link), 30)); // a rejected link is closed immediately
      link.once('receiver_error', () => reject(errorOf(link.error)));
      link.once('receiver_close', () => reject(errorOf(link.error)));
    });
    opened.catch(() => {});
    link.on('receiver_error', () => {});
    link.on('receiver_close', () => {});
    return {link, opened};
  }

  async consume(r) {
    const source = {address: r.from, capabilities: [r.kind || 'queue'], filter: {}};
    const more = {};
    if (r.selector) {
      Object.assign(source.filter, rhea.filter.selector(r.selector));
    }
    if (r.no_local) {
      source.filter['no-local'] = rhea.types.wrap_described([], 0x468c00000003);
    }
    if (r.shared) {
      source.capabilities.push('shared');
    }
    if (r.durable) {
      Object.assign(source, {durable: 2, expiry_policy: 'never'});
      more.name = r.durable;
      if (r.shared && r.consumer !== 'k') {
        more.name += '|' + r.consumer; // a further link of the subscription, named as by Qpid JMS
      }
    }
    if (this.temporary && this.temporary.address === r.from) {
      this.consumers.set(r.consumer, this.temporary.consumer);
      return {};
    }
    const {link, opened} = this.receiver(source, more);
    this.consumers.set(r.consumer, this.collect(link, r));
    await opened;
    return {};
  }

  collect(link, request) {
    const k = {link, request, messages: [], waiting: [], open: new Map(), count: 0};
    link.on('message', (context) => {
      k.messages.push({message: context.message, delivery: context.delivery});
      if (k.waiting.length > 0) {
        k.waiting.shift()();
      }
    });
    return k;
  }

  async receive(r) {
    const k = this.consumers.get(r.consumer);
    const end = Date.now() + r.timeout_ms;
    while (k.messages.length === 0) {
      const left = end - Date.now();
      if (left <= 0) {
        return {};
      }
      await new Promise((resolve) => {
        k.waiting.push(resolve);
        setTimeout(resolve, left).unref();
      });
      k.waiting = [];
    }
    const {message, delivery} = k.messages.shift();
    k.count++;
    k.open.set(k.count, delivery);
    return {delivery: k.count, message: decode(message)};
  }

  answer(r) {
    const k = this.consumers.get(r.consumer);
    const delivery = k.open.get(r.delivery);
    if (!delivery) {
      throw new Error('delivery is not open: connection lost');
    }
    k.open.delete(r.delivery);
    if (r.how === 'accept') {
      delivery.accept();
    } else if (r.how === 'release') {
      delivery.release();
    } else if (r.how === 'reject') {
      delivery.reject({condition: 'amqp:internal-error', description: 'the application rejects it'});
    } else {
      delivery.modified({delivery_failed: true});
    }
    return {};
  }

  async browse(r) {
    const {link, opened} = this.receiver({address: r.from, distribution_mode: 'copy', capabilities: ['queue']}, {credit_window: 0});
    const messages = [];
    link.on('message', (context) => messages.push(decode(context.message)));
    await opened;
    const drained = new Promise((resolve) => link.once('receiver_drained', resolve));
    link.add_credit(1000);
    link.drain_credit();
    await drained;
    link.close();
    return {messages};
  }

  async temporaryQueue() {
    const {link, opened} = this.receiver({dynamic: true, capabilities: ['temporary-queue']}, {});
    const consumer = this.collect(link, {});
    await opened;
    this.temporary = {address: link.source.address, consumer};
    return {address: link.source.address};
  }

  // Closing a link deletes its subscription; detaching does not.
  consumerClose(r) {
    const k = this.consumers.get(r.consumer);
    const closed = new Promise((resolve) => k.link.once('receiver_close', () => setTimeout(resolve, 10)));
    if (k.request.durable) {
      k.link.detach();
    } else {
      k.link.close();
    }
    return closed.then(() => ({}));
  }

  async unsubscribe(r) {
    const {link, opened} = this.receiver({address: r.from, capabilities: ['topic'], durable: 2, expiry_policy: 'never'},
        {name: r.durable, credit_window: 0});
    await opened;
    const closed = new Promise((resolve) => link.once('receiver_close', resolve));
    link.close();
    await closed;
    return {};
  }
}

function encode(m) {
  const out = {durable: true, body: m.body, message_id: m.message_id || rhea.generate_uuid()};
  for (const [from, to] of [['correlation_id', 'correlation_id'], ['subject', 'subject'], ['group', 'group_id'],
    ['reply_to', 'reply_to'], ['priority', 'priority'], ['ttl_ms', 'ttl'], ['properties', 'application_properties']]) {
    if (m[from] !== undefined) {
      out[to] = m[from];
    }
  }
  if (m.delay_ms) {
    out.message_annotations = {'x-opt-delivery-delay': m.delay_ms};
  }
  return out;
}

function decode(m) {
  let body = m.body;
  if (body && body.typecode === 0x75) {
    body = body.content;
  }
  return {
    body: Buffer.isBuffer(body) ? body.toString() : body,
    message_id: m.message_id === undefined ? '' : String(m.message_id),
    correlation_id: m.correlation_id === undefined ? '' : String(m.correlation_id),
    subject: m.subject,
    group: m.group_id,
    reply_to: m.reply_to,
    priority: m.priority === undefined ? 4 : m.priority,
    delivery_count: m.delivery_count || 0,
    properties: m.application_properties || {},
  };
}

async function perform(r) {
  if (r.op === 'can') {
    return ['browse', 'durable', 'shared', 'selector', 'delay', 'answer', 'no-local', 'temporary', 'follow'];
  }
  if (r.op === 'open') {
    const c = new Client(r);
    clients.set(r.client, c);
    await c.opened;
    return {};
  }
  const c = clients.get(r.client);
  switch (r.op) {
    case 'close': {
      const closed = new Promise((resolve) => c.connection.once('connection_close', resolve));
      c.connection.close();
      await closed;
      return {};
    }
    case 'send': return c.send(r);
    case 'consume': return c.consume(r);
    case 'receive': return c.receive(r);
    case 'answer': return c.answer(r);
    case 'browse': return c.browse(r);
    case 'temporary': return c.temporaryQueue();
    case 'consumer_close': return c.consumerClose(r);
    case 'unsubscribe': return c.unsubscribe(r);
    default: throw new Error('no such op: ' + r.op);
  }
}

const open = new Map(); // requests without a response
process.on('SIGQUIT', () => {
  console.error('requests:', [...open.values()].join(' '), 'resources:', process.getActiveResourcesInfo().join(' '));
  process.exit(131);
});

const lines = readline.createInterface({input: process.stdin});
lines.on('line', (line) => {
  const r = JSON.parse(line);
  open.set(r.id, line);
  perform(r).then((ok) => ({id: r.id, ok}), (e) => ({id: r.id, error: {message: e.message}}))
      .then((a) => {
        open.delete(r.id);
        process.stdout.write(JSON.stringify(a) + '\n');
      });
});
lines.on('close', () => process.exit(0));
