import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The Java client logs in by one mechanism after another, in one process: its start costs more than its logins.
 *
 * A line of input has tab-separated fields: topic, count, milliseconds after each record, and property=value of the clients.
 * The answer is "=" and the values that were produced and then read, with commas between, or "!" and the error's class and
 * message. Other lines of the output are the client's log.
 */
public final class ClientLogins {
    private static final Duration DEADLINE = Duration.ofSeconds(45);

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split("\t")));
        }
    }

    private static String answer(String[] fields) throws InterruptedException {
        Properties settings = new Properties();
        for (int i = 3; i < fields.length; i++) {
            String[] setting = fields[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        try {
            produce(fields[0], Integer.parseInt(fields[1]), Integer.parseInt(fields[2]), settings);
            return "=" + String.join(",", consume(fields[0], Integer.parseInt(fields[1]), settings));
        } catch (ExecutionException failure) {
            return "!" + failure.getCause().toString().replace('\n', ' ');
        } catch (RuntimeException failure) {
            return "!" + failure.toString().replace('\n', ' ');
        }
    }

    private static void produce(String topic, int count, int everyMs, Properties settings)
            throws ExecutionException, InterruptedException {
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, String.valueOf(number))).get();
                Thread.sleep(everyMs);
            }
        }
    }

    private static List<String> consume(String topic, int count, Properties settings) {
        List<String> values = new ArrayList<>();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            List<TopicPartition> assigned = List.of(new TopicPartition(topic, 0));
            consumer.assign(assigned);
            consumer.seekToBeginning(assigned);
            long until = System.nanoTime() + DEADLINE.toNanos();
            while (values.size() < count && System.nanoTime() < until) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(record.value()));
            }
        }
        return values;
    }
}
