"""What to tell a producer that its own window limits: which of its settings to change (docs/tuning.md).

Pure. Promises to say nothing of a producer that larger batches would not help.
"""

from typing import Final

from agent.write_path.producer_window import ProducerWindow

_LARGE_BATCH_BYTES: Final = 131_072
"""From here on a window of a few batches is no narrow one."""
_SETTINGS: Final = {
    "apache-kafka-java": "batch.size=262144 and linger.ms=50",
    "librdkafka": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-python": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-go": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-javascript": "batch.size=1000000 and linger.ms=50",
    "confluent-kafka-dotnet": "BatchSize=1000000 and LingerMs=50",
    "kgo": "ProducerLinger(50ms) and ProducerBatchMaxBytes(1 MiB)",
    "kafka-python": "batch_size=262144 and linger_ms=50",
    "sarama": "Producer.Flush.Bytes=262144 and Producer.Flush.Frequency=50ms",
}
"""By the name that a library gives in ApiVersions (KIP-511)."""
_ANY: Final = "larger batches (256 KiB) and a linger of 50 ms"


def advice(window: ProducerWindow, software_name: str) -> str | None:
    """A sentence for people, if there is one to say."""
    if not window.is_steadily_limited or window.batch_bytes >= _LARGE_BATCH_BYTES:
        return None
    settings = _SETTINGS.get(software_name, _ANY)
    if window.widest == 1:
        return f"it waits for each answer before it sends again: let it send more at once, with {settings}"
    batch = f"{window.batch_bytes / 1024:.0f} KiB" if window.batch_bytes >= 1024 else f"{window.batch_bytes} bytes"
    return f"it is limited by its {window.widest} requests in flight, with batches of {batch}: set {settings}"
