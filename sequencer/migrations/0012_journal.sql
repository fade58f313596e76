-- The commit journal (DESIGN §10, Restore): how far the copy of this database's order in the bucket has come. One row; whoever writes the journal
-- changes it only if it is as it was read, so that of several writers at once one goes on and the others' objects are left aside.
CREATE TABLE journal (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Under which ownership, and by which Postgres, the journal is written. Another one begins with a checkpoint.
    epoch bigint NOT NULL DEFAULT 0,
    system_identifier bigint,
    timeline integer,
    last_number bigint NOT NULL DEFAULT 0,         -- given out to an entry, which may never have been written
    last_entry bigint NOT NULL DEFAULT 0,          -- the last entry that is in the bucket for certain, or what the first checkpoint follows
    snapshot pg_snapshot,                          -- of that: what it shows is in the bucket; null: the journal has not begun
    taken_at timestamptz,                          -- when that snapshot was taken
    topic_changes bigint NOT NULL DEFAULT -1,      -- topic_changes.changes in that snapshot
    -- Moments, and the next transaction id at each: a transaction with a higher id began later. They say how far back to look for late commits.
    mark_times timestamptz[] NOT NULL DEFAULT '{}',
    mark_xids bigint[] NOT NULL DEFAULT '{}',
    families jsonb NOT NULL DEFAULT '{}',          -- of the tables that are read at their own pace: the snapshot they were read in, and what it took
    written_at timestamptz,                        -- when an entry or a checkpoint was last finished
    entries bigint NOT NULL DEFAULT 0,
    entry_bytes bigint NOT NULL DEFAULT 0,         -- of all entries ever
    last_checkpoint_number bigint NOT NULL DEFAULT 0,  -- given out
    checkpoint_number bigint NOT NULL DEFAULT 0,   -- the last complete one; 0: none
    checkpoint_at timestamptz,                     -- when its snapshot was taken
    checkpoint_bytes bigint NOT NULL DEFAULT 0,
    checkpoint_entry_bytes bigint NOT NULL DEFAULT 0   -- entry_bytes when it was taken
) WITH (fillfactor = 25);
INSERT INTO journal DEFAULT VALUES;
