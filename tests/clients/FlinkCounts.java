import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.OffsetResetStrategy;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.core.config.Configurator;

/**
 * Flink counts the records of each key, from topic to topic, exactly once, until the process ends.
 *
 * <p>Arguments: bootstrap servers, name of the application (its group, and the prefix of its transactional ids),
 * input topic, output topic, naming strategy of transactions, after how many records a subtask fails once
 * (0: never), a file that makes the process end, and settings of Flink as {@code name=value}.
 *
 * <p>A record's value is its key, a space, and its number; the output adds a space and the count.
 */
public final class FlinkCounts {
    public static void main(String[] arguments) throws Exception {
        Configurator.setRootLevel(Level.WARN);
        // A sink's committer names its metrics again at each checkpoint.
        Configurator.setLevel("org.apache.flink.metrics", Level.ERROR);
        String servers = arguments[0], name = arguments[1];
        Configuration settings = new Configuration();
        for (int place = 7; place < arguments.length; place++) {
            String[] setting = arguments[place].split("=", 2);
            settings.setString(setting[0], setting[1]);
        }
        Properties transactions = new Properties();
        // Longer than the test: what nobody ends stays open, and readers of committed records wait for it.
        transactions.setProperty("transaction.timeout.ms", "600000");
        // The sink's administrator asks every broker for open transactions. It begins again when this is over, if
        // one of them was just killed.
        transactions.setProperty("default.api.timeout.ms", "10000");
        transactions.setProperty("request.timeout.ms", "10000");

        KafkaSource<String> source = KafkaSource.<String>builder()
                .setBootstrapServers(servers)
                .setGroupId(name)
                .setTopics(arguments[2])
                .setProperty("isolation.level", "read_committed")
                .setStartingOffsets(OffsetsInitializer.committedOffsets(OffsetResetStrategy.EARLIEST))
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .build();
        KafkaRecordSerializationSchema<String> byKey = KafkaRecordSerializationSchema.<String>builder()
                .setTopic(arguments[3])
                .setKeySerializationSchema(value -> keyOf(value).getBytes(StandardCharsets.UTF_8))
                .setValueSerializationSchema(new SimpleStringSchema())
                .build();
        KafkaSink<String> sink = KafkaSink.<String>builder()
                .setBootstrapServers(servers)
                .setRecordSerializer(byKey)
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                .setTransactionalIdPrefix(name)
                .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(arguments[4]))
                .setKafkaProducerConfig(transactions)
                .build();
        StreamExecutionEnvironment flink = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        flink.fromSource(source, WatermarkStrategy.noWatermarks(), "source").uid("source")
                .keyBy(FlinkCounts::keyOf)
                .process(new Counts(Integer.parseInt(arguments[5]), arguments[6])).uid("counts")
                .sinkTo(sink).uid("sink");
        flink.execute(name);
    }

    private static String keyOf(String value) {
        return value.substring(0, value.indexOf(' '));
    }

    /** Counts, and fails as asked. */
    private static final class Counts extends KeyedProcessFunction<String, String, String>
            implements CheckpointListener {
        private static final AtomicBoolean HAS_FAILED = new AtomicBoolean();
        private final int failAfter;
        private final String halt;
        private transient ValueState<Long> count;
        private transient int left;

        Counts(int failAfter, String halt) {
            this.failAfter = failAfter;
            this.halt = halt;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Long.class));
            int attempt = getRuntimeContext().getTaskInfo().getAttemptNumber();
            left = failAfter;
            System.out.println("attempt " + attempt);
        }

        @Override
        public void processElement(String value, Context context, Collector<String> results) throws Exception {
            if (failAfter > 0 && --left <= 0 && !HAS_FAILED.getAndSet(true)) {
                System.out.println("fails");
                throw new IllegalStateException("It fails as asked.");
            }
            long now = count.value() == null ? 1 : count.value() + 1;
            count.update(now);
            results.collect(value + " " + now);
        }

        /**
         * The operators of a task hear this from the first to the last, so the sink after this one has not yet
         * committed what it prepared for the checkpoint.
         */
        @Override
        public void notifyCheckpointComplete(long checkpoint) throws Exception {
            if (Files.exists(Path.of(halt))) {
                System.out.println("halts at checkpoint " + checkpoint);
                System.out.flush();
                Runtime.getRuntime().halt(3);
            }
        }
    }
}
