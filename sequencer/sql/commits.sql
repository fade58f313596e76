-- name: commit
-- The function sequence_segments does the work (functions/sequence_segments.sql): one round trip, one
-- transaction, which itself demands durability. A repeat writes only its locks, which is enough to make it
-- wait for the standby.
SELECT state, object_key, outcome, log_starts, first_unstables
FROM demand_durability() CROSS JOIN sequence_segments(
    segment_ids => %(segment_ids)s, segment_sizes => %(segment_sizes)s,
    topic_ids => %(topic_ids)s, partition_numbers => %(partition_numbers)s,
    chain_parts => %(chain_parts)s, chain_producers => %(chain_producers)s, chain_epochs => %(chain_epochs)s,
    chain_transactions => %(chain_transactions)s,
    batch_parts => %(batch_parts)s, batch_segments => %(batch_segments)s,
    batch_positions => %(batch_positions)s,
    batch_lengths => %(batch_lengths)s, batch_records => %(batch_records)s,
    batch_min_timestamps => %(batch_min_timestamps)s, batch_max_timestamps => %(batch_max_timestamps)s,
    batch_chains => %(batch_chains)s, batch_members => %(batch_members)s,
    batch_sequences => %(batch_sequences)s,
    part_records => %(part_records)s, part_lengths => %(part_lengths)s,
    part_max_timestamps => %(part_max_timestamps)s,
    batch_starts => %(batch_starts)s,
    run_first_batches => %(run_first_batches)s, run_last_batches => %(run_last_batches)s,
    run_min_timestamps => %(run_min_timestamps)s, run_max_timestamps => %(run_max_timestamps)s,
    run_running_max_timestamps => %(run_running_max_timestamps)s,
    turn_heads => %(turn_heads)s, turn_producers => %(turn_producers)s, turn_epochs => %(turn_epochs)s,
    turn_transactions => %(turn_transactions)s,
    turn_recent_from => %(turn_recent_from)s, turn_recent_to => %(turn_recent_to)s,
    recent_batches => %(recent_batches)s)
