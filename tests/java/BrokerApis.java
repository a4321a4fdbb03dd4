import org.apache.kafka.common.protocol.ApiKeys;

/** Prints each call that Kafka's brokers serve, as KEY NAME OLDEST NEWEST; of versions, those that are stable. */
public class BrokerApis {
    public static void main(String[] args) {
        for (ApiKeys api : ApiKeys.brokerApis()) {
            System.out.println(api.id + " " + api.name + " " + api.oldestVersion() + " " + api.latestVersion(false));
        }
    }
}
