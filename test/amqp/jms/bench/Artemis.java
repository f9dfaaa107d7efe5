// SPDX-License-Identifier: Apache-2.0

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.activemq.artemis.core.server.ActiveMQServer;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

/**
 * A broker of a replicated Artemis pair with the default durability: it syncs its journal, and confirms a write when the backup has
 * stored it.
 */
public final class Artemis {
  /** Usage: Artemis primary|backup|single DIRECTORY AMQP-PORT CLUSTER-PORT OTHER-CLUSTER-PORT. Prints "ready". */
  public static void main(String[] args) throws Exception {
    String role = args[0];
    Path dir = Path.of(args[1], role).toAbsolutePath();
    Files.createDirectories(dir);
    Path file = dir.resolve("broker.xml");
    Files.writeString(file, configuration(role, dir, args[2], args[3], args[4]));
    EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
    broker.setConfigResourcePath(file.toUri().toString());
    broker.start();
    ActiveMQServer server = broker.getActiveMQServer();
    if (role.equals("primary")) {
      while (!server.isReplicaSync()) {
        Thread.sleep(100);
      }
    } else if (role.equals("single")) {
      while (!server.isActive()) {
        Thread.sleep(100);
      }
    }
    System.out.println("ready, journal " + server.getConfiguration().getJournalType());
    Thread.currentThread().join(); // until killed
  }

  private static String configuration(String role, Path dir, String amqp, String cluster, String other) {
    String ha = role.equals("single") ? "" : String.join("\n",
        "<connectors>",
        "  <connector name=\"self\">tcp://127.0.0.1:" + cluster + "</connector>",
        "  <connector name=\"other\">tcp://127.0.0.1:" + other + "</connector>",
        "</connectors>",
        "<cluster-user>pair</cluster-user><cluster-password>pair</cluster-password>",
        "<ha-policy><replication>" + (role.equals("primary") ? "<primary/>" : "<backup/>") + "</replication></ha-policy>",
        "<cluster-connections><cluster-connection name=\"pair\"><connector-ref>self</connector-ref>",
        "  <static-connectors><connector-ref>other</connector-ref></static-connectors>",
        "</cluster-connection></cluster-connections>");
    return String.join("\n",
        "<configuration xmlns=\"urn:activemq\"><core xmlns=\"urn:activemq:core\">",
        "<name>" + role + "</name>",
        "<persistence-enabled>true</persistence-enabled>",
        "<security-enabled>false</security-enabled>",
        "<journal-type>ASYNCIO</journal-type>",
        "<bindings-directory>" + dir + File.separator + "bindings</bindings-directory>",
        "<journal-directory>" + dir + File.separator + "journal</journal-directory>",
        "<large-messages-directory>" + dir + File.separator + "large</large-messages-directory>",
        "<paging-directory>" + dir + File.separator + "paging</paging-directory>",
        "<max-disk-usage>100</max-disk-usage>",
        ha,
        "<acceptors>",
        "  <acceptor name=\"cluster\">tcp://127.0.0.1:" + cluster + "?protocols=CORE</acceptor>",
        "  <acceptor name=\"amqp\">tcp://127.0.0.1:" + amqp + "?protocols=AMQP;amqpCredits=1000;amqpLowCredits=300</acceptor>",
        "</acceptors>",
        "<address-settings><address-setting match=\"#\">",
        "  <auto-create-queues>true</auto-create-queues><auto-create-addresses>true</auto-create-addresses>",
        "  <auto-delete-queues>false</auto-delete-queues><auto-delete-addresses>false</auto-delete-addresses>",
        "</address-setting></address-settings>",
        "</core></configuration>");
  }
}
