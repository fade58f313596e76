"""The settings of the ring, its caches and its peers: each is an option and an environment variable
`TIDELOG_<NAME>`.

Promise: every bound of this folder is named here.
"""

from typing import Self

from pydantic import Field, model_validator

from storage.settings import Settings


class CacheRingSettings(Settings):
    membership_lease_s: float = Field(default=10.0, gt=0)
    """How long other agents consider this one alive after its last renewal. It stops serving a little
    earlier.
    """
    membership_renew_s: float = Field(default=2.0, gt=0)
    """The pause between two renewals, and between two looks at the live agents."""
    membership_margin_s: float = Field(default=1.0, ge=0)
    """How much earlier an agent ends its own lease: the drift between its clock and the database's."""

    probe_every_s: float = Field(default=0.4, gt=0)
    """The pause between two probes of a peer that this agent watches."""
    probe_patience_s: float = Field(default=1.2, gt=0)
    """A peer that does not answer a probe for so long is suspected: clients are sent elsewhere, and its lease
    still counts.
    """
    probe_most_patience_s: float = Field(default=5.0, gt=0)
    """The longest such wait. It doubles each time a suspicion proves false."""
    probe_report_s: float = Field(default=2.0, gt=0)
    """How long this agent probes a peer that others report. Reports of a peer that answered are ignored for
    as long.
    """
    probe_reported: int = Field(default=64, ge=1)
    """Peers that this agent probes at a time because others report them. Further reports wait for
    `probe_report_s`.
    """
    probe_watched: int = Field(default=10, ge=0)
    """The most peers that this agent watches. 0: none, and a death is known when the lease ends."""
    probe_accepted_connections: int = Field(default=2_048, ge=1)
    """Connections accepted from agents that watch this one. Further ones are closed at once."""

    page_cache_bytes: int = Field(default=167_772_160, ge=0)
    """Bytes of pages of recent objects kept in memory: what this agent wrote, and what its zone's readers ask
    for.
    """
    peer_range_cache_bytes: int = Field(default=33_554_432, ge=0)
    """Bytes of ranges received from peers kept in memory."""
    run_index_batches: int = Field(default=400_000, ge=0)
    """Record batches whose places in their runs are remembered, at most 64 bytes each."""
    catch_up_cache_bytes: int = Field(default=92_274_688, ge=0)
    """Bytes of pages of older objects kept in memory. A separate cache, so that replaying history does not
    push out the tail.
    """
    row_group_cache_bytes: int = Field(default=50_331_648, ge=0)
    """Bytes of record batches kept in memory that were made of row groups of history files. Each reader of
    history needs about one row group.
    """
    row_group_load_bytes: int = Field(default=8_388_608, ge=1)
    """Bytes of row groups being read and made into record batches at once, as they are in their files."""
    row_group_threads: int = Field(default=1, ge=1)
    """Row groups that are decoded at once. One takes up to eight times TIDELOG_PARQUET_ROW_GROUP_BYTES of
    memory meanwhile.
    """
    tail_age_s: float = Field(default=10.0, gt=0)
    """An object older than this is read with the catch-up budget."""
    tail_load_bytes: int = Field(default=67_108_864, ge=1)
    """Bytes being loaded from the store at once for reads of the tail."""
    catch_up_load_bytes: int = Field(default=41_943_040, ge=1)
    """Bytes being loaded from the store at once for reads of history."""
    catch_up_yields_s: float = Field(default=1.0, ge=0)
    """How long after the last read or write of the tail history is loaded at a pace that leaves room for
    it.
    """
    page_load_timeout_s: float = Field(default=70.0, gt=0)
    """The longest wait for a page, including its wait for the load budget."""

    peer_connections: int = Field(default=8, ge=1)
    """Page connections to each peer for reads of the tail. Further requests go to the store."""
    peer_history_connections: int = Field(default=4, ge=1)
    """Page connections to each peer for reads of history. Further requests go to the store."""
    peer_unproven_connections: int = Field(default=256, ge=1)
    """Connections on the peer port that have not yet proven that they belong to the cluster. One more closes
    the oldest of them.
    """
    peer_proof_timeout_s: float = Field(default=2.0, gt=0)
    """How long a connection on the peer port may take to prove that it belongs to the cluster."""
    peer_accepted_connections: int = Field(default=512, ge=1)
    """Connections accepted from peers. Further ones are closed at once."""
    peer_response_bytes: int = Field(default=50_331_648, ge=1)
    """Bytes being served to peers at once. Past it a peer is sent to the store."""
    peer_answer_floor_s: float = Field(default=0.1, gt=0)
    """The shortest time that a peer has to answer, however fast the store is."""
    peer_answer_ceiling_s: float = Field(default=1.0, gt=0)
    """The longest time that a peer has to answer, however slow the store is."""
    peer_load_timeout_s: float = Field(default=5.0, gt=0)
    """How long to wait for a peer that answered that it is loading the page."""
    peer_skip_s: float = Field(default=3.0, ge=0)
    """How long a peer that did not answer, or answered with nonsense, is skipped."""
    peer_idle_s: float = Field(default=60.0, gt=0)
    """A peer's connection without a request for this long is closed by its receiver."""
    max_page_bytes: int = Field(default=134_217_728, ge=1)
    """A larger segment is loaded in pages of `history_page_bytes`, all others whole."""
    history_page_bytes: int = Field(default=4_194_304, ge=65_536)
    """The size of a page of a merged segment. Must be the same for all agents of a zone, otherwise pages are
    loaded twice.
    """

    subscription_lease_s: float = Field(default=10.0, gt=0)
    """How long a subscription for pushed coordinates lasts unless it is renewed. It is renewed at a third of
    it.
    """
    max_subscriptions: int = Field(default=100_000, ge=1)
    """Subscriptions (partition and peer) kept for others. Further ones are refused: only the poll serves
    them.
    """
    push_buffer_bytes: int = Field(default=1_048_576, ge=1)
    """Bytes of pushed coordinates that wait for a slow peer. Past it they are dropped, and the peer's poll
    repairs that.
    """
    push_buffers_bytes: int = Field(default=16_777_216, ge=1)
    """The same for all slow peers together."""

    @model_validator(mode="after")
    def _leases_fit(self) -> Self:
        if self.membership_renew_s + self.membership_margin_s >= self.membership_lease_s:
            raise ValueError(
                f"TIDELOG_MEMBERSHIP_LEASE_S ({self.membership_lease_s}) must be longer than "
                "TIDELOG_MEMBERSHIP_RENEW_S and TIDELOG_MEMBERSHIP_MARGIN_S together "
                f"({self.membership_renew_s} + {self.membership_margin_s})"
            )
        if self.probe_patience_s > self.probe_most_patience_s:
            raise ValueError("TIDELOG_PROBE_PATIENCE_S must not exceed TIDELOG_PROBE_MOST_PATIENCE_S")
        if self.peer_answer_floor_s > self.peer_answer_ceiling_s:
            raise ValueError("TIDELOG_PEER_ANSWER_FLOOR_S must not exceed TIDELOG_PEER_ANSWER_CEILING_S")
        return self
