import java.net.InetSocketAddress;
import org.apache.hadoop.hive.metastore.HMSHandler;
import org.apache.hadoop.hive.metastore.HMSHandlerProxyFactory;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.tools.schematool.MetastoreSchemaTool;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** A metastore of Hive 4, as HiveMetastore.java is one of Hive 2.3, with the tables that Hive's schematool makes. */
public class Hive4Metastore {
  public static void main(String[] arguments) throws Exception {
    for (String each : arguments) {
      String[] parts = each.split("=", 2);
      System.setProperty(parts[0], parts[1]); // where MetastoreConf looks
    }
    var settings = MetastoreConf.newMetastoreConf();
    var out = System.out;
    System.setOut(System.err); // the tool tells what it does
    if (new MetastoreSchemaTool().run(new String[] {"-dbType", "derby", "-initSchema"}) != 0) {
      System.exit(1);
    }
    var handler = HMSHandlerProxyFactory.getProxy(settings, new HMSHandler("metastore", settings), true);
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", 0));
    var options = new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler));
    out.println("thrift://127.0.0.1:" + socket.getServerSocket().getLocalPort());
    new TThreadPoolServer(options).serve();
  }
}
