// SPDX-License-Identifier: Apache-2.0

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import javax.jms.BytesMessage;
import javax.jms.CompletionListener;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.QueueBrowser;
import javax.jms.Session;
import javax.jms.TextMessage;
import javax.jms.Topic;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.message.JmsMessageIDBuilder;
import org.apache.qpid.jms.policy.JmsDefaultMessageIDPolicy;

/**
 * The adapter of Qpid JMS for the cases of test/amqp: requests as lines of JSON (../../README.md). The runner compiles it for Qpid
 * JMS 1.x, and with jakarta.jms for 2.x.
 */
public final class Adapter {
  /** Qpid's session mode for the acknowledgement of single messages. The property ACK_TYPE selects the outcome. */
  private static final int INDIVIDUAL_ACKNOWLEDGE = 101;

  private static final String ACK_TYPE = "JMS_AMQP_ACK_TYPE";
  private static final Map<String, Integer> ACK_TYPES =
      Map.of("accept", 1, "reject", 2, "release", 3, "fail", 4, "undeliverable", 5);

  /** The ID of the next message that the thread sends, or the library's default. JMS has no method to set it. */
  private static final ThreadLocal<String> MESSAGE_ID = new ThreadLocal<>();

  private final Gson gson = new Gson();
  private final PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
  private final Map<String, Client> clients = new ConcurrentHashMap<>();

  /** A session and its thread. JMS allows only one thread to use a session. */
  private static final class Work {
    final ExecutorService thread = Executors.newSingleThreadExecutor(Adapter::daemon);
    Session session;
    MessageProducer producer;
  }

  private static final class Subscriber {
    MessageConsumer consumer;
    final Map<Long, Message> open = new HashMap<>();
    long deliveries;
  }

  private static final class Client {
    Connection connection;
    final Map<String, Work> sessions = new ConcurrentHashMap<>();
    final Map<String, Subscriber> subscribers = new ConcurrentHashMap<>();
    final Map<String, Destination> temporary = new ConcurrentHashMap<>();
  }

  public static void main(String[] args) throws Exception {
    Adapter a = new Adapter();
    System.setOut(System.err); // for output of the library: PN_TRACE_FRM=1 logs every frame
    a.run();
  }

  private static Thread daemon(Runnable r) {
    Thread t = new Thread(r);
    t.setDaemon(true);
    return t;
  }

  private void run() throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    ExecutorService control = Executors.newCachedThreadPool(Adapter::daemon);
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonObject request = gson.fromJson(line, JsonObject.class);
      Client client = clients.get(text(request, "client"));
      ExecutorService thread = control;
      if (client != null && !"close".equals(text(request, "op"))) {
        String name = text(request, "session");
        thread = client.sessions.computeIfAbsent(name, n -> new Work()).thread;
      }
      thread.execute(() -> answer(request));
    }
    System.exit(0);
  }

  private void answer(JsonObject request) {
    JsonObject answer = new JsonObject();
    answer.add("id", request.get("id"));
    try {
      answer.add("ok", perform(request));
    } catch (Throwable e) {
      JsonObject error = new JsonObject();
      error.addProperty("message", e + (e.getCause() == null ? "" : "; " + e.getCause()));
      answer.add("error", error);
    }
    synchronized (out) {
      out.println(gson.toJson(answer));
    }
  }

  private JsonElement perform(JsonObject r) throws Exception {
    switch (text(r, "op")) {
      case "can":
        return gson.toJsonTree(List.of("transact", "browse", "durable", "shared", "selector", "delay", "answer", "no-local",
            "temporary", "follow", "group", "request", "resend"));
      case "open":
        return open(r);
      case "close":
        clients.remove(text(r, "client")).connection.close();
        return new JsonObject();
      default:
        Client c = clients.get(text(r, "client"));
        return of(c, c.sessions.get(text(r, "session")), r);
    }
  }

  private JsonElement of(Client c, Work w, JsonObject r) throws Exception {
    if (w.session == null) {
      boolean transacted = r.has("transacted") && r.get("transacted").getAsBoolean();
      w.session = c.connection.createSession(transacted, transacted ? Session.SESSION_TRANSACTED : INDIVIDUAL_ACKNOWLEDGE);
      w.producer = w.session.createProducer(null);
    }
    switch (text(r, "op")) {
      case "session":
        return new JsonObject();
      case "send":
        return send(c, w, r);
      case "consume":
        return consume(c, w, r);
      case "receive":
        return receive(c.subscribers.get(text(r, "consumer")), r.get("timeout_ms").getAsLong());
      case "answer":
        return acknowledge(c.subscribers.get(text(r, "consumer")), r);
      case "commit":
        w.session.commit();
        return new JsonObject();
      case "rollback":
        w.session.rollback();
        return new JsonObject();
      case "browse":
        return browse(w, r);
      case "consumer_close":
        c.subscribers.remove(text(r, "consumer")).consumer.close();
        return new JsonObject();
      case "unsubscribe":
        w.session.unsubscribe(text(r, "durable"));
        return new JsonObject();
      case "temporary":
        return temporary(c, w);
      default:
        throw new IllegalArgumentException("no such op: " + text(r, "op"));
    }
  }

  private JsonElement open(JsonObject r) throws Exception {
    List<String> urls = new ArrayList<>();
    for (JsonElement e : r.getAsJsonArray("urls")) {
      urls.add((r.has("tls") ? "amqps://" : "amqp://") + e.getAsString() + (r.has("tls") ? "?" + secure(r) : ""));
    }
    String url = "failover:(" + String.join(",", urls) + ")?failover.initialReconnectDelay=20&failover.reconnectDelay=50"
        + "&failover.maxReconnectDelay=500&failover.warnAfterReconnectAttempts=0&jms.prefetchPolicy.all=20";
    if (r.has("fixed")) {
      url = urls.get(0);
    }
    JmsConnectionFactory factory = new JmsConnectionFactory(url);
    JmsMessageIDBuilder generated = JmsMessageIDBuilder.BUILTIN.DEFAULT.createBuilder();
    JmsDefaultMessageIDPolicy ids = new JmsDefaultMessageIDPolicy();
    ids.setMessageIDBuilder((producer, sequence) ->
        MESSAGE_ID.get() == null ? generated.createMessageID(producer, sequence) : MESSAGE_ID.get());
    factory.setMessageIDPolicy(ids);
    if (r.has("user")) {
      factory.setUsername(text(r, "user"));
      factory.setPassword(text(r, "password"));
    }
    Client c = new Client();
    c.connection = factory.createConnection();
    try {
      if (r.has("client_id")) {
        c.connection.setClientID(text(r, "client_id"));
      }
      c.connection.start();
    } catch (JMSException e) {
      c.connection.close();
      throw e;
    }
    clients.put(text(r, "client"), c);
    return new JsonObject();
  }

  /** Returns the options of a TLS connection, with key stores created from the PEM files of the request. */
  private static String secure(JsonObject r) throws Exception {
    CertificateFactory certificates = CertificateFactory.getInstance("X.509");
    char[] password = "changeit".toCharArray();
    KeyStore trusted = KeyStore.getInstance("PKCS12");
    trusted.load(null, null);
    try (InputStream in = Files.newInputStream(Path.of(text(r, "tls")))) {
      trusted.setCertificateEntry("ca", certificates.generateCertificate(in));
    }
    String options = "transport.trustStoreLocation=" + store(trusted, password) + "&transport.trustStorePassword=changeit";
    if (!r.has("certificate")) {
      return options + "&transport.trustStoreType=PKCS12";
    }
    String pem = Files.readString(Path.of(text(r, "certificate")));
    int at = pem.indexOf("-----BEGIN PRIVATE KEY-----");
    String key = pem.substring(at).replaceAll("-----[A-Z ]+-----", "");
    KeyStore own = KeyStore.getInstance("PKCS12");
    own.load(null, null);
    own.setKeyEntry("own",
        KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(key))), password,
        new Certificate[] {certificates.generateCertificate(new ByteArrayInputStream(pem.substring(0, at).getBytes()))});
    return options + "&transport.keyStoreLocation=" + store(own, password)
        + "&transport.keyStorePassword=changeit&transport.storeType=PKCS12&amqp.saslMechanisms=EXTERNAL";
  }

  private static Path store(KeyStore store, char[] password) throws Exception {
    Path file = Files.createTempFile("lockstep-amqp", ".p12");
    file.toFile().deleteOnExit();
    try (OutputStream out = Files.newOutputStream(file)) {
      store.store(out, password);
    }
    return file;
  }

  private Destination destination(Client c, Session s, String name, String kind) throws JMSException {
    Destination temporary = c.temporary.get(name);
    if (temporary != null) {
      return temporary;
    }
    return "topic".equals(kind) ? s.createTopic(name) : s.createQueue(name);
  }

  private JsonElement send(Client c, Work w, JsonObject r) throws Exception {
    List<CompletableFuture<Void>> sent = new ArrayList<>();
    Destination to = destination(c, w.session, text(r, "to"), text(r, "kind"));
    boolean async = r.has("async") && r.get("async").getAsBoolean();
    for (JsonElement e : r.getAsJsonArray("messages")) {
      JsonObject m = e.getAsJsonObject();
      CompletableFuture<Void> done = new CompletableFuture<>();
      sent.add(done);
      try {
        w.producer.setDeliveryDelay(number(m, "delay_ms", 0));
        MESSAGE_ID.set(m.has("message_id") ? text(m, "message_id") : null);
        Message message = build(c, w.session, m);
        int priority = (int) number(m, "priority", 4);
        if (async) {
          w.producer.send(to, message, DeliveryMode.PERSISTENT, priority, number(m, "ttl_ms", 0), completes(done));
        } else {
          w.producer.send(to, message, DeliveryMode.PERSISTENT, priority, number(m, "ttl_ms", 0));
          done.complete(null);
        }
      } catch (JMSException x) {
        done.completeExceptionally(x);
      }
    }
    JsonArray results = new JsonArray();
    for (CompletableFuture<Void> done : sent) {
      JsonObject result = new JsonObject();
      try {
        done.get();
        result.addProperty("outcome", "accepted");
      } catch (ExecutionException x) {
        result.addProperty("outcome", "failed");
        result.addProperty("text", x.getCause().toString());
      }
      results.add(result);
    }
    JsonObject ok = new JsonObject();
    ok.add("results", results);
    return ok;
  }

  private static CompletionListener completes(CompletableFuture<Void> done) {
    return new CompletionListener() {
      @Override
      public void onCompletion(Message m) {
        done.complete(null);
      }

      @Override
      public void onException(Message m, Exception e) {
        done.completeExceptionally(e);
      }
    };
  }

  private Message build(Client c, Session s, JsonObject m) throws JMSException {
    TextMessage t = s.createTextMessage(text(m, "body"));
    if (m.has("correlation_id")) {
      t.setJMSCorrelationID(text(m, "correlation_id"));
    }
    if (m.has("subject")) {
      t.setJMSType(text(m, "subject"));
    }
    if (m.has("group")) {
      t.setStringProperty("JMSXGroupID", text(m, "group"));
    }
    if (m.has("reply_to")) {
      t.setJMSReplyTo(destination(c, s, text(m, "reply_to"), "queue"));
    }
    if (m.has("properties")) {
      for (Map.Entry<String, JsonElement> p : m.getAsJsonObject("properties").entrySet()) {
        t.setObjectProperty(p.getKey(), value(p.getValue().getAsJsonPrimitive()));
      }
    }
    return t;
  }

  private static Object value(JsonPrimitive p) {
    if (p.isBoolean()) {
      return p.getAsBoolean();
    }
    if (p.isString()) {
      return p.getAsString();
    }
    if (p.getAsString().matches("-?[0-9]+")) {
      return p.getAsLong();
    }
    return p.getAsDouble();
  }

  private JsonElement consume(Client c, Work w, JsonObject r) throws Exception {
    String selector = r.has("selector") ? text(r, "selector") : null;
    boolean noLocal = r.has("no_local") && r.get("no_local").getAsBoolean();
    boolean shared = r.has("shared") && r.get("shared").getAsBoolean();
    String durable = text(r, "durable");
    Destination from = destination(c, w.session, text(r, "from"), text(r, "kind"));
    Subscriber s = new Subscriber();
    if (!durable.isEmpty() && shared) {
      s.consumer = w.session.createSharedDurableConsumer((Topic) from, durable, selector);
    } else if (!durable.isEmpty()) {
      s.consumer = w.session.createDurableConsumer((Topic) from, durable, selector, noLocal);
    } else if (shared) {
      s.consumer = w.session.createSharedConsumer((Topic) from, text(r, "name"), selector);
    } else {
      s.consumer = w.session.createConsumer(from, selector, noLocal);
    }
    c.subscribers.put(text(r, "consumer"), s);
    return new JsonObject();
  }

  private JsonElement receive(Subscriber s, long timeoutMillis) throws Exception {
    JsonObject ok = new JsonObject();
    Message m = timeoutMillis == 0 ? s.consumer.receiveNoWait() : s.consumer.receive(timeoutMillis);
    if (m != null) {
      s.deliveries++;
      s.open.put(s.deliveries, m);
      ok.addProperty("delivery", s.deliveries);
      ok.add("message", describe(m));
    }
    return ok;
  }

  private JsonElement acknowledge(Subscriber s, JsonObject r) throws Exception {
    Message m = s.open.remove(r.get("delivery").getAsLong());
    m.setIntProperty(ACK_TYPE, ACK_TYPES.get(text(r, "how")));
    m.acknowledge();
    return new JsonObject();
  }

  private JsonElement browse(Work w, JsonObject r) throws Exception {
    Queue q = w.session.createQueue(text(r, "from"));
    JsonArray messages = new JsonArray();
    try (QueueBrowser b = w.session.createBrowser(q, r.has("selector") ? text(r, "selector") : null)) {
      for (Enumeration<?> e = b.getEnumeration(); e.hasMoreElements();) {
        messages.add(describe((Message) e.nextElement()));
      }
    }
    JsonObject ok = new JsonObject();
    ok.add("messages", messages);
    return ok;
  }

  private JsonElement temporary(Client c, Work w) throws Exception {
    Queue q = w.session.createTemporaryQueue();
    c.temporary.put(q.getQueueName(), q);
    JsonObject ok = new JsonObject();
    ok.addProperty("address", q.getQueueName());
    return ok;
  }

  private JsonObject describe(Message m) throws JMSException {
    JsonObject o = new JsonObject();
    if (m instanceof TextMessage) {
      o.addProperty("body", ((TextMessage) m).getText());
    } else if (m instanceof BytesMessage) {
      byte[] b = new byte[(int) ((BytesMessage) m).getBodyLength()];
      ((BytesMessage) m).readBytes(b);
      o.addProperty("body", new String(b, StandardCharsets.UTF_8));
    }
    o.addProperty("message_id", m.getJMSMessageID());
    o.addProperty("correlation_id", m.getJMSCorrelationID());
    o.addProperty("subject", m.getJMSType());
    o.addProperty("priority", m.getJMSPriority());
    o.addProperty("redelivered", m.getJMSRedelivered());
    Destination reply = m.getJMSReplyTo();
    if (reply instanceof Queue) {
      o.addProperty("reply_to", ((Queue) reply).getQueueName());
    }
    JsonObject properties = new JsonObject();
    for (Object name : Collections.list((Enumeration<?>) m.getPropertyNames())) {
      Object v = m.getObjectProperty((String) name);
      if ("JMSXGroupID".equals(name)) {
        o.addProperty("group", String.valueOf(v));
      } else if ("JMSXDeliveryCount".equals(name)) {
        o.addProperty("delivery_count", ((Number) v).intValue() - 1);
      } else if (!((String) name).startsWith("JMS")) {
        properties.add((String) name, gson.toJsonTree(v));
      }
    }
    o.add("properties", properties);
    return o;
  }

  private static String text(JsonObject o, String name) {
    JsonElement e = o.get(name);
    return e == null || e instanceof JsonNull ? "" : e.getAsString();
  }

  private static long number(JsonObject o, String name, long otherwise) {
    return o.has(name) ? o.get(name).getAsLong() : otherwise;
  }
}
