"""The settings of the read path: each is an option and an environment variable `TIDELOG_<NAME>`.

Promise: every bound of this folder is named here.
"""

from pydantic import Field

from storage.settings import Settings


class ReadPathSettings(Settings):
    coordinate_poll_s: float = Field(default=0.1, gt=0)
    """The pause between two polls of the sequencer for the partitions read here. A poll repairs a missed
    push.
    """
    coordinate_poll_heard_s: float = Field(default=0.4, gt=0)
    """The same for a partition whose commits this agent makes or hears of by pushes, until one is missed. A
    value above TIDELOG_COORDINATE_FRESHNESS_S saves nothing more, because readers then ask.
    """
    coordinate_poll_partitions: int = Field(default=2000, ge=1)
    """Partitions in one statement of the poll."""
    coordinate_timeout_s: float = Field(default=5.0, gt=0)
    """The longest wait for coordinates. After it the answer is a retriable error."""
    coordinate_freshness_s: float = Field(default=1.0, ge=0)
    """If a reader is at the known end of a partition that was not polled for so long, the agent asks at
    once.
    """
    coordinate_max_age_s: float = Field(default=60.0, gt=0)
    """Coordinates older than this are asked for again. Must stay below half the garbage grace period."""
    coordinate_read_runs: int = Field(default=512, ge=1)
    """Runs asked for at once per partition."""
    coordinate_answer_runs: int = Field(default=2048, ge=1)
    """Runs asked for at once over all partitions of a fetch, but at least a few of each. The event loop reads
    200 of them in a millisecond.
    """
    coordinate_cache_runs: int = Field(default=100_000, ge=1)
    """Runs (and partitions) kept in the coordinate cache, at most 482 bytes each."""
    coordinate_cache_runs_per_partition: int = Field(default=4096, ge=1)
    """Runs kept per partition, the latest ones."""
    coordinate_runs_ahead: int = Field(default=256, ge=0)
    """Pushed runs beyond a gap that are kept aside per partition while the agent asks for the gap."""
    coordinate_history_windows: int = Field(default=16, ge=1)
    """Pieces of history per partition whose coordinates are kept. A reader in the middle of it needs two of
    them.
    """
    recent_reader_s: float = Field(default=10.0, gt=0)
    """How long after its last fetch a partition is still polled and subscribed to."""
    read_partitions: int = Field(default=100_000, ge=1)
    """Partitions that may be polled and subscribed to."""

    fetch_max_bytes: int = Field(default=57_671_680, ge=1)
    """The most that a fetch returns, whatever it asks for, except one batch that is larger (Kafka's
    fetch.max.bytes).
    """
    fetch_max_runs: int = Field(default=1024, ge=1)
    """Runs loaded for one fetch."""
    fetch_max_wait_s: float = Field(default=120.0, gt=0)
    """The longest that a fetch waits, whatever it asks for."""
    fetch_answer_bytes: int = Field(default=100_663_296, ge=1)
    """Bytes of fetch answers in memory, from being loaded until they are sent. Past it fetches wait for their
    turn.
    """
    bulk_answer_bytes: int = Field(default=8_388_608, ge=1)
    """Bytes of answers to bulk in memory, among TIDELOG_FETCH_ANSWER_BYTES, and the most that one of them
    has, except one batch that is larger. It also bounds what is loaded for bulk at once.
    """
    fetch_answer_wait_s: float = Field(default=2.0, gt=0)
    """How long a fetch waits for its turn. After that it is answered without records."""
    catch_up_read_ahead_bytes: int = Field(default=33_554_432, ge=0)
    """Pages of history loaded ahead of readers that go through it in order, and not read yet, of all readers
    together. Never more than half of TIDELOG_CATCH_UP_CACHE_BYTES. 0: none.
    """
    catch_up_reader_ahead_bytes: int = Field(default=16_777_216, ge=0)
    """The same for one connection. Many connections share the above evenly."""
    catch_up_read_ahead_pages: int = Field(default=2_048, ge=1)
    """Pages loaded ahead and not read yet, of all readers together, however small they are."""
    catch_up_reader_ahead_pages: int = Field(default=512, ge=1)
    """The same for one connection."""
    catch_up_read_ahead_loads: int = Field(default=32, ge=1)
    """Pages being loaded ahead at once. The rest of TIDELOG_S3_CONNECTIONS is for pages that readers wait
    for.
    """
    time_lookups: int = Field(default=16, ge=1)
    """Partitions looked up by time at once per ListOffsets request."""
    time_lookup_bytes: int = Field(default=8_388_608, ge=1)
    """Bytes of runs in memory for look-ups by time, of all requests. Past it connections take turns. A larger
    run goes alone.
    """
    time_lookup_timeout_s: float = Field(default=30.0, gt=0)
    """The longest that a ListOffsets request looks times up, whatever timeout it names."""
