// SPDX-License-Identifier: Apache-2.0

import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import javax.jms.BytesMessage;
import javax.jms.CompletionListener;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.JMSException;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Session;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * A load of persistent messages through Qpid JMS, for any broker. It prints one line: messages per second produced (each producer
 * has a window of outstanding sends), messages per second consumed and acknowledged individually, and the 99th percentile of the
 * latency from a synchronous send to its receipt at a constant rate, in milliseconds.
 */
public final class Load {
  private static final int CLIENTS = 4;
  private static final int WINDOW = 256;
  private static final long WARM_UP = 2_000_000_000L;

  /** Usage: Load URL QUEUE BYTES SECONDS RATE. */
  public static void main(String[] args) throws Exception {
    JmsConnectionFactory factory = new JmsConnectionFactory(args[0]);
    String queue = args[1];
    byte[] body = new byte[Integer.parseInt(args[2])];
    Arrays.fill(body, (byte) 'x');
    long time = Long.parseLong(args[3]) * 1_000_000_000L;
    int rate = Integer.parseInt(args[4]);
    AtomicLong produced = new AtomicLong();
    double produce = produce(factory, queue, body, time, produced);
    double consume = consume(factory, queue, produced.get());
    double[] latency = latency(factory, queue + ".latency", body, time, rate);
    System.out.printf("%.0f %.0f %.3f %.3f%n", produce, consume, latency[0], latency[1]);
    System.exit(0);
  }

  private interface Work {
    void run(Connection c, long begin) throws Exception;
  }

  /** Runs work on CLIENTS connections in parallel. It begins when all connections are open, at the time begin. */
  private static void inParallel(JmsConnectionFactory factory, Work work) throws Exception {
    AtomicLong begin = new AtomicLong();
    CyclicBarrier connected = new CyclicBarrier(CLIENTS, () -> begin.set(System.nanoTime()));
    Thread[] threads = new Thread[CLIENTS];
    Throwable[] failure = new Throwable[1];
    for (int i = 0; i < CLIENTS; i++) {
      threads[i] = new Thread(() -> {
        try (Connection c = factory.createConnection()) {
          c.start();
          connected.await();
          work.run(c, begin.get());
        } catch (Throwable e) {
          failure[0] = e;
        }
      });
      threads[i].start();
    }
    for (Thread t : threads) {
      t.join();
    }
    if (failure[0] != null) {
      throw new IllegalStateException(failure[0]);
    }
  }

  private static double produce(JmsConnectionFactory factory, String queue, byte[] body, long time, AtomicLong all)
      throws Exception {
    AtomicLong counted = new AtomicLong();
    inParallel(factory, (c, connected) -> {
      long begin = connected + WARM_UP;
      Session s = c.createSession(false, Session.AUTO_ACKNOWLEDGE);
      MessageProducer p = s.createProducer(s.createQueue(queue));
      p.setDeliveryMode(DeliveryMode.PERSISTENT);
      Semaphore window = new Semaphore(WINDOW);
      Exception[] failed = new Exception[1];
      CompletionListener listener = new CompletionListener() {
        @Override
        public void onCompletion(Message m) {
          long now = System.nanoTime();
          if (now >= begin && now < begin + time) {
            counted.incrementAndGet();
          }
          all.incrementAndGet();
          window.release();
        }

        @Override
        public void onException(Message m, Exception e) {
          failed[0] = e;
          window.release();
        }
      };
      while (System.nanoTime() < begin + time) {
        window.acquire();
        p.send(message(s, body), listener);
      }
      window.acquire(WINDOW);
      if (failed[0] != null) {
        throw failed[0];
      }
    });
    return counted.get() * 1e9 / time;
  }

  private static BytesMessage message(Session s, byte[] body) throws JMSException {
    BytesMessage m = s.createBytesMessage();
    m.writeBytes(body);
    return m;
  }

  private static double consume(JmsConnectionFactory factory, String queue, long messages) throws Exception {
    AtomicLong left = new AtomicLong(messages);
    AtomicLong began = new AtomicLong();
    AtomicLong last = new AtomicLong();
    inParallel(factory, (c, begin) -> {
      began.set(begin);
      Session s = c.createSession(false, Session.AUTO_ACKNOWLEDGE);
      MessageConsumer k = s.createConsumer(s.createQueue(queue));
      while (left.get() > 0) {
        if (k.receive(500) != null) {
          left.decrementAndGet();
          last.set(System.nanoTime());
        }
        if (System.nanoTime() - begin > 120_000_000_000L) {
          throw new IllegalStateException(left.get() + " messages were not received within two minutes");
        }
      }
    });
    return messages * 1e9 / (last.get() - began.get());
  }

  private static double[] latency(JmsConnectionFactory factory, String queue, byte[] body, long time, int rate) throws Exception {
    int messages = (int) (time / 1_000_000_000L) * rate;
    double[] took = new double[messages];
    CountDownLatch got = new CountDownLatch(messages);
    try (Connection in = factory.createConnection(); Connection out = factory.createConnection()) {
      Session consuming = in.createSession(false, Session.AUTO_ACKNOWLEDGE);
      MessageConsumer k = consuming.createConsumer(consuming.createQueue(queue));
      k.setMessageListener(m -> {
        try {
          int n = m.getIntProperty("n");
          if (n >= 0) {
            took[n] = (System.nanoTime() - m.getLongProperty("at")) / 1e6;
            got.countDown();
          }
        } catch (JMSException e) {
          throw new IllegalStateException(e);
        }
      });
      in.start();
      Session producing = out.createSession(false, Session.AUTO_ACKNOWLEDGE);
      MessageProducer p = producing.createProducer(producing.createQueue(queue));
      long begin = System.nanoTime();
      for (int n = -rate; n < messages; n++) { // warm-up below 0
        long due = begin + (n + rate) * 1_000_000_000L / rate;
        while (System.nanoTime() < due) {
          Thread.sleep(0, 200_000);
        }
        BytesMessage m = message(producing, body);
        m.setIntProperty("n", n);
        m.setLongProperty("at", System.nanoTime());
        p.send(m);
      }
      got.await();
    }
    Arrays.sort(took);
    return new double[] {took[messages / 2], took[messages * 99 / 100]};
  }
}
