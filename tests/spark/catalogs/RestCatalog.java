import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/**
 * A REST catalog over another one, by Iceberg's own classes, as its RESTCatalogServer is, but on loopback alone and on a
 * free port, and prints its URL. Arguments: properties of the other catalog, NAME=VALUE.
 */
public class RestCatalog {
  public static void main(String[] arguments) throws Exception {
    Map<String, String> properties = new HashMap<>();
    for (String each : arguments) {
      String[] parts = each.split("=", 2);
      properties.put(parts[0], parts[1]);
    }
    var catalog = CatalogUtil.buildIcebergCatalog("backend", properties, new Configuration());
    var context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    var server = new Server(new InetSocketAddress("127.0.0.1", 0));
    server.setHandler(context);
    server.start();
    System.out.println("http://127.0.0.1:" + server.getURI().getPort());
    server.join();
  }
}
