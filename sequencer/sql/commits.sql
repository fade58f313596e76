-- name: commit
-- The work is in the function commit_segments (migrations/0005_producers.sql): two statements, one round trip, one transaction.
SELECT state, object_key, outcome FROM commit_segments(
    segment_ids => %(segment_ids)s, segment_sizes => %(segment_sizes)s,
    topic_ids => %(topic_ids)s, partition_numbers => %(partition_numbers)s,
    chain_parts => %(chain_parts)s, chain_producers => %(chain_producers)s, chain_epochs => %(chain_epochs)s,
    batch_parts => %(batch_parts)s, batch_segments => %(batch_segments)s, batch_positions => %(batch_positions)s,
    batch_lengths => %(batch_lengths)s, batch_records => %(batch_records)s,
    batch_min_timestamps => %(batch_min_timestamps)s, batch_max_timestamps => %(batch_max_timestamps)s,
    batch_chains => %(batch_chains)s, batch_members => %(batch_members)s, batch_sequences => %(batch_sequences)s)
