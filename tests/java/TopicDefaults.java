import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints each topic config that Kafka's broker knows, as NAME=DEFAULT. */
public class TopicDefaults {
    public static void main(String[] args) {
        for (String name : LogConfig.nonInternalConfigNames()) {
            ConfigDef.ConfigKey key = LogConfig.configKeys().get(name);
            System.out.println(name + "=" + ConfigDef.convertToString(key.defaultValue, key.type));
        }
    }
}
