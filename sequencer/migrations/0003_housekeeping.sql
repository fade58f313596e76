-- Housekeeping (DESIGN §9, §10): when dooming must pause, where a bounded pass left off, and how the garbage collector finds what is due
-- without reading what is not.

-- What the last look at the database found. A longer gap between two looks was an outage (or nobody kept house): agents could not commit
-- meanwhile, so dooming pauses for a lease. Another system identifier or timeline is a failover: a commit may have been lost with it.
CREATE TABLE dooming (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint NOT NULL,
    timeline integer NOT NULL,
    last_seen_at timestamptz NOT NULL,
    paused_until timestamptz NOT NULL,
    pause_reason text NOT NULL CHECK (pause_reason IN ('start', 'outage', 'failover'))
);

ALTER TABLE jobs ADD COLUMN progress text;         -- where a bounded pass left off; null at its beginning

-- Set with deleted_at: when the tombstone may go, which is after late_write_window and when nobody can ask for the outcome any more.
ALTER TABLE segments ADD COLUMN forget_after timestamptz;

DROP INDEX segments_doomed;
CREATE INDEX segments_to_delete ON segments (coalesce(unreferenced_since, doomed_at)) WHERE state = 'doomed' AND deleted_at IS NULL;
CREATE INDEX segments_tombstones ON segments (forget_after) WHERE forget_after IS NOT NULL;
