import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A member by Apache Kafka's own client, of both protocols; `program.py` says what it is told and tells. */
public final class GroupMember {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final TreeSet<String> OWNED = new TreeSet<>();
    private static final Map<String, String> STRATEGIES = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
            "cooperative", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    public static void main(String[] arguments) throws Exception {
        Map<String, String> asked = new HashMap<>();
        for (int i = 1; i + 1 < arguments.length; i += 2) {
            asked.put(arguments[i].substring(2), arguments[i + 1]);
        }
        ConcurrentLinkedQueue<String> orders = new ConcurrentLinkedQueue<>();
        Thread reader = new Thread(() -> read(orders));
        reader.setDaemon(true);
        reader.start();
        try (var consumer = new KafkaConsumer<>(settings(asked), new StringDeserializer(), new StringDeserializer())) {
            subscribe(consumer, asked);
            while (run(consumer, orders)) {
            }
        }
        System.exit(0);
    }

    private static void subscribe(KafkaConsumer<String, String> consumer, Map<String, String> asked) {
        String topics = asked.get("topics");
        if (asked.containsKey("assign")) {
            List<TopicPartition> taken = IntStream.range(0, Integer.parseInt(asked.get("assign")))
                    .mapToObj(partition -> new TopicPartition(topics, partition)).toList();
            consumer.assign(taken);
            new Listener().onPartitionsAssigned(taken);
        } else if (!topics.startsWith("^")) {
            consumer.subscribe(List.of(topics.split(",")), new Listener());
        } else if ("consumer".equals(asked.get("protocol"))) {
            consumer.subscribe(new SubscriptionPattern(topics), new Listener());
        } else {
            consumer.subscribe(Pattern.compile(topics), new Listener());
        }
    }

    private static Properties settings(Map<String, String> asked) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", asked.get("servers"));
        settings.put("group.id", asked.get("group"));
        settings.put("client.id", asked.getOrDefault("client-id", "member"));
        settings.put("auto.offset.reset", asked.getOrDefault("reset", "earliest"));
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.interval.ms", asked.getOrDefault("max-poll-ms", "60000"));
        settings.put("metadata.max.age.ms", "2000");
        settings.put("fetch.max.wait.ms", "100");
        String protocol = asked.getOrDefault("protocol", "classic");
        settings.put("group.protocol", protocol);
        if (protocol.equals("classic")) {
            settings.put("partition.assignment.strategy", STRATEGIES.get(asked.getOrDefault("strategy", "range")));
            settings.put("session.timeout.ms", asked.getOrDefault("session-timeout-ms", "6000"));
            settings.put("heartbeat.interval.ms", asked.getOrDefault("heartbeat-ms", "500"));
        }
        if (asked.containsKey("instance")) {
            settings.put("group.instance.id", asked.get("instance"));
        }
        return settings;
    }

    private static boolean run(KafkaConsumer<String, String> consumer, ConcurrentLinkedQueue<String> orders) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
            tell("record", "\"topic\":\"" + record.topic() + "\",\"partition\":" + record.partition() + ",\"offset\":"
                    + record.offset() + ",\"value\":\"" + record.value() + "\"");
        }
        for (String order = orders.poll(); order != null; order = orders.poll()) {
            String[] words = order.split(" ");
            switch (words[0]) {
                case "commit" -> commit(consumer);
                case "seek" -> consumer.seek(
                        new TopicPartition(words[1], Integer.parseInt(words[2])), Long.parseLong(words[3]));
                default -> {
                    return false;
                }
            }
        }
        return true;
    }

    private static void commit(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        try {
            for (TopicPartition partition : consumer.assignment()) {
                positions.put(partition, new OffsetAndMetadata(consumer.position(partition)));
            }
            consumer.commitSync(positions);
            List<String> told = new ArrayList<>();
            positions.forEach((partition, at) -> {
                if (at.offset() > 0) {
                    told.add("[\"" + partition.topic() + "\"," + partition.partition() + "," + at.offset() + "]");
                }
            });
            tell("committed", "\"offsets\":[" + String.join(",", told) + "]");
        } catch (KafkaException refused) {
            tell("error", "\"message\":\"" + refused.getClass().getSimpleName() + "\"");
        }
    }

    private static void read(ConcurrentLinkedQueue<String> orders) {
        try (var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                orders.add(line.strip());
            }
        } catch (java.io.IOException ended) {
            // as good as its end
        }
        orders.add("leave");
    }

    private static synchronized void tell(String event, String values) {
        OUT.println("{\"event\":\"" + event + "\"," + values + "}");
    }

    private static TreeSet<String> places(Collection<TopicPartition> partitions) {
        return partitions.stream()
                .map(partition -> "[\"" + partition.topic() + "\"," + partition.partition() + "]")
                .collect(Collectors.toCollection(TreeSet::new));
    }

    private static final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> added) {
            OWNED.addAll(places(added));
            tell("assigned", "\"added\":" + places(added) + ",\"owned\":" + OWNED);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> removed) {
            OWNED.removeAll(places(removed));
            tell("revoked", "\"removed\":" + places(removed) + ",\"owned\":" + OWNED);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> removed) {
            OWNED.removeAll(places(removed));
            tell("lost", "\"removed\":" + places(removed) + ",\"owned\":" + OWNED);
        }
    }
}
