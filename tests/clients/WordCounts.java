import java.io.PrintStream;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.StateRestoreListener;

/**
 * Kafka Streams on the words of a topic, until the process is killed.
 *
 *   WordCounts SENTENCES COUNTS NUMBERS WINDOWS WINDOW_MS [property=value ...]
 *
 * A sentence is a number and words. The words go through a repartition topic into three stores, each with a changelog and an output:
 *   COUNTS   word -> how often it was there
 *   NUMBERS  word -> the numbers of its sentences, bit by bit, in hexadecimal; the same sentence again changes nothing
 *   WINDOWS  word@start -> how often it was there in the window
 *
 * Prints a line per event: "state NAME", "restored CHANGELOG PARTITION RECORDS", "standby CHANGELOG PARTITION RECORDS".
 */
public final class WordCounts {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        for (int i = 5; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        KafkaStreams streams = new KafkaStreams(
                topology(arguments, Duration.ofMillis(Long.parseLong(arguments[4]))).build(), properties);
        streams.setStateListener((now, before) -> out.println("state " + now));
        streams.setGlobalStateRestoreListener(new Restores(out));
        streams.setStandbyUpdateListener(new Standbys(out));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
    }

    private static StreamsBuilder topology(String[] topics, Duration window) {
        StreamsBuilder builder = new StreamsBuilder();
        KGroupedStream<String, String> words = builder
                .stream(topics[0], Consumed.with(Serdes.String(), Serdes.String()))
                .flatMap((key, sentence) -> byWord(sentence))
                .groupByKey(Grouped.with("words", Serdes.String(), Serdes.String()));
        words.count(Materialized.as("counts"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(topics[1], Produced.with(Serdes.String(), Serdes.String()));
        words.windowedBy(TimeWindows.ofSizeAndGrace(window, Duration.ofHours(1)))
                .count(Materialized.as("windows"))
                .toStream((word, count) -> word.key() + "@" + word.window().start())
                .mapValues(count -> Long.toString(count))
                .to(topics[3], Produced.with(Serdes.String(), Serdes.String()));
        words.aggregate(() -> "0", (word, number, seen) -> withBit(seen, Integer.parseInt(number)), Materialized.as("numbers"))
                .toStream()
                .to(topics[2], Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }

    private static List<KeyValue<String, String>> byWord(String sentence) {
        String[] parts = sentence.split(" ");
        List<KeyValue<String, String>> words = new ArrayList<>();
        for (int i = 1; i < parts.length; i++) {
            words.add(KeyValue.pair(parts[i], parts[0]));
        }
        return words;
    }

    private static String withBit(String hexadecimal, int bit) {
        return new BigInteger(hexadecimal, 16).setBit(bit).toString(16);
    }

    private record Restores(PrintStream out) implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition changelog, String store, long start, long end) {}

        @Override
        public void onBatchRestored(TopicPartition changelog, String store, long end, long records) {}

        @Override
        public void onRestoreEnd(TopicPartition changelog, String store, long records) {
            out.println("restored " + changelog.topic() + " " + changelog.partition() + " " + records);
        }
    }

    private record Standbys(PrintStream out) implements StandbyUpdateListener {
        @Override
        public void onUpdateStart(TopicPartition changelog, String store, long start) {}

        @Override
        public void onBatchLoaded(TopicPartition changelog, String store, org.apache.kafka.streams.processor.TaskId task,
                long batchEnd, long records, long end) {
            out.println("standby " + changelog.topic() + " " + changelog.partition() + " " + records);
        }

        @Override
        public void onUpdateSuspended(TopicPartition changelog, String store, long offset, long end, SuspendReason reason) {}
    }
}
