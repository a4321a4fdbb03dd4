import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;

/** Prints each config that Kafka's broker knows, as NAME=TYPE=DEFAULT. */
public class BrokerDefaults {
    public static void main(String[] args) {
        for (ConfigDef.ConfigKey key : AbstractKafkaConfig.CONFIG_DEF.configKeys().values()) {
            Object value = key.hasDefault() ? key.defaultValue : null;
            System.out.println(key.name + "=" + key.type + "=" + ConfigDef.convertToString(value, key.type));
        }
    }
}
