-- What the agents' role may do, where migrations have a separate role (docs/security.md#database-roles).
-- `tidelog migrate` runs this after the migrations. {schema} and {role} are names.
--
-- No table may be changed in shape, and none is emptied. Every table of schema.sql is named here: a test
-- compares. A new one gets only what its statements need.
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {role};
REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM {role};
REVOKE CREATE ON SCHEMA {schema} FROM {role};
GRANT USAGE ON SCHEMA {schema} TO {role};

GRANT SELECT ON migrations TO {role};

-- Tables of one row, which the first migration wrote.
GRANT SELECT, UPDATE ON
    acl_changes, agents_shown, cluster, doubts, erasures, journal, ownership, producer_ids,
    quota_changes, security, tenant_changes, topic_changes
TO {role};

-- Rows that are written over and never deleted.
GRANT SELECT, INSERT, UPDATE ON
    dooming, group_configs, history_lag, jobs, merge_tiers, observation, peer_secrets,
    tenants
TO {role};

-- Their partitions are made and dropped by add_time_partition and drop_time_partition, with the owner's
-- rights.
GRANT SELECT, INSERT ON outcomes, tombstones TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON time_partitions TO {role};

GRANT SELECT, INSERT, UPDATE, DELETE ON
    aborted_transactions, acls, agents, changed_topics, cleanings, client_quotas, committed_offsets,
    key_copies_to_delete, gone_ranges,
    group_members, groups, history_files, history_jobs, history_objects, history_partitions,
    history_raw_ranges, history_tables, holds, merge_candidates, partitions, pending_offsets,
    producer_state, quota_use, runs, segments, sink_batches, sinks, tenant_reports,
    tenant_usage, topic_keys, topics, transaction_groups, transaction_partitions, transactions,
    user_credentials
TO {role};

-- The commit journal writes down how far they are.
GRANT USAGE, SELECT ON SEQUENCE coordinator_epochs, node_ids, time_partition_numbers TO {role};

GRANT EXECUTE ON FUNCTION
    add_time_partition(text, double precision, integer),
    drop_time_partition(text, bigint, integer)
TO {role};
