import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Java client as a filter, so that a test in another language sees what it sends and what it reads.
 *
 * Lines have tab-separated fields; bytes are "-" for null and "=" with base64 otherwise; headers are comma-separated key:value.
 *   produce TOPIC [property=value ...]   in: partition, timestamp or "-", key, value, headers; out: offset or "!" and the error
 *   consume TOPIC,... [property=value ...]   assigns every partition and reads to the ends found at the start;
 *       out: topic, partition, offset, timestamp, timestamp type, key, value, headers
 *   transact TOPIC SOURCE GROUP [property=value ...]   in: one transaction a line: "commit" or "abort", the offset of the group
 *       in partition 0 of the source or "-", and partition:value of each record, with commas between
 *   times TOPIC TIMESTAMP,... [property=value ...]   out: timestamp, offset and timestamp found, or "-"; of partition 0
 */
public final class LogClient {
    private static final Duration DEADLINE = Duration.ofSeconds(45);

    public static void main(String[] arguments) throws Exception {
        int properties = Map.of("times", 3, "transact", 4).getOrDefault(arguments[0], 2);
        Properties settings = new Properties();
        for (int i = properties; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        switch (arguments[0]) {
            case "produce" -> produce(arguments[1], settings, out);
            case "consume" -> consume(arguments[1].split(","), settings, out);
            case "transact" -> transact(arguments[1], arguments[2], arguments[3], settings);
            case "times" -> times(arguments[1], arguments[2].split(","), settings, out);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        out.flush();
    }

    private static void produce(String topic, Properties settings, PrintStream out) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] fields = line.split("\t", -1);
                Long timestamp = fields[1].equals("-") ? null : Long.valueOf(fields[1]);
                sent.add(producer.send(new ProducerRecord<>(
                        topic, Integer.valueOf(fields[0]), timestamp, bytes(fields[2]), bytes(fields[3]), headers(fields[4]))));
            }
            producer.flush();
            for (Future<RecordMetadata> result : sent) {
                try {
                    out.println(result.get(DEADLINE.toSeconds(), TimeUnit.SECONDS).offset());
                } catch (ExecutionException refused) {
                    out.println("!" + refused.getCause().getClass().getSimpleName());
                }
            }
        }
    }

    private static void consume(String[] topics, Properties settings, PrintStream out) {
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : topics) {
                consumer.partitionsFor(topic).forEach(p -> partitions.add(new TopicPartition(p.topic(), p.partition())));
            }
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + DEADLINE.toNanos();
            while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("did not reach the ends " + ends + " in " + DEADLINE);
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    print(record, out);
                }
            }
        }
    }

    private static void transact(String topic, String source, String group, Properties settings) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String[] fields = line.split("\t", -1);
                producer.beginTransaction();
                for (String record : fields[2].split(",")) {
                    String[] parts = record.split(":", 2);
                    producer.send(new ProducerRecord<>(topic, Integer.valueOf(parts[0]), null, bytes(parts[1])));
                }
                producer.flush();
                if (!fields[1].equals("-")) {
                    var offset = new OffsetAndMetadata(Long.parseLong(fields[1]));
                    producer.sendOffsetsToTransaction(
                            Map.of(new TopicPartition(source, 0), offset), new ConsumerGroupMetadata(group));
                }
                if (fields[0].equals("commit")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
    }

    private static void print(ConsumerRecord<byte[], byte[]> record, PrintStream out) {
        List<String> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(text(header.key().getBytes(StandardCharsets.UTF_8)).substring(1) + ":" + text(header.value()));
        }
        out.println(String.join("\t", record.topic(), Integer.toString(record.partition()), Long.toString(record.offset()),
                Long.toString(record.timestamp()), record.timestampType().toString(), text(record.key()), text(record.value()),
                String.join(",", headers)));
    }

    private static void times(String topic, String[] timestamps, Properties settings, PrintStream out) {
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            for (String timestamp : timestamps) {
                Map<TopicPartition, Long> asked = new LinkedHashMap<>();
                asked.put(partition, Long.valueOf(timestamp));
                OffsetAndTimestamp found = consumer.offsetsForTimes(asked, DEADLINE).get(partition);
                out.println(timestamp + "\t" + (found == null ? "-" : found.offset() + "\t" + found.timestamp()));
            }
        }
    }

    private static byte[] bytes(String field) {
        return field.equals("-") ? null : Base64.getDecoder().decode(field.substring(1));
    }

    private static String text(byte[] field) {
        return field == null ? "-" : "=" + Base64.getEncoder().encodeToString(field);
    }

    private static Collection<Header> headers(String field) {
        List<Header> headers = new ArrayList<>();
        for (String header : field.isEmpty() ? new String[0] : field.split(",")) {
            String[] parts = header.split(":", 2);
            headers.add(new RecordHeader(new String(Base64.getDecoder().decode(parts[0]), StandardCharsets.UTF_8), bytes(parts[1])));
        }
        return headers;
    }
}
