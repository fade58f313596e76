import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * An idempotent producer that sends 0, 1, 2, ... at a steady pace, each to the partition that is its rest, until its input ends.
 *
 *   SteadyProducer TOPIC PARTITIONS RECORDS_PER_S [property=value ...]
 *
 * For each record acknowledged a line: number, partition, offset; for one given up "!", the number and the error; "end" when all are answered.
 */
public final class SteadyProducer {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        String topic = arguments[0];
        int partitions = Integer.parseInt(arguments[1]);
        long pauseNs = 1_000_000_000L / Integer.parseInt(arguments[2]);
        Properties properties = new Properties();
        properties.put("enable.idempotence", "true");
        properties.put("max.in.flight.requests.per.connection", "5");
        properties.put("linger.ms", "2");
        properties.put("batch.size", "200");
        for (int i = 3; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        AtomicBoolean stopping = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                }
            } catch (java.io.IOException ended) {
                // as good an end as any
            }
            stopping.set(true);
        });
        input.setDaemon(true);
        input.start();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            long next = System.nanoTime();
            for (long number = 0; !stopping.get(); number++) {
                long sent = number;
                ProducerRecord<String, String> record =
                    new ProducerRecord<>(topic, (int) (number % partitions), null, Long.toString(number));
                producer.send(record, (metadata, error) -> {
                    if (error == null) {
                        out.println(sent + " " + metadata.partition() + " " + metadata.offset());
                    } else {
                        out.println("! " + sent + " " + error);
                    }
                });
                next += pauseNs;
                long leftMs = (next - System.nanoTime()) / 1_000_000;
                if (leftMs > 0) {
                    Thread.sleep(leftMs);
                }
            }
            producer.flush();
        }
        out.println("end");
    }
}
