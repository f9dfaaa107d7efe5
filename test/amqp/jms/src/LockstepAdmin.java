// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Hashtable;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import javax.naming.Context;
import javax.naming.InitialContext;
import javax.naming.NamingException;
import javax.naming.spi.InitialContextFactory;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.JmsQueue;
import org.apache.qpid.jms.JmsTopic;
import org.objectweb.jtests.jms.admin.Admin;

/**
 * The administrator for Joram's tests. The parent process creates queues and topics. A request is a line on standard output with
 * "admin", the operation and the name. The response is a line on standard input with "ok" or the error.
 */
public final class LockstepAdmin implements Admin {
  private static final Map<String, Object> BOUND = new ConcurrentHashMap<>();
  private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

  /** Returns a context that looks up the objects bound here. */
  public static final class Factory implements InitialContextFactory {
    @Override
    public Context getInitialContext(Hashtable<?, ?> environment) {
      return (Context) java.lang.reflect.Proxy.newProxyInstance(Factory.class.getClassLoader(), new Class<?>[] {Context.class},
          (proxy, method, args) -> {
            if (!"lookup".equals(method.getName())) {
              return null;
            }
            Object found = BOUND.get(String.valueOf(args[0]));
            if (found == null) {
              throw new NamingException("nothing is bound to " + args[0]);
            }
            return found;
          });
    }
  }

  private static void ask(String operation, String name) {
    synchronized (IN) {
      System.out.println("admin\t" + operation + "\t" + name);
      try {
        String answer = IN.readLine();
        if (!"ok".equals(answer)) {
          throw new IllegalStateException(operation + " " + name + ": " + answer);
        }
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
  }

  @Override
  public String getName() {
    return "lockstep";
  }

  @Override
  public Context createContext() throws NamingException {
    Hashtable<String, String> environment = new Hashtable<>();
    environment.put(Context.INITIAL_CONTEXT_FACTORY, Factory.class.getName());
    return new InitialContext(environment);
  }

  @Override
  public void createConnectionFactory(String name) {
    BOUND.put(name, new JmsConnectionFactory(System.getProperty("joram.url")));
  }

  @Override
  public void createQueueConnectionFactory(String name) {
    createConnectionFactory(name);
  }

  @Override
  public void createTopicConnectionFactory(String name) {
    createConnectionFactory(name);
  }

  @Override
  public void createQueue(String name) {
    ask("create-queue", name);
    BOUND.put(name, new JmsQueue(name));
  }

  @Override
  public void createTopic(String name) {
    ask("create-topic", name);
    BOUND.put(name, new JmsTopic(name));
  }

  @Override
  public void deleteQueue(String name) {
    BOUND.remove(name);
    ask("delete-queue", name);
  }

  @Override
  public void deleteTopic(String name) {
    BOUND.remove(name);
    ask("delete-topic", name);
  }

  @Override
  public void deleteConnectionFactory(String name) {
    BOUND.remove(name);
  }

  @Override
  public void deleteQueueConnectionFactory(String name) {
    BOUND.remove(name);
  }

  @Override
  public void deleteTopicConnectionFactory(String name) {
    BOUND.remove(name);
  }

  @Override
  public void startServer() {}

  @Override
  public void stopServer() {}

  @Override
  public void start() {}

  @Override
  public void stop() {}
}
