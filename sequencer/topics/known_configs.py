"""The topic configs that are accepted, with what each promises here, and those of Kafka that are refused,
with why.

Promises that an accepted value is one the log honours: either it changes what the log does, or what it asks
for is always so, and its documentation says which. Sources: Kafka's TopicConfig, its validators and
ServerTopicConfigSynonyms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from sequencer.topics.config_checks import Check, always, list_of, one_of, schema_text, share, whole_number
from storage.batches.record_batch import Compression

LARGEST_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Above the largest segment no batch fits; Kafka itself would allow 2 GiB."""
SMALLEST_SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""What an agent seals at by default: retention drops what one uploaded object holds of a partition as a
whole."""
SHORTEST_SEGMENT_MS: Final = 1000
_LONG: Final = 2**63 - 1
_INT: Final = 2**31 - 1
_HOUR_MS: Final = 60 * 60 * 1000

COMPRESSIONS: Final[Mapping[str, Compression | None]] = MappingProxyType(
    {
        "uncompressed": Compression.NONE,
        "zstd": Compression.ZSTD,
        "lz4": Compression.LZ4,
        "snappy": Compression.SNAPPY,
        "gzip": Compression.GZIP,
        "producer": None,
    }
)
"""What `compression.type` may say; None: batches stay as they were sent."""

ENCRYPTION: Final = "tidelog.encryption"
PRIORITY: Final = "tidelog.priority"

VALUE_FORMATS: Final = ("", "string", "json", "avro", "protobuf", "json-schema")
"""What `tidelog.value.format` and `tidelog.key.format` may say; empty: nothing."""

ConfigKind = Literal["int", "long", "list", "string", "boolean", "double"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """`broker_name` is what Kafka calls the default of this config among a broker's."""

    name: str
    kind: ConfigKind
    default: str
    broker_name: str
    documentation: str
    check: Check


def _long(name: str, default: int, minimum: int, broker_name: str, documentation: str) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind="long",
        default=str(default),
        broker_name=broker_name,
        documentation=documentation,
        check=whole_number(name, minimum, _LONG),
    )


def _int(
    name: str,
    default: int,
    minimum: int,
    broker_name: str,
    documentation: str,
    maximum: int = _INT,
    hint: str = "",
) -> ConfigDefinition:
    return ConfigDefinition(
        name=name,
        kind="int",
        default=str(default),
        broker_name=broker_name,
        documentation=documentation,
        check=whole_number(name, minimum, maximum, hint),
    )


_CHANGING: Final = (
    _long(
        "retention.ms", 7 * 24 * _HOUR_MS, -1, "log.retention.ms",
        "How long records are kept, by their own timestamps; -1 for ever. Says nothing where cleanup.policy "
        "does not have delete.",
    ),
    _long(
        "retention.bytes", -1, -1, "log.retention.bytes",
        "Bytes of a partition that are kept; -1 without limit. Says nothing where cleanup.policy does not "
        "have delete.",
    ),
    _int(
        "max.message.bytes", 1024 * 1024 + 12, 0, "message.max.bytes",
        "The largest record batch accepted, compressed as the client sent it.", LARGEST_MESSAGE_BYTES,
    ),
    ConfigDefinition(
        name="message.timestamp.type",
        kind="string",
        default="CreateTime",
        broker_name="log.message.timestamp.type",
        documentation="Whether a record carries its producer's time or that of the agent that took it.",
        check=one_of("message.timestamp.type", ("CreateTime", "LogAppendTime")),
    ),
    _long(
        "message.timestamp.before.max.ms", _LONG, 0, "log.message.timestamp.before.max.ms",
        "How far a producer's timestamp may lie behind the agent's clock; beyond it the record is "
        "refused. Says nothing where message.timestamp.type is LogAppendTime.",
    ),
    _long(
        "message.timestamp.after.max.ms", _HOUR_MS, 0, "log.message.timestamp.after.max.ms",
        "How far a producer's timestamp may lie ahead of the agent's clock; beyond it the record is "
        "refused. Says nothing where message.timestamp.type is LogAppendTime.",
    ),
    ConfigDefinition(
        name="tidelog.history",
        kind="string",
        default="table",
        broker_name="tidelog.history",
        documentation="table: compaction writes the topic's records to its Iceberg table, and from the "
        "first publish on retention keeps what is not there yet. log: the same, and what is in the table is "
        "dropped from uploaded objects after local.retention.ms and local.retention.bytes; consumers then "
        "read it from the table's Parquet files. off: compaction leaves the topic out, retention does "
        "not wait; what the table has stays there, and is still read there. Switched on again, compaction "
        "goes on with the oldest record still kept. The table of a topic that is compacted by key "
        "(cleanup.policy) has the last record of each key, without tombstones; log is refused.",
        check=one_of("tidelog.history", ("off", "table", "log")),
    ),
    ConfigDefinition(
        name=ENCRYPTION,
        kind="string",
        default="off",
        broker_name=ENCRYPTION,
        documentation="on: the records of batches that are written from then on are encrypted with a key of "
        "the topic (docs/encryption.md). off: new batches are not; encrypted ones stay so, and are read as "
        "before. Parquet files of a topic that once had records with a key are encrypted. The config can be "
        "set to off and not removed.",
        check=one_of(ENCRYPTION, ("on", "off")),
    ),
    ConfigDefinition(
        name=PRIORITY,
        kind="string",
        default="normal",
        broker_name=PRIORITY,
        documentation="bulk: in overload, writes and reads of the topic wait, so that others do not. "
        "interactive: a write that cannot be served soon fails with a retriable error instead of waiting "
        "(docs/overload.md). normal: neither.",
        check=one_of(PRIORITY, ("normal", "interactive", "bulk")),
    ),
    ConfigDefinition(
        name="remote.storage.enable",
        kind="boolean",
        default="false",
        broker_name="remote.log.storage.system.enable",
        documentation="true says the same as tidelog.history=log (KIP-405), unless tidelog.history is off. "
        "Refused with cleanup.policy=compact, as in Kafka.",
        check=one_of("remote.storage.enable", ("true", "false")),
    ),
    _long(
        "tidelog.history.retention.ms", -2, -2, "tidelog.history.retention.ms",
        "How long records are kept in the topic's Iceberg table, by their own timestamps. -2: as long as "
        "retention.ms; -1: for ever. Where the table is the log, or the topic is compacted by key, never "
        "less than retention.ms.",
    ),
    _long(
        "local.retention.ms", -2, -2, "log.local.retention.ms",
        "Where Parquet is the log: how long records that are in history are served from uploaded objects, by "
        "their own timestamps. -2: as long as retention.ms; -1: for ever.",
    ),
    _long(
        "local.retention.bytes", -2, -2, "log.local.retention.bytes",
        "Where Parquet is the log: bytes of a partition that are kept in uploaded objects. Older records "
        "that are in history are served from there. -2: as many as retention.bytes; -1: without limit.",
    ),
    _long(
        "tidelog.history.freshness.ms", 5 * 60 * 1000, 0, "tidelog.history.freshness.ms",
        ("How long after its commit a record is in the topic's Iceberg table, where `tidelog history run` "
            "works."),
    ),
    *(
        definition
        for side in ("value", "key")
        for definition in (
            ConfigDefinition(
                name=f"tidelog.{side}.format",
                kind="string",
                default="",
                broker_name=f"tidelog.{side}.format",
                documentation=f"What a record's {side} is: string, json, avro, protobuf or json-schema (the "
                "last three in Confluent's wire format). Its fields become columns of the topic's Iceberg "
                "table, for records that are compacted from then on. Empty: the table has its bytes alone.",
                check=one_of(f"tidelog.{side}.format", VALUE_FORMATS),
            ),
            ConfigDefinition(
                name=f"tidelog.{side}.schema",
                kind="string",
                default="",
                broker_name=f"tidelog.{side}.schema",
                documentation=f"The schema of all {side}s, instead of those of a schema registry: a JSON "
                "Schema, an Avro schema, or of Protobuf a FileDescriptorSet in base64, of which the last "
                "file counts. Says nothing without a format, or with string.",
                check=schema_text(f"tidelog.{side}.schema"),
            ),
        )
    ),
    ConfigDefinition(
        name="cleanup.policy",
        kind="list",
        default="delete",
        broker_name="log.cleanup.policy",
        documentation="delete: retention.ms and retention.bytes drop old records. compact: of each key the "
        "last record is kept, and every record needs a key. compact,delete: both. Empty: neither, all "
        "records are kept. The Iceberg table of a compacted topic has the last record of each key, and "
        "compaction goes no further than the table; tidelog.history=log and remote.storage.enable=true are "
        "refused. Without delete in the list, DeleteRecords is refused.",
        check=list_of("cleanup.policy", ("delete", "compact")),
    ),
    ConfigDefinition(
        name="compression.type",
        kind="string",
        default="producer",
        broker_name="compression.type",
        documentation="The compression that batches are kept in; producer: as they were sent. Any other "
        "recompresses "
        "what comes differently before it is kept, which costs the agent CPU.",
        check=one_of("compression.type", tuple(COMPRESSIONS)),
    ),
)  # fmt: skip

_ALWAYS_SO: Final = (
    _int(
        "min.insync.replicas", 1, 1, "min.insync.replicas",
        "Always met: an acknowledged record is in the object store, which replicates by itself, and never "
        "in fewer copies. Any acks but 0 waits for that.",
    ),
    ConfigDefinition(
        name="unclean.leader.election.enable",
        kind="boolean",
        default="false",
        broker_name="unclean.leader.election.enable",
        documentation=("Always false: no agent holds records that another does not, so that none can be "
            "lost with it."),
        check=always("unclean.leader.election.enable", "false", "No acknowledged record is ever given up."),
    ),
    ConfigDefinition(
        name="preallocate",
        kind="boolean",
        default="false",
        broker_name="log.preallocate",
        documentation="Always false: there are no files to allocate.",
        check=always("preallocate", "false", "There are no files to allocate."),
    ),
    _int(
        "segment.bytes", 1024 * 1024 * 1024, SMALLEST_SEGMENT_BYTES, "log.segment.bytes",
        "Always met: an uploaded object is sealed at TIDELOG_SEGMENT_SIZE_BYTES (8 MiB unless set), for "
        "all topics "
        "together, so that retention never works on coarser pieces than this.",
        hint=", for an uploaded object may be as large as 8 MiB",
    ),
    _long(
        "segment.ms", 7 * 24 * _HOUR_MS, SHORTEST_SEGMENT_MS, "log.roll.ms",
        "Always met: an uploaded object takes batches for TIDELOG_LINGER_MS (250 unless set), and what is "
        "merged later spans no more than this and a tenth of retention.ms.",
    ),
    _long(
        "segment.jitter.ms", 0, 0, "log.roll.jitter.ms",
        "Always met: the most that may be taken off segment.ms, and nothing is.",
    ),
    _long(
        "flush.messages", _LONG, 1, "log.flush.interval.messages",
        "Always met: every record is in the store before it is acknowledged.",
    ),
    _long(
        "flush.ms", _LONG, 0, "log.flush.interval.ms",
        "Always met: every record is in the store before it is acknowledged.",
    ),
)  # fmt: skip

_OF_COMPACTED_TOPICS: Final = (
    _long(
        "delete.retention.ms", 24 * _HOUR_MS, 0, "log.cleaner.delete.retention.ms",
        "In a compacted topic: how long a tombstone, a record with a key and no value, is kept after "
        "compaction has first passed it. A reader that starts at the beginning and takes no longer than this "
        "sees every deletion.",
    ),
    _long(
        "min.compaction.lag.ms", 0, 0, "log.cleaner.min.compaction.lag.ms",
        "In a compacted topic: how long a record stays before compaction may drop it for a later one of its "
        "key. At most max.compaction.lag.ms.",
    ),
    _long(
        "max.compaction.lag.ms", _LONG, 1, "log.cleaner.max.compaction.lag.ms",
        "In a compacted topic: how long a record may wait for compaction, whatever "
        "min.cleanable.dirty.ratio says. At least min.compaction.lag.ms.",
    ),
    ConfigDefinition(
        name="min.cleanable.dirty.ratio",
        kind="double",
        default="0.5",
        broker_name="log.cleaner.min.cleanable.ratio",
        documentation="In a compacted topic: the share of a partition's bytes that compaction has not seen "
        "yet, from which on it is compacted.",
        check=share("min.cleanable.dirty.ratio"),
    ),
)  # fmt: skip

KNOWN_CONFIGS: Final[Mapping[str, ConfigDefinition]] = MappingProxyType(
    {definition.name: definition for definition in (*_CHANGING, *_ALWAYS_SO, *_OF_COMPACTED_TOPICS)}
)

_TIERING: Final = "tidelog.history=off stops it, and what is in history stays readable"
_LEVEL: Final = (
    "what compression.type asks for is done at the codec's own level: a producer can choose another"
)
_INDEX: Final = "there are no index files"
_REPLICATION: Final = "agents do not copy records to one another, the object store replicates"

REFUSED_CONFIGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "remote.log.copy.disable": _TIERING,
        "remote.log.delete.on.disable": _TIERING,
        "compression.gzip.level": _LEVEL,
        "compression.lz4.level": _LEVEL,
        "compression.zstd.level": _LEVEL,
        "segment.index.bytes": _INDEX,
        "index.interval.bytes": _INDEX,
        "file.delete.delay.ms": "the grace period of garbage is a setting of the cluster, not of a topic",
        "leader.replication.throttled.replicas": _REPLICATION,
        "follower.replication.throttled.replicas": _REPLICATION,
    }
)
"""Configs of Kafka's topics whose promise could not be kept."""
