-- The rows that the commit journal copies, for any table; {table} is its name.

-- name: all_rows
SELECT t.* FROM {table} AS t

-- name: changed_rows
-- For any table. It has no index on what changes, so the whole table is read.
SELECT t.* FROM {table} AS t
WHERE age(t.xmin) <= age(pg_snapshot_xmin(%(since)s::pg_snapshot)::xid)
    AND NOT pg_visible_in_snapshot((%(next_xid)s::bigint - age(t.xmin))::text::xid8, %(since)s::pg_snapshot)
