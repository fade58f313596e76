"""Spark's data source, by PySpark's interfaces: what a reader or writer does at each call.

A reader's driver asks an agent for coordinates; its executors read the bucket. A stream's offset names the
end of a micro-batch, its start, and the ids of the topics:
`{"offsets": {"orders": {"0": 12}}, "from": {"orders": {"0": 10}}, "ids": {"orders": "..."}}`. The start is
there for a first micro-batch that is run again after a restart: it begins where it began.

Spark 4.1 tells a Python source neither its trigger nor a limit. So the reader itself keeps
`maxOffsetsPerTrigger`, from the last end that Spark planned or committed.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from spark_source.agents import Agents, Piece, TopicEnds
from spark_source.options import (
    COLUMNS,
    EARLIEST,
    LATEST,
    InvalidOption,
    Offsets,
    ReadOptions,
    chosen_columns,
    read_options,
)
from spark_source.planning import (
    Asked,
    DataLoss,
    PartitionOf,
    PlannedRead,
    ReadContext,
    heed_loss,
    missing,
    next_ends,
    plan_reads,
    wanted,
)
from spark_source.pushed_filters import narrowed
from spark_source.settings import SourceSettings
from spark_source.topic_keys import SourceKeys
from storage.identifiers import TopicId

log = logging.getLogger("tidelog")

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class TidelogSource(DataSource):
    """What Spark finds by the name `tidelog`. A subclass says where settings come from."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def settings(self) -> SourceSettings:
        raise NotImplementedError

    def schema(self) -> str:
        columns = chosen_columns(self.options)
        return ", ".join(f"`{name}` {COLUMNS[name]}" for name in columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(dict(self.options), streaming=False)
        context = _context(self.settings(), options, schema)
        return (FilteringReader if takes_filters() else Reader)(context, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        options = read_options(dict(self.options), streaming=True)
        return StreamReader(_context(self.settings(), options, schema), options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_source.sink import Writer, write_context  # readers need no Kafka client

        return Writer(write_context(self.settings(), _appending(self.options, overwrite), schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - PySpark's
        from spark_source.sink import StreamWriter, write_context

        return StreamWriter(write_context(self.settings(), _appending(self.options, overwrite), schema))


def _appending(options: Mapping[str, str], overwrite: bool) -> dict[str, str]:
    if overwrite:
        raise InvalidOption("a log cannot be overwritten: use mode append")
    return dict(options)


def takes_filters() -> bool:
    """Spark refuses a reader that takes filters where the session does not push them."""
    return _PUSHDOWN_WORKER in sys.modules or _is_main(_PUSHDOWN_WORKER)


def _is_main(module: str) -> bool:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == module


def _context(settings: SourceSettings, options: ReadOptions, schema: StructType) -> ReadContext:
    """Raises InvalidOption for a schema that is no choice of the columns."""
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType.simpleString():
            known = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise InvalidOption(f"schema: {field.name} {field.dataType.simpleString()} is none of {known}")
    return ReadContext(
        settings=settings,
        columns=tuple(field.name for field in schema.fields),
        window=options.window,
        fail_on_data_loss=options.fail_on_data_loss,
    )


class ReadPartition(InputPartition):
    def __init__(self, task: PlannedRead) -> None:
        super().__init__(task)


class Reader(DataSourceReader):
    """A batch query. It reads what there is when it is planned."""

    def __init__(self, context: ReadContext, options: ReadOptions) -> None:
        self.context = context
        self._options = options
        self._keys = SourceKeys(context.settings)

    def partitions(self) -> Sequence[InputPartition]:
        agents = Agents(self.context.settings)
        topics = {topic: agents.topic(topic) for topic in self._options.topics}
        asked = [
            one
            for topic, ends in topics.items()
            for one in self._asked(topic, ends)
            if self.context.window.has_partition(one.partition)
        ]
        return _planned(agents, self.context, asked, topics, self._keys, self._options.min_partitions)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _rows(self.context, partition)

    def _asked(self, topic: str, ends: TopicEnds) -> Iterator[Asked]:
        options, window = self._options, self.context.window
        _check_partitions(topic, ends, options)
        for partition, own in sorted(ends.partitions.items()):
            start, is_strict = _start(options.starting_offsets, topic, partition)
            end = _end(options.ending_offsets, topic, partition, own.end_offset)
            first = max(own.first_offset if start == EARLIEST else start, window.from_offset)
            last = end if window.to_offset is None else min(end, window.to_offset)
            yield Asked(
                topic=topic,
                partition=partition,
                first_offset=first,
                end_offset=last,
                is_strict=is_strict and first == start and last == end,
            )


class FilteringReader(Reader):
    """With `spark.sql.python.filterPushdown.enabled`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - PySpark's name
        window, left = narrowed(self.context.window, filters)
        context = self.context
        self.context = ReadContext(
            settings=context.settings,
            columns=context.columns,
            window=window,
            fail_on_data_loss=context.fail_on_data_loss,
        )
        return left


class StreamReader(DataSourceStreamReader):
    """One per query and start of it, in a process of its own that lives as long as the query."""

    def __init__(self, context: ReadContext, options: ReadOptions) -> None:
        self.context = context
        self._options = options
        self._seen: dict[str, Any] | None = None
        self._initial: dict[str, Any] | None = None
        self._keys = SourceKeys(context.settings)
        if options.max_offsets_per_trigger is not None:
            log.warning(
                "tidelog: maxOffsetsPerTrigger is set. With trigger(availableNow=True) Spark 4.1 makes one "
                "micro-batch of a Python source, so the query ends after that many offsets."
            )

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        if self._seen is not None:
            return {"offsets": self._seen["from"], "from": self._seen["from"], "ids": self._seen["ids"]}
        return self._began(None)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        found = self._topics()
        start = self._seen if self._seen is not None else self._began(found)
        self._check_topics(start, found)
        starts, ends = _flat(start["offsets"]), self._ends(found)
        for key in ends:
            starts.setdefault(key, 0)  # the partition was added since
        planned = next_ends(starts, ends, self._options.max_offsets_per_trigger)
        if planned == _flat(start["offsets"]):
            return start
        return {"offsets": _nested(planned), "from": _nested(starts), "ids": start["ids"]}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Spark also calls this when it starts again, with the last end that it has logged as both."""
        self._seen = end
        starts = _flat(start["offsets"])
        asked = [
            Asked(
                topic=topic,
                partition=partition,
                first_offset=starts.get((topic, partition), 0),
                end_offset=last,
                is_strict=(topic, partition) in starts,
            )
            for (topic, partition), last in sorted(_flat(end["offsets"]).items())
            if last > starts.get((topic, partition), 0)
        ]
        if not asked:
            return []
        topics = self._topics()
        self._check_topics(end, topics)
        agents = Agents(self.context.settings)
        return _planned(agents, self.context, asked, topics, self._keys, self._options.min_partitions)

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        return _rows(self.context, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch of which Spark needed no rows is committed without being planned."""
        seen = {} if self._seen is None else _flat(self._seen["offsets"])
        if any(last > seen.get(key, -1) for key, last in _flat(end["offsets"]).items()):
            self._seen = end

    def _topics(self) -> dict[str, TopicEnds]:
        agents = Agents(self.context.settings)
        return {topic: agents.topic(topic) for topic in self._options.topics}

    def _began(self, found: Mapping[str, TopicEnds] | None) -> dict[str, Any]:
        """Where a query without a checkpoint begins, decided once."""
        if self._initial is None:
            found = self._topics() if found is None else found
            offsets: dict[str, dict[str, int]] = {}
            for topic, ends in found.items():
                _check_partitions(topic, ends, self._options)
                offsets[topic] = {}
                for partition, own in sorted(ends.partitions.items()):
                    start, _ = _start(self._options.starting_offsets, topic, partition)
                    special = {EARLIEST: own.first_offset, LATEST: own.end_offset}
                    if self.context.window.has_partition(partition):
                        offsets[topic][str(partition)] = special.get(start, start)
            ids = {topic: ends.topic_id for topic, ends in found.items()}
            self._initial = {"offsets": offsets, "from": offsets, "ids": ids}
        return self._initial

    def _ends(self, found: Mapping[str, TopicEnds]) -> dict[PartitionOf, int]:
        return {
            (topic, partition): own.end_offset
            for topic, ends in found.items()
            for partition, own in ends.partitions.items()
            if self.context.window.has_partition(partition)
        }

    def _check_topics(self, offset: Mapping[str, Any], found: Mapping[str, TopicEnds]) -> None:
        """A topic that was deleted and created again has other records under the same offsets."""
        for topic, ends in found.items():
            if offset["ids"].get(topic, ends.topic_id) != ends.topic_id:
                raise DataLoss(
                    f"topic {topic!r} was deleted and created again since the checkpoint was written: start "
                    "the query with a new checkpoint"
                )


def _rows(context: ReadContext, partition: InputPartition | None) -> Iterator[Any]:
    from spark_source.reading import read_task  # the driver decodes nothing, and need not import it

    # Where nothing is planned, Spark reads a partition of its own, which is None.
    return iter(()) if partition is None else read_task(context, partition.value)


def _planned(
    agents: Agents,
    context: ReadContext,
    asked: Iterable[Asked],
    topics: Mapping[str, TopicEnds],
    source_keys: SourceKeys,
    min_partitions: int,
) -> Sequence[InputPartition]:
    """Raises DataLoss, and ValueError for more coordinates than `source_max_pieces`."""
    settings = context.settings
    found: dict[PartitionOf, list[Piece]] = {}
    count = 0
    for one in asked:
        pieces: list[Piece] = []
        for piece in agents.pieces(one.topic, one.partition, one.first_offset, one.end_offset):
            count += 1 + len(piece.aborted)
            if count > settings.source_max_pieces:
                raise ValueError(
                    f"the query needs more than {settings.source_max_pieces} coordinates: raise "
                    "sourceMaxPieces, read fewer offsets at once, or compact the topic into history"
                )
            pieces.append(piece)
        heed_loss(missing(one, pieces, agents.partition), fail=context.fail_on_data_loss)
        found[one.topic, one.partition] = list(wanted(pieces, context.window))
    keyrings = {
        topic: source_keys.of_topic(
            topic,
            TopicId(UUID(ends.topic_id)),
            (piece.object_key for (name, _), pieces in found.items() if name == topic for piece in pieces),
        )
        for topic, ends in topics.items()
        if ends.may_be_encrypted
    }
    tasks = plan_reads(
        found, task_bytes=settings.source_task_bytes, min_partitions=min_partitions, keyrings=keyrings
    )
    return [ReadPartition(task) for task in tasks]


def _check_partitions(topic: str, ends: TopicEnds, options: ReadOptions) -> None:
    for name, offsets in (
        ("startingOffsets", options.starting_offsets),
        ("endingOffsets", options.ending_offsets),
    ):
        unknown = set(offsets.get(topic, {}) if isinstance(offsets, Mapping) else {}) - set(ends.partitions)
        if unknown:
            raise InvalidOption(f"{name}: topic {topic!r} has no partition {min(unknown)}")


def _start(offsets: Offsets | str, topic: str, partition: int) -> tuple[int, bool]:
    """The offset asked for, or EARLIEST or LATEST, and whether it must be there."""
    if not isinstance(offsets, Mapping):
        return (EARLIEST if offsets == "earliest" else LATEST), False
    start = offsets.get(topic, {}).get(partition, EARLIEST)
    return start, start >= 0


def _end(offsets: Offsets | str, topic: str, partition: int, latest: int) -> int:
    if not isinstance(offsets, Mapping):
        return latest
    end = offsets.get(topic, {}).get(partition, LATEST)
    return latest if end == LATEST else end


def _flat(offsets: Mapping[str, Mapping[str, int]]) -> dict[PartitionOf, int]:
    return {(topic, int(partition)): end for topic, own in offsets.items() for partition, end in own.items()}


def _nested(offsets: Mapping[PartitionOf, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), end in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = end
    return found
