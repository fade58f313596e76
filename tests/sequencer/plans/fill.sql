-- A small database, always the same, for the plans beside this file: every row is looked at when it is
-- analysed.
INSERT INTO topics (topic_id, name, partition_count)
SELECT md5('topic ' || t)::uuid, 'topic ' || t, 20 FROM generate_series(1, 250) AS t;
INSERT INTO partitions (topic_id, partition, high_watermark)
SELECT topic_id, partition, 50 FROM topics, generate_series(0, 19) AS partition ORDER BY 1, 2;
INSERT INTO segments (segment_id, object_key, writer, lease_until, state, size_bytes, committed_at)
SELECT md5('segment ' || s)::uuid, 'segment ' || s, '1', '2026-11-21',
       CASE WHEN s > 4900 THEN 'reserved' WHEN s > 100 THEN 'committed' ELSE 'doomed' END, 1000,
       CASE WHEN s <= 4900 THEN '2026-11-21'::timestamptz + make_interval(secs => s) END
FROM generate_series(1, 5000) AS s;
INSERT INTO runs (topic_id, partition, base_offset, last_offset, segment_id, position, length,
                  min_timestamp_ms, max_timestamp_ms, running_max_timestamp_ms)
SELECT topic_id, partition, 10 * n, 10 * n + 9, md5('segment ' || 101 + (977 * n + partition) % 4800)::uuid,
    64, 100, n, n, n
FROM partitions, generate_series(0, 4) AS n ORDER BY 1, 2, 3;
INSERT INTO producer_state (topic_id, partition, producer_id, producer_epoch, sequences, base_offsets,
    max_timestamps)
SELECT topic_id, partition, producer, 0, '{0}', '{0}', '{0}'
FROM partitions, generate_series(1, 3) AS producer ORDER BY 1, 2, 3;
INSERT INTO groups (group_id, coordinator) SELECT 'group ' || g, 1 FROM generate_series(1, 500) AS g;
INSERT INTO group_members (group_id, member_id, epoch, document)
SELECT group_id, 'member ' || m, 1, '{}' FROM groups, generate_series(1, 4) AS m;
INSERT INTO committed_offsets (group_id, topic_id, partition, committed_offset, leader_epoch, metadata)
SELECT group_id, topic_id, partition, 1, 0, '' FROM groups, partitions
WHERE partition = 0 AND get_byte(uuid_send(topic_id), 0) < 32;
INSERT INTO holds (segment_id, job_id, lease_until)
SELECT segment_id, md5('job')::uuid, '2026-11-21' FROM segments WHERE state = 'committed' ORDER BY 1
LIMIT 500;
INSERT INTO merge_candidates (segment_id, tier, committed_at, size_bytes)
SELECT segment_id, 0, committed_at, size_bytes FROM segments WHERE state = 'committed' ORDER BY 1 LIMIT 2000;
INSERT INTO history_tables (topic_id, metadata_key, published_at)
SELECT topic_id, name, '2026-11-21' FROM topics;
INSERT INTO history_partitions (topic_id, partition, compacted_to)
SELECT topic_id, partition, 40 FROM partitions ORDER BY 1, 2;
INSERT INTO history_files (object_key, topic_id, partition, first_offset, last_offset, row_count, size_bytes,
    is_full, sequence_number, written_at, has_untimed, begins_at, ends_at, row_groups)
SELECT topic_id || '/' || partition || '/' || n, topic_id, partition, 20 * n, 20 * n + 19, 20, 1000, true, 1,
    '2026-11-21', true, '2026-11-21', '2026-11-21', ARRAY[20 * n, 4, 900, -1]
FROM partitions, generate_series(0, 1) AS n ORDER BY 2, 3, 4;
INSERT INTO transactions (transactional_id, producer_id, producer_epoch, timeout_ms)
SELECT 'transaction ' || t, t, 0, 60000 FROM generate_series(1, 5000) AS t;
INSERT INTO transaction_partitions (producer_id, topic_id, partition, first_offset, expires_at)
SELECT p + get_byte(uuid_send(topic_id), 0), topic_id, partition, 40,
    '2026-11-21'::timestamptz + make_interval(secs => p)
FROM partitions, generate_series(1, 3) AS p ORDER BY 1, 2, 3;
INSERT INTO transaction_groups (producer_id, group_id, expires_at)
SELECT p, group_id, '2026-11-21'::timestamptz + make_interval(secs => p)
FROM groups, generate_series(1, 5) AS p;
INSERT INTO pending_offsets (producer_id, group_id, topic_id, partition, committed_offset, leader_epoch,
    metadata)
SELECT p, group_id, topic_id, partition, 1, 0, ''
FROM groups, partitions, generate_series(1, 5) AS p
WHERE partition = 0 AND get_byte(uuid_send(topic_id), 0) < 2;
INSERT INTO aborted_transactions (topic_id, partition, last_offset, first_offset, producer_id, stable_offset)
SELECT topic_id, partition, 10 * n + 9, 10 * n, 1, 10 * n + 10
FROM partitions, generate_series(0, 2) AS n ORDER BY 1, 2, 3;
INSERT INTO acls (acl_key, resource_type, pattern_type, name, principal, host, operation, permission, version)
SELECT sha256(n::text::bytea), 2, 3, 'topic ' || n, 'User:' || n % 50, '*', 3, 3, n
FROM generate_series(1, 5000) AS n;
VACUUM ANALYZE;
