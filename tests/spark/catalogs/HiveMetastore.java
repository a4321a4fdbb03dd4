import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore.HMSHandler;
import org.apache.hadoop.hive.metastore.RetryingHMSHandler;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/**
 * A Hive metastore by Hive's own classes, as its HiveMetaStore is, but on loopback alone and on a free port, and prints its
 * URL. Arguments: Hive's settings, NAME=VALUE.
 */
public class HiveMetastore {
  public static void main(String[] arguments) throws Exception {
    var settings = new HiveConf();
    for (String each : arguments) {
      String[] parts = each.split("=", 2);
      settings.set(parts[0], parts[1]);
    }
    TxnDbUtil.prepDb(settings); // of locks, which Iceberg commits under and DataNucleus makes no tables for
    var handler = RetryingHMSHandler.getProxy(settings, new HMSHandler("metastore", settings, false), true);
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", 0));
    var options = new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler));
    System.out.println("thrift://127.0.0.1:" + socket.getServerSocket().getLocalPort());
    new TThreadPoolServer(options).serve();
  }
}
