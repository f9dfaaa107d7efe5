// SPDX-License-Identifier: Apache-2.0

import jakarta.jms.MessageProducer;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.springframework.jms.connection.CachingConnectionFactory;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.listener.DefaultMessageListenerContainer;
import org.springframework.jms.listener.SessionAwareMessageListener;

/**
 * A Spring application as in docs/reference/amqp.md: a listener moves messages from the queue spring.in to spring.out in transacted
 * sessions, and a JmsTemplate sends 50 messages to spring.sent. The argument is the URL. The program exits at the end of its input.
 */
public final class Spring {
  public static void main(String[] args) throws Exception {
    JmsConnectionFactory factory = new JmsConnectionFactory(args[0]);

    DefaultMessageListenerContainer listener = new DefaultMessageListenerContainer();
    listener.setConnectionFactory(factory);
    listener.setDestinationName("spring.in");
    listener.setSessionTransacted(true);
    listener.setRecoveryInterval(200);
    listener.setMessageListener((SessionAwareMessageListener<jakarta.jms.Message>) (message, session) -> {
      try (MessageProducer producer = session.createProducer(session.createQueue("spring.out"))) {
        producer.send(message);
      }
    });
    listener.afterPropertiesSet();
    listener.start();

    CachingConnectionFactory cached = new CachingConnectionFactory(factory);
    JmsTemplate template = new JmsTemplate(cached);
    for (int i = 0; i < 50; i++) {
      for (boolean sent = false; !sent; ) {
        try {
          template.convertAndSend("spring.sent", "s" + i);
          sent = true;
        } catch (org.springframework.jms.JmsException e) {
          System.err.println("spring: sent again: " + e);
        }
      }
      System.out.println("sent " + i);
      Thread.sleep(20);
    }
    while (System.in.read() >= 0) {
    }
    listener.shutdown();
    cached.destroy();
    System.exit(0);
  }
}
