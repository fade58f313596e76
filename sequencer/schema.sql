-- The tables of Tidelog as they are now: who the cluster is, what topics there are, which object holds
-- which offsets, and who works on it. `functions/` has the stored functions, `first_rows.sql` what a new
-- database begins with. Developers change these files, and with the same change write a migration
-- (migrate.py).
--
-- Rules for all tables:
-- - No foreign keys between tables that commits write: their KEY SHARE locks deadlock with the commit's.
-- - Rows that change often are updated in place: fillfactor, and no index on a column that changes.
-- - Row locks are taken in one order: tenants, topics (with topic_changes and history_tables), sinks,
--   transactions by producer id, groups, segments by id, partitions by primary key, runs, producer_state,
--   transaction_partitions.
-- - A transaction that inserts, deletes or replaces runs, or moves log_start_offset, locks the partition's
--   row.
-- - A table of one row has the column `only_row`, which allows no second one.

-- --- the cluster

CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id text NOT NULL,                      -- 16 random bytes in URL-safe base64 without padding, as
                                                   -- Kafka writes it
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    store_id text,                                 -- the id in the store's identity object
                                                   -- (sequencer/cluster/store_identity.py);
                                                   -- null until an agent has started
    store_name text                                -- how the first agent reached the store, for messages
);

-- Whether this database owns the bucket (sequencer/cluster/ownership.py). The bucket holds the same epoch and
-- nonce in the object `<cluster>/ownership`.
CREATE TABLE ownership (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch bigint NOT NULL DEFAULT 0,               -- raised by every take-over; 0: never ratcheted
    nonces uuid[] NOT NULL DEFAULT '{}',           -- of this epoch, newest last: those that this database
                                                   -- wrote or was about to
    ratchets bigint NOT NULL DEFAULT 0,            -- that were confirmed
    ratchet_s double precision NOT NULL DEFAULT 60, -- the pause between two, as the last holder had it
    confirmed_at timestamptz,                      -- just before the put of the last confirmed nonce, by this
                                                   -- database's clock
    -- The Postgres that ratcheted last. A copy has another system identifier, database or start. What was
    -- confirmed before is void there.
    system_identifier bigint,
    database_oid bigint,
    timeline integer,
    postmaster_started_at timestamptz,
    watched text,                                  -- what a Postgres that has started since sees in the
                                                   -- bucket, before it writes
    watched_since timestamptz,
    lost_because text,                             -- a sentence for people; not null: agents do not serve,
                                                   -- merge or delete
    lost_at timestamptz
);

-- How often a client saw Postgres give up a commit's wait for its standby. All see such a commit, and
-- perhaps no standby has it. A reader of coordinates reads this number with them, and does not believe
-- them before a standby has confirmed a later write (sequencer/database/doubts.py).
CREATE TABLE doubts (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number bigint NOT NULL DEFAULT 0
);

-- With this secret agents prove to each other that they belong to the cluster
-- (cache_ring/peers/peer_proof.py). The commit journal does not hold it: a database that is rebuilt from the
-- bucket makes its own.
CREATE TABLE peer_secrets (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secrets bytea[] NOT NULL,                      -- newest first; two are valid while one is renewed. 244
                                                   -- random bits each
    renewed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE SEQUENCE node_ids AS integer START 1 CACHE 1;

CREATE TABLE agents (
    node_id integer PRIMARY KEY,                   -- never reused for another address
    incarnation bigint NOT NULL,                   -- raised by every join at this address; fences the one
                                                   -- before
    zone text NOT NULL,
    kafka_host text NOT NULL,
    kafka_port integer NOT NULL,
    peer_host text NOT NULL,
    peer_port integer NOT NULL,
    http_url text NOT NULL,
    listeners text NOT NULL DEFAULT '[]',          -- [name, host, port] of each Kafka listener, as JSON
    joined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    -- What other agents are shown of it. They ask only for what changed since they last looked. Renewals
    -- change neither column.
    shown bigint,                                  -- the incarnation that is shown; null: none
    change bigint NOT NULL DEFAULT 0,              -- number of the change that set it
    erased_to bigint NOT NULL DEFAULT 0,           -- the last erasures.number whose pages it has dropped
    UNIQUE (zone, kafka_host, kafka_port, peer_host, peer_port, http_url, listeners)
) WITH (fillfactor = 50);

CREATE TABLE agents_shown (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0,             -- number of the last change
    alive integer NOT NULL DEFAULT 0,
    looked_at timestamptz NOT NULL DEFAULT 'epoch' -- when leases were last compared with what is shown
) WITH (fillfactor = 50);

CREATE TABLE jobs (
    name text PRIMARY KEY,
    holder uuid,                                   -- who runs it now, until lease_until
    lease_until timestamptz,
    last_started_at timestamptz,
    last_success_at timestamptz,
    last_error text,
    progress text                                  -- where a bounded pass left off; null at its beginning
);

-- What the observer last measured (sequencer/housekeeping/observations.py). An older measurement never
-- replaces a newer one.
CREATE TABLE observation (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    observed_at timestamptz NOT NULL,
    seen jsonb NOT NULL
) WITH (fillfactor = 50);

-- How far tables are behind the log, as a history service last saw it (spark_compaction/service.py).
CREATE TABLE history_lag (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    observed_at timestamptz NOT NULL,
    topics bigint NOT NULL,                        -- whose tables lack records
    late_topics bigint NOT NULL,                   -- of those, behind by more than their freshness
    behind_s double precision NOT NULL,            -- the longest
    records bigint NOT NULL,                       -- that all tables lack
    raw_bytes bigint NOT NULL                      -- their bytes in the log, an estimate
) WITH (fillfactor = 50);

-- --- tenants (docs/tenants.md)

-- How often tenants were made, changed or deleted. Agents that see another number read them again. The row is
-- locked by each change, before rows of tenants.
CREATE TABLE tenant_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- What belongs to a tenant is named `<tenant>~<name>` in all tables (tenants/tenant_names.py). Who creates a
-- topic of a tenant, or adds partitions, locks its row, before topics.
CREATE TABLE tenants (
    name text COLLATE "C" PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    admins text[] NOT NULL DEFAULT '{}',           -- users of the tenant that may do everything in it
    limits jsonb NOT NULL DEFAULT '{}',            -- those that are set
    deleted_at timestamptz,                        -- the row stays: the commit journal sees rows that change,
                                                   -- not rows that go
    measured_at timestamptz NOT NULL DEFAULT 'epoch' -- when its stored bytes were last added up
);

-- The bill: what a tenant used on a day (UTC).
CREATE TABLE tenant_usage (
    day date,
    tenant text COLLATE "C",
    bytes_in bigint NOT NULL DEFAULT 0,            -- of its requests
    bytes_out bigint NOT NULL DEFAULT 0,           -- of the answers
    requests bigint NOT NULL DEFAULT 0,
    bytes_stored bigint,                           -- as last measured on that day; null: not measured
    PRIMARY KEY (day, tenant)
) WITH (fillfactor = 70);

-- The number of the last report that each agent's process added to the bill. A repeated report adds nothing.
CREATE TABLE tenant_reports (
    reporter uuid PRIMARY KEY,
    number bigint NOT NULL,
    reported_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- --- topics

CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name text NOT NULL,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    config jsonb NOT NULL DEFAULT '{}',            -- what was set; defaults are in the code
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz                         -- the name is free from then on; the row goes after its
                                                   -- partitions
);
CREATE UNIQUE INDEX topics_by_live_name ON topics (name) WHERE deleted_at IS NULL;
-- Engines that read tables may not tell upper and lower case apart.
CREATE INDEX topics_by_any_case ON topics (lower(name)) WHERE deleted_at IS NULL;
-- Names that collide in Kafka's metrics (topics.sql).
CREATE INDEX topics_colliding ON topics (translate(name, '.', '_')) WHERE deleted_at IS NULL;
-- By their bytes, the names of a tenant's topics lie between <tenant>~ and <tenant>DEL.
CREATE INDEX topics_of_tenants ON topics (name COLLATE "C") INCLUDE (partition_count)
    WHERE deleted_at IS NULL AND strpos(name, '~') > 0;
CREATE INDEX topics_deleted ON topics (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX topics_compacted ON topics (topic_id)
    WHERE strpos(config ->> 'cleanup.policy', 'compact') > 0 AND deleted_at IS NULL;

-- The keys that encrypt topics' records, themselves encrypted (sequencer/topics/topic_keys.py). Sealed
-- batches name key_id, which is random: a key that is made after another was lost is never taken for it. The
-- bucket has a copy of each, apart from the commit journal (storage/encryption/key_objects.py).
CREATE TABLE topic_keys (
    topic_id uuid NOT NULL,
    version integer NOT NULL CHECK (version > 0),  -- the highest encrypts, all decrypt
    key_id bigint NOT NULL CHECK (key_id > 0),
    wrapped_by text NOT NULL,                      -- the name of the key that encrypted this one
    wrapped bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, version)
);
CREATE UNIQUE INDEX topic_keys_by_id ON topic_keys (topic_id, key_id);

-- Copies of topics' keys that may be in the bucket and that no row of topic_keys has: of deleted topics, and
-- of keys that are being made. They are deleted, and once more when no late write can bring them back.
CREATE TABLE key_copies_to_delete (
    topic_id uuid NOT NULL,
    key_id bigint NOT NULL,
    deleted_at timestamptz,  -- the first time, or when the key was about to be made
    PRIMARY KEY (topic_id, key_id)
);

-- How often topics were made, changed or deleted (functions/count_topic_change.sql). An agent that sees
-- another number than before looks up what changed.
CREATE TABLE topic_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    changes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Which topics each counted change made, changed or deleted: an agent forgets those, and no others. The
-- counter's row is locked until its transaction ends, so numbers become visible in their order. Every
-- number has at least one row, so a reader can tell that rows it lacks are gone. The last thousand numbers
-- are kept.
CREATE TABLE changed_topics (
    change bigint,
    topic_id uuid,
    name text NOT NULL,
    PRIMARY KEY (change, topic_id)
);

-- --- the log

CREATE TABLE partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    state text NOT NULL DEFAULT 'live' CHECK (state IN ('live', 'deleting')),
    log_start_offset bigint NOT NULL DEFAULT 0,
    high_watermark bigint NOT NULL DEFAULT 0 CHECK (high_watermark >= log_start_offset),
    max_timestamp_ms bigint NOT NULL DEFAULT -1,   -- of all records ever committed; the running maximum of
                                                   -- the next run starts here
    size_bytes bigint NOT NULL DEFAULT 0,          -- of its runs
    local_start_offset bigint NOT NULL DEFAULT 0,  -- lower offsets may have no run: consumers read them from
                                                   -- history_files
    deleted_to bigint NOT NULL DEFAULT 0,          -- lower offsets were deleted by a request: they leave
                                                   -- history too
    coordinate_epoch bigint NOT NULL DEFAULT 0,    -- raised when coordinates that an agent may have cached
                                                   -- stop being true
    first_unstable_offset bigint,                  -- the least first offset of its open transactions; null:
                                                   -- there is none
    PRIMARY KEY (topic_id, partition)
-- Several writers of a row see each other's snapshots open, so what they replaced cannot be pruned at once:
-- room for it.
) WITH (fillfactor = 25);
-- Those whose log begins in history.
CREATE INDEX partitions_begun_in_history ON partitions (topic_id, partition)
    WHERE local_start_offset > log_start_offset;

CREATE TABLE segments (
    segment_id uuid PRIMARY KEY,
    object_key text NOT NULL,
    size_bytes bigint NOT NULL DEFAULT 0,          -- 0 until committed
    state text NOT NULL DEFAULT 'reserved' CHECK (state IN ('reserved', 'committed', 'doomed')),
    writer text NOT NULL,
    reserved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,              -- of the reservation
    committed_at timestamptz,
    outcome bigint[],                              -- what the commit answered
                                                   -- (functions/commit_segments.sql); a repeat gets it again
    unreferenced_since timestamptz,                -- first seen without runs, snapshots and holds; the grace
                                                   -- period starts here
    doomed_at timestamptz,
    tier smallint NOT NULL DEFAULT 0               -- how often its bytes were copied: 0 as uploaded, n by
                                                   -- merging objects of tier n - 1
) WITH (fillfactor = 80);
CREATE INDEX segments_reserved ON segments (lease_until) WHERE state = 'reserved';
CREATE INDEX segments_committed ON segments (committed_at) WHERE state = 'committed';
CREATE INDEX segments_unreferenced ON segments (unreferenced_since)
    WHERE state = 'committed' AND unreferenced_since IS NOT NULL;
CREATE INDEX segments_to_delete ON segments (coalesce(unreferenced_since, doomed_at)) WHERE state = 'doomed';

-- The first run of a time is found by halving (sql/coordinates.sql), without an index: every run of every
-- commit would pay for it.
CREATE TABLE runs (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    segment_id uuid NOT NULL,
    position bigint NOT NULL,                      -- first byte in the object
    length bigint NOT NULL CHECK (length > 0),     -- bytes
    format text NOT NULL DEFAULT 'batches' CHECK (format IN ('batches', 'marker')), -- marker: its segment's
                                                   -- key holds the bytes
    min_timestamp_ms bigint NOT NULL,
    max_timestamp_ms bigint NOT NULL,
    running_max_timestamp_ms bigint NOT NULL,      -- of this and all earlier runs of the partition, also of
                                                   -- those deleted since
    PRIMARY KEY (topic_id, partition, base_offset)
);
CREATE INDEX runs_by_segment ON runs (segment_id);

-- A job that reads a segment holds it: it is not doomed before the lease ends.
CREATE TABLE holds (
    segment_id uuid NOT NULL,
    job_id uuid NOT NULL,
    lease_until timestamptz NOT NULL,
    PRIMARY KEY (segment_id, job_id)
);
CREATE INDEX holds_by_job ON holds (job_id);
CREATE INDEX holds_by_lease ON holds (lease_until);

-- Offsets that were acknowledged once and that no object holds any more (recovery). The log keeps their
-- place: an empty batch spans each range, so consumers skip it. A row goes when retention has passed its
-- range, or with its topic.
CREATE TABLE gone_ranges (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    reason text NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, partition, base_offset)
);

-- --- producers

-- The last ten accepted batches, oldest first: five may be in flight at the agent that a partition moves
-- from, and five at the one that it moves to.
CREATE TABLE producer_state (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch integer NOT NULL,
    sequences bigint[] NOT NULL,                   -- base sequence * 2^31 + last sequence
    base_offsets bigint[] NOT NULL,                -- where they went
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    max_timestamps bigint[] NOT NULL,              -- what the first copy was answered with, for a duplicate
    PRIMARY KEY (topic_id, partition, producer_id)
) WITH (fillfactor = 50);

-- An id says when it was given out: milliseconds since 1970 * 2^10 + a count, always rising. With
-- `forgotten_before` it tells whether a producer can have had a state.
CREATE TABLE producer_ids (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_id bigint NOT NULL DEFAULT 0,
    -- every state that expiry removed was last written before it
    forgotten_before timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- --- transactions (docs/design/transactions.md)

-- A transaction is open while it has a row in transaction_partitions or transaction_groups. Who adds such a
-- row holds this one FOR SHARE. Who ends it holds it FOR NO KEY UPDATE.
CREATE TABLE transactions (
    transactional_id text COLLATE "C" PRIMARY KEY,
    producer_id bigint NOT NULL,
    producer_epoch integer NOT NULL,
    -- The producer had these before. It may repeat its last request with them. -1: none.
    last_producer_id bigint NOT NULL DEFAULT -1,
    last_producer_epoch integer NOT NULL DEFAULT -1,
    timeout_ms integer NOT NULL,
    ended text CHECK (ended IN ('commit', 'abort')), -- how the last one ended; null: none has
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX transactions_by_producer ON transactions (producer_id);

-- The partitions of open transactions. Who sets first_offset holds the partition's row, too.
CREATE TABLE transaction_partitions (
    producer_id bigint NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    first_offset bigint,                           -- of its records there; null: none yet
    expires_at timestamptz NOT NULL,               -- of the least one of a transaction on, it may be aborted
    PRIMARY KEY (producer_id, topic_id, partition)
) WITH (fillfactor = 70);
CREATE INDEX transaction_partitions_unstable ON transaction_partitions (topic_id, partition, first_offset)
    WHERE first_offset IS NOT NULL;
CREATE INDEX transaction_partitions_expiring ON transaction_partitions (expires_at);

-- The groups of open transactions.
CREATE TABLE transaction_groups (
    producer_id bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (producer_id, group_id)
);
CREATE INDEX transaction_groups_expiring ON transaction_groups (expires_at);

-- Offsets that are committed when their transaction is. Who writes here holds the group's row.
CREATE TABLE pending_offsets (
    producer_id bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,
    PRIMARY KEY (producer_id, group_id, topic_id, partition)
) WITH (fillfactor = 70);
CREATE INDEX pending_offsets_by_group ON pending_offsets (group_id, topic_id, partition);

-- Whose records consumers of committed data leave out. A row goes when no record of its transaction can be
-- read any more: a job deletes it once the log start has passed its marker, and a cleaning of a compacted
-- topic once it has removed its marker.
CREATE TABLE aborted_transactions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    last_offset bigint NOT NULL,                   -- of its marker
    first_offset bigint NOT NULL,                  -- of its records there
    producer_id bigint NOT NULL,
    stable_offset bigint NOT NULL,                 -- last stable offset after it: later rows begin there or
                                                   -- after
    PRIMARY KEY (topic_id, partition, last_offset)
);
CREATE INDEX aborted_transactions_by_producer
    ON aborted_transactions (topic_id, partition, producer_id, last_offset);

-- --- sinks (docs/design/transactions.md#several-as-one)

-- A sink commits the transactions of many producers as one batch. One run of one query has its name. Who
-- commits a batch holds this row before those of transactions.
CREATE TABLE sinks (
    sink_name text COLLATE "C" PRIMARY KEY,
    run_id text NOT NULL DEFAULT '',               -- the run that committed last
    id_prefix text NOT NULL DEFAULT '',            -- with which its transactional ids begin
    past_runs text[] NOT NULL DEFAULT '{}',        -- the 20 runs before it, the newest first
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- How far each streaming query has committed under a sink's name. Who writes here holds the sink's row.
CREATE TABLE sink_batches (
    sink_name text COLLATE "C" NOT NULL,
    query_id text COLLATE "C" NOT NULL,            -- of the query's checkpoint
    last_batch bigint NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink_name, query_id)
) WITH (fillfactor = 50);

-- --- merging

-- What may be merged next. It is separate from segments, so that finding it costs commits nothing. A row is
-- deleted when its segment was merged, or is not worth merging. A transaction that locks a row here locks
-- segments afterwards, never before.
CREATE TABLE merge_candidates (
    segment_id uuid PRIMARY KEY,
    tier smallint NOT NULL,
    committed_at timestamptz NOT NULL,             -- the segment's; outputs of one merge have it in common
    size_bytes bigint NOT NULL,
    claimed_by uuid                                -- a job; counts as long as it holds the segment (holds)
);
CREATE INDEX merge_candidates_ripe ON merge_candidates (tier, committed_at, segment_id)
    INCLUDE (size_bytes) WHERE claimed_by IS NULL;
CREATE INDEX merge_candidates_claimed ON merge_candidates (claimed_by)
    INCLUDE (segment_id) WHERE claimed_by IS NOT NULL;

-- What merging did, ever. bytes_out of tier 0 is what agents uploaded. The ratio of the others to it is the
-- write amplification.
CREATE TABLE merge_tiers (
    tier smallint PRIMARY KEY,
    merges bigint NOT NULL DEFAULT 0,
    objects_in bigint NOT NULL DEFAULT 0,
    objects_out bigint NOT NULL DEFAULT 0,
    bytes_in bigint NOT NULL DEFAULT 0,            -- of the runs that were replaced
    bytes_out bigint NOT NULL DEFAULT 0,           -- of the objects that were written
    runs_in bigint NOT NULL DEFAULT 0,
    runs_out bigint NOT NULL DEFAULT 0,
    swaps_refused bigint NOT NULL DEFAULT 0,       -- the partition had changed meanwhile
    runs_damaged bigint NOT NULL DEFAULT 0,        -- left as they are: missing or corrupt
    last_success_at timestamptz
) WITH (fillfactor = 50);

-- --- log compaction

-- How far the partitions of compacted topics are clean (docs/design/log-compaction.md). Without a row a
-- partition was never cleaned, which is always safe to believe.
CREATE TABLE cleanings (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    clean_to bigint NOT NULL DEFAULT 0,            -- of the records below, each is the last one of its key
    clean_bytes bigint NOT NULL DEFAULT 0,         -- of the log below it, once it was cleaned
    mark_offsets bigint[] NOT NULL DEFAULT '{}',   -- values that clean_to had, rising, or where damage began
    marks_ms bigint[] NOT NULL DEFAULT '{}',       -- since when: tombstones and markers below count from then
    oldest_tombstone bigint,                       -- or marker, below clean_to; null: there is none
    tombstones_gone_to bigint NOT NULL DEFAULT 0,  -- some below it may have gone
    due_at timestamptz,                            -- since when there may be something to clean; or null
    claimed_by uuid,                               -- a job that cleans it, until lease_until
    lease_until timestamptz,
    PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 50);
CREATE INDEX cleanings_due ON cleanings (due_at) WHERE due_at IS NOT NULL;

-- --- garbage

-- What the last look at the database found. A longer gap between two looks was an outage, or no housekeeper
-- ran. Agents could not commit meanwhile, so dooming pauses for a lease. Another system identifier or
-- timeline is a failover: a commit may have been lost with it.
CREATE TABLE dooming (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    last_seen_at timestamptz NOT NULL,
    paused_until timestamptz NOT NULL,
    pause_reason text NOT NULL CHECK (pause_reason IN ('start', 'outage', 'failover'))
);

-- Tombstones and outcomes go by whole partitions of their tables, never row by row. A partition takes what
-- comes within an interval of this database's clock. Only the housekeeper writes here, and makes the
-- partitions beforehand. If there is none, no row is moved, and its next step tries again. Commits write to
-- neither table. They read `outcomes` only when a commit is repeated and its segment's row is gone.
CREATE SEQUENCE time_partition_numbers AS bigint;

CREATE TABLE time_partitions (
    of_table text NOT NULL CHECK (of_table IN ('tombstones', 'outcomes')),
    number bigint NOT NULL,                        -- of the partition <of_table>_<number>
    begins_at timestamptz NOT NULL,
    ends_at timestamptz NOT NULL,
    row_count bigint NOT NULL DEFAULT 0,           -- each transaction that inserts rows adds them
    is_closed boolean NOT NULL DEFAULT false,      -- set under this row's lock, which inserts hold, too: no
                                                   -- row comes after it
    swept_to uuid,                                 -- up to this id the objects of its tombstones were deleted
                                                   -- again
    PRIMARY KEY (of_table, number)
) WITH (fillfactor = 50);

-- An object that was deleted and must be deleted once more, because an upload may arrive late. A segment's
-- row overrules its tombstone: `tidelog recover` may take a deleted object into use again.
CREATE TABLE tombstones (
    number bigint NOT NULL,
    segment_id uuid NOT NULL,
    object_key text NOT NULL
) PARTITION BY LIST (number);
CREATE INDEX tombstones_by_segment ON tombstones (segment_id);

-- What a commit answered whose segment's row is gone, for an agent that repeats the commit.
CREATE TABLE outcomes (
    number bigint NOT NULL,
    segment_id uuid NOT NULL,
    object_key text NOT NULL,
    outcome bigint[] NOT NULL
) PARTITION BY LIST (number);
CREATE INDEX outcomes_by_segment ON outcomes (segment_id);

-- What erasures changed for all (docs/design/erasure.md).
CREATE TABLE erasures (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    garbage_before timestamptz NOT NULL DEFAULT 'epoch', -- what was unreferenced before waits for readers,
                                                   -- and not for the restore horizon
    number bigint NOT NULL DEFAULT 0,              -- raised to make agents drop cached pages
    made_before timestamptz NOT NULL DEFAULT 'epoch' -- those of objects that were made before this time
) WITH (fillfactor = 50);

-- --- consumer groups

-- A group's row guards its members and its offsets: a writer of either locks it (FOR NO KEY UPDATE, several
-- in the order of group_id, ranking with topics). An offset commit locks the row and changes
-- nothing in it. Ids are compared as bytes (COLLATE "C"), as the client sorts them.

-- One sequence for all groups, so that no epoch is used twice: a coordinator that slept through the
-- deletion of its group does not match the group's next row.
CREATE SEQUENCE coordinator_epochs AS bigint START 1 CACHE 1;

CREATE TABLE groups (
    group_id text COLLATE "C" PRIMARY KEY,
    coordinator integer NOT NULL,                  -- node id of the agent that claimed it last
    coordinator_epoch bigint NOT NULL DEFAULT nextval('coordinator_epochs'), -- drawn by each claim: the fence
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- null until its coordinator has written it; it may have offsets already
    kind text CHECK (kind IN ('classic', 'consumer', 'streams')),
    generation integer NOT NULL DEFAULT 0,         -- the group epoch in the new protocol (KIP-848)
    state text NOT NULL DEFAULT 'Empty',           -- in Kafka's spelling, for listings
    protocol_type text NOT NULL DEFAULT '',        -- empty: no member ever joined, consumers without a group
                                                   -- commit offsets
    document json NOT NULL DEFAULT '{}',           -- the state machine's own. jsonb refuses the NUL that a
                                                   -- client may send
    empty_since timestamptz DEFAULT clock_timestamp() -- null while it has members
) WITH (fillfactor = 50);

CREATE TABLE group_members (
    group_id text COLLATE "C" NOT NULL,
    member_id text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,                        -- the member's in the new protocol, the generation in the
                                                   -- classic one
    document json NOT NULL,
    PRIMARY KEY (group_id, member_id)
) WITH (fillfactor = 70);

CREATE TABLE committed_offsets (
    group_id text COLLATE "C" NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,                       -- UTF-8; a client may write NUL, which text refuses
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, topic_id, partition)
) WITH (fillfactor = 50);

-- Configs that an administrator set; the group need not exist. What is not in `config` has its default. A
-- row whose configs were all taken back stays, empty: the commit journal sees rows that change, not rows
-- that go.
CREATE TABLE group_configs (
    group_id text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);

-- --- users

-- One row: how often credentials were changed, and the secret from which the answers about unknown users are
-- made (agent/security/sasl/scram.py).
CREATE TABLE security (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    credential_changes bigint NOT NULL DEFAULT 0,
    decoy_key bytea NOT NULL                       -- 244 random bits
);

-- What proves that a client knows a user's password (sequencer/security/credentials.py). A deleted credential
-- stays as a row without keys until agents have noticed. The commit journal has no copy of this table: who
-- may read the bucket must not be able to try passwords. After a recovery from the bucket alone, an operator
-- adds the users again.
CREATE TABLE user_credentials (
    user_name text NOT NULL,
    mechanism text NOT NULL CHECK (mechanism IN ('SCRAM-SHA-256', 'SCRAM-SHA-512')),
    change bigint NOT NULL,                        -- security.credential_changes of the last change
    salt bytea,                                    -- this and all below are null if it is deleted
    iterations integer,
    stored_key bytea,
    server_key bytea,
    PRIMARY KEY (user_name, mechanism),
    CHECK (num_nulls(salt, iterations, stored_key, server_key) IN (0, 4))
);
CREATE INDEX user_credentials_by_change ON user_credentials (change, user_name, mechanism);
CREATE INDEX user_credentials_by_tenant ON user_credentials (user_name COLLATE "C") WHERE salt IS NOT NULL;
-- --- security: who may do what

-- How often access control lists changed. Its row is locked by each change, before rows of acls.
CREATE TABLE acl_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version bigint NOT NULL DEFAULT 0,             -- of the last change
    forgotten bigint NOT NULL DEFAULT 0,           -- rows of ACLs that were removed up to here may be gone
    acls integer NOT NULL DEFAULT 0                -- how many there are now
) WITH (fillfactor = 50);

-- Access control lists. The numbers are those of Kafka's protocol. Agents read what changed since a version.
-- A removed ACL keeps its row for a thousand changes: agents and the commit journal see rows that change,
-- not rows that go.
CREATE TABLE acls (
    acl_key bytea PRIMARY KEY,                     -- a hash of all that identifies it (security/acl.py)
    resource_type smallint NOT NULL,
    pattern_type smallint NOT NULL,
    name text NOT NULL,
    principal text NOT NULL,
    host text NOT NULL,
    operation smallint NOT NULL,
    permission smallint NOT NULL,
    version bigint NOT NULL,                       -- of its last change
    is_removed boolean NOT NULL DEFAULT false
);
CREATE INDEX acls_by_version ON acls (version, acl_key);
CREATE INDEX acls_removed ON acls (version) WHERE is_removed;
-- A tenant's name and its ~ have 64 characters at most. The names may be longer than an index takes.
CREATE INDEX acls_by_tenant ON acls (left(name, 64) COLLATE "C") WHERE NOT is_removed;

-- How often client quotas changed. Its row is locked by each change, before rows of client_quotas.
CREATE TABLE quota_changes (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version bigint NOT NULL DEFAULT 0,             -- of the last change
    forgotten bigint NOT NULL DEFAULT 0            -- entities without quotas up to here may be gone
) WITH (fillfactor = 50);

-- Client quotas (KIP-546). Agents read what changed since a version. An entity without quotas keeps its row
-- for a thousand changes: agents and the commit journal see rows that change, not rows that go.
CREATE TABLE client_quotas (
    entity jsonb PRIMARY KEY,                      -- {"user": "a", "client-id": null}; null is the default
    quotas jsonb NOT NULL,                         -- {"producer_byte_rate": 1000}
    version bigint NOT NULL                        -- of its last change
);
CREATE INDEX client_quotas_by_version ON client_quotas (version, entity);

-- Which part of each quota in use an agent wants (agent/quotas/). Only that agent writes its rows.
-- Unlogged: after a failover it is empty, agents keep their shares and report again within seconds.
CREATE UNLOGGED TABLE quota_use (
    quota_key bytea NOT NULL,                      -- a hash of the quota's kind, user, client id and address
    node_id integer NOT NULL,
    wanted double precision NOT NULL,              -- a part of the quota, in [0, 1]
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (quota_key, node_id)
) WITH (fillfactor = 50);
CREATE INDEX quota_use_by_end ON quota_use (expires_at);

-- --- history: the Parquet form of a topic, an Iceberg table whose pointer is here

-- The Iceberg table of each topic that was ever compacted. From the first publish on, retention stays behind
-- what is compacted, unless the topic's history is off. All writers of one history lock its history_tables
-- row first, then segments, then history_partitions.
CREATE TABLE history_tables (
    topic_id uuid PRIMARY KEY,
    metadata_key text,                             -- of the current metadata JSON; null until the first
                                                   -- publish of a file
    version bigint NOT NULL DEFAULT 0,             -- raised by every publish of metadata, which must have
                                                   -- been staged on the current one
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    published_at timestamptz,                      -- null: nothing was published, and retention does not wait
    complete_at timestamptz,                       -- all that was committed before is in history
    waits text                                     -- why the topic's records cannot become columns; null:
                                                   -- they can, as far as the last job knew
);

CREATE TABLE history_partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    compacted_to bigint NOT NULL,                  -- lower offsets are in history, expired from it, or in
                                                   -- history_raw_ranges
    state_to bigint NOT NULL DEFAULT 0,            -- below it, history has the last record of each key alone
    tombstones_gone_to bigint NOT NULL DEFAULT 0,  -- as in cleanings, when that was begun; -1: not known
    PRIMARY KEY (topic_id, partition)
);

-- Ranges that would not decode: they stay raw, are counted, and do not block what follows.
CREATE TABLE history_raw_ranges (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= base_offset),
    reason text NOT NULL,
    found_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (topic_id, partition, base_offset)
);

-- A job reserves the prefix under which all that it writes lies. What it leaves behind is found by listing
-- that prefix. Jobs of different kinds may work on one topic at the same time; two of a kind may not.
CREATE TABLE history_jobs (
    job_id uuid PRIMARY KEY,
    topic_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('compact', 'expire', 'merge', 'erase')),
    prefix text NOT NULL,
    state text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'published', 'abandoned')),
    lease_until timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz
);
CREATE UNIQUE INDEX history_jobs_one_of_a_kind ON history_jobs (topic_id, kind) WHERE state = 'running';
CREATE INDEX history_jobs_ended ON history_jobs (ended_at) WHERE state <> 'running';

-- The data files of each table's current snapshot. A job plans from these rows and reads no manifest for it.
CREATE TABLE history_files (
    object_key text COLLATE "C" PRIMARY KEY,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL CHECK (last_offset >= first_offset),
    row_count bigint NOT NULL CHECK (row_count > 0),
    size_bytes bigint NOT NULL,
    is_full boolean NOT NULL,                      -- large enough: merging leaves it alone
    sequence_number bigint NOT NULL,               -- Iceberg's: of the snapshot that added the file
    written_at timestamptz NOT NULL,               -- stands in for the timestamp of records without one; kept
                                                   -- when a file is rewritten
    oldest timestamptz,                            -- the least timestamp; null: no record has one
    newest timestamptz,
    has_untimed boolean NOT NULL,                  -- some records have no timestamp
    begins_at timestamptz NOT NULL,                -- the time of the record that expires first
    ends_at timestamptz NOT NULL,                  -- the time of the record that expires last
    row_groups bigint[] NOT NULL                   -- four numbers per row group: first offset, position and
                                                   -- length in the object, greatest timestamp in ms (-1: no
                                                   -- record has one)
);
CREATE UNIQUE INDEX history_files_in_order ON history_files (topic_id, partition, first_offset);
CREATE INDEX history_files_small ON history_files (topic_id, partition, first_offset) WHERE NOT is_full;
CREATE INDEX history_files_by_beginning ON history_files (topic_id, begins_at);
CREATE INDEX history_files_by_end ON history_files (topic_id, ends_at);

-- Every object that a published metadata file named: data files, manifests, manifest lists and the metadata
-- files.
CREATE TABLE history_objects (
    object_key text COLLATE "C" PRIMARY KEY,       -- listed by prefix
    topic_id uuid NOT NULL,
    let_go_in bigint,                              -- the first version of the table that no longer names it;
                                                   -- null: the current one does
    unreferenced_since timestamptz,                -- no retained snapshot names it; deleted after a grace
                                                   -- period
    is_erased boolean NOT NULL DEFAULT false       -- it may hold erased records: readers outside get no
                                                   -- longer grace than the cluster's own
);
CREATE INDEX history_objects_by_topic ON history_objects (topic_id, object_key)
    WHERE unreferenced_since IS NULL;
CREATE INDEX history_objects_let_go ON history_objects (topic_id, let_go_in)
    WHERE let_go_in IS NOT NULL AND unreferenced_since IS NULL;
CREATE INDEX history_objects_unreferenced ON history_objects (unreferenced_since)
    WHERE unreferenced_since IS NOT NULL;
CREATE INDEX history_objects_unreferenced_by_topic ON history_objects (topic_id)
    WHERE unreferenced_since IS NOT NULL;
CREATE INDEX history_objects_erased ON history_objects (unreferenced_since) WHERE is_erased;

-- --- the commit journal

-- How far the copy of this database's order in the bucket has come. A writer of the journal changes the row
-- only if it is as it was read. So of several writers at once one goes on, and the others' objects are left
-- aside.
CREATE TABLE journal (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Under which ownership, and by which Postgres, the journal is written. Another one begins with a
    -- checkpoint.
    epoch bigint NOT NULL DEFAULT 0,
    system_identifier bigint,
    timeline integer,
    last_number bigint NOT NULL DEFAULT 0,         -- given out to an entry, which may never have been written
    last_entry bigint NOT NULL DEFAULT 0,          -- the last entry that is in the bucket, or what the first
                                                   -- checkpoint follows
    snapshot pg_snapshot,                          -- of that: what it shows is in the bucket; null: the
                                                   -- journal has not begun
    taken_at timestamptz,                          -- when that snapshot was taken
    topic_changes bigint NOT NULL DEFAULT -1,      -- topic_changes.changes in that snapshot
    -- Moments, and the next transaction id at each: a transaction with a higher id began later. They say
    -- how far back to look for late commits.
    mark_times timestamptz[] NOT NULL DEFAULT '{}',
    mark_xids bigint[] NOT NULL DEFAULT '{}',
    families jsonb NOT NULL DEFAULT '{}',          -- of the tables read at their own pace: their last
                                                   -- snapshot, and what it took
    written_at timestamptz,                        -- when an entry or a checkpoint was last finished
    entries bigint NOT NULL DEFAULT 0,
    entry_bytes bigint NOT NULL DEFAULT 0,         -- of all entries ever
    last_checkpoint_number bigint NOT NULL DEFAULT 0, -- given out
    checkpoint_number bigint NOT NULL DEFAULT 0,   -- the last complete one; 0: none
    checkpoint_at timestamptz,                     -- when its snapshot was taken
    checkpoint_bytes bigint NOT NULL DEFAULT 0,
    checkpoint_entry_bytes bigint NOT NULL DEFAULT 0, -- entry_bytes when it was taken
    -- While a database that was loaded from the journal is being recovered: the moment of its producers'
    -- states.
    recovering_producers_since timestamptz
) WITH (fillfactor = 25);
