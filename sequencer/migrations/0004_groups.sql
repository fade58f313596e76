-- Consumer groups (DESIGN §8): who coordinates each, what its coordinator must find again after a crash, and the offsets committed.
--
-- A group's row guards its members and its offsets: whoever writes one of them holds it (FOR NO KEY UPDATE, several in group_id order,
-- ranking with topics in the lock order). An offset commit locks the row and changes nothing in it. No foreign keys, and no index on what
-- changes, so that updates stay on their page (HOT). Ids are compared as bytes (COLLATE "C"), as the client sorts them.

-- One for all groups: an epoch is never used twice, so a coordinator that slept through its group's deletion does not match the group's
-- next row.
CREATE SEQUENCE coordinator_epochs AS bigint START 1 CACHE 1;

CREATE TABLE groups (
    group_id text COLLATE "C" PRIMARY KEY,
    coordinator integer NOT NULL,                  -- node id of the agent that claimed it last
    coordinator_epoch bigint NOT NULL DEFAULT nextval('coordinator_epochs'), -- drawn anew by each claim: the fence
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text CHECK (kind IN ('classic', 'consumer')), -- null until its coordinator has written it: it may have offsets all the same
    generation integer NOT NULL DEFAULT 0,         -- the group epoch in the new protocol (KIP-848)
    state text NOT NULL DEFAULT 'Empty',           -- in Kafka's spelling, for listings
    protocol_type text NOT NULL DEFAULT '',        -- empty: nobody ever joined, offsets are committed by groupless consumers
    document json NOT NULL DEFAULT '{}',           -- the state machine's own. Not jsonb: that refuses the NUL that a client may send
    empty_since timestamptz DEFAULT clock_timestamp() -- null while it has members
) WITH (fillfactor = 50);

CREATE TABLE group_members (
    group_id text COLLATE "C" NOT NULL,
    member_id text COLLATE "C" NOT NULL,
    epoch integer NOT NULL,                        -- the member's in the new protocol, the generation in the classic one
    document json NOT NULL,
    PRIMARY KEY (group_id, member_id)
) WITH (fillfactor = 70);

CREATE TABLE committed_offsets (
    group_id text COLLATE "C" NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL,
    metadata bytea NOT NULL,                       -- UTF-8, in which a client may write NUL, as text may not
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, topic_id, partition)
) WITH (fillfactor = 50);

-- claim_group: a coordinator takes a group over. Statement 1 raises the epoch, which waits for whatever the last coordinator has in flight;
-- statement 2 takes its snapshot afterwards. In one statement the group's row would be read after the wait, its members as before it.
CREATE FUNCTION claim_group(claimed_group text, node_id integer, may_create boolean)
RETURNS TABLE (coordinator_epoch bigint, kind text, generation integer, state text, protocol_type text, document json,
               member_ids text[], member_epochs integer[], member_documents json[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    IF may_create THEN
        INSERT INTO groups AS g (group_id, coordinator) VALUES (claimed_group, node_id)
        ON CONFLICT (group_id) DO UPDATE
        SET coordinator = node_id, coordinator_epoch = nextval('coordinator_epochs'), claimed_at = clock_timestamp();
    ELSE
        UPDATE groups SET coordinator = node_id, coordinator_epoch = nextval('coordinator_epochs'), claimed_at = clock_timestamp()
        WHERE group_id = claimed_group;
    END IF;
    RETURN QUERY
    SELECT g.coordinator_epoch, g.kind, g.generation, g.state, g.protocol_type, g.document, m.ids, m.epochs, m.documents
    FROM groups AS g CROSS JOIN (
        SELECT coalesce(array_agg(member_id), '{}') AS ids, coalesce(array_agg(epoch), '{}') AS epochs,
               coalesce(array_agg(document), '{}') AS documents
        FROM group_members WHERE group_id = claimed_group) AS m
    WHERE g.group_id = claimed_group;
END
$function$;

-- write_group: what a coordinator changed, members included, if the group is still its own; false if it is not. Statement 1 takes the
-- row; the members are looked at in a snapshot taken since.
CREATE FUNCTION write_group(
    written_group text, held_epoch bigint, new_kind text, new_generation integer, new_state text, new_protocol_type text,
    new_document json, is_empty boolean, removed_ids text[], member_ids text[], member_epochs integer[], member_documents text[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
BEGIN
    UPDATE groups SET kind = new_kind, generation = new_generation, state = new_state, protocol_type = new_protocol_type,
           document = new_document,
           empty_since = CASE WHEN is_empty THEN coalesce(empty_since, clock_timestamp()) END
    WHERE group_id = written_group AND coordinator_epoch = held_epoch;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM group_members WHERE group_id = written_group AND member_id = ANY (removed_ids);
    INSERT INTO group_members AS m (group_id, member_id, epoch, document)
    SELECT written_group, given.member_id, given.epoch, given.document::json
    FROM unnest(member_ids, member_epochs, member_documents) AS given (member_id, epoch, document)
    ON CONFLICT (group_id, member_id) DO UPDATE SET epoch = excluded.epoch, document = excluded.document;
    RETURN true;
END
$function$;

-- delete_group: the group, its members and its offsets, while it has no members. The row is locked first, so that an offset commit is
-- either seen and deleted or finds no group.
CREATE FUNCTION delete_group(deleted_group text, held_epoch bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
DECLARE
    since timestamptz;
BEGIN
    SELECT empty_since INTO since FROM groups WHERE group_id = deleted_group AND coordinator_epoch = held_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'not coordinator';
    ELSIF since IS NULL THEN
        RETURN 'not empty';
    END IF;
    DELETE FROM committed_offsets WHERE group_id = deleted_group;
    DELETE FROM group_members WHERE group_id = deleted_group;
    DELETE FROM groups WHERE group_id = deleted_group;
    RETURN 'deleted';
END
$function$;

-- commit_offsets: the offset commits of many groups at once (DESIGN §8).
--
-- Statement 1 only locks the groups' rows, in id order; as PERFORM of a locking SELECT it cannot be dropped from a plan. Statement 2 takes its
-- snapshot afterwards and so sees the epoch, the generation and the members as the last holder of the locks left them. Unlocked, a commit
-- that was judged before a take-over would be written after it; in one statement, the members would be seen as before the wait [raced].
-- All writers of a group's offsets hold its row, so the offsets found in statement 2 stay where they are until it ends.
--
-- Given, as parallel arrays: the distinct groups; the commits, each with its group's position among those (from 1) and its fence: a
-- generation or -1, a member or '', that member's epoch or -1; the offsets, each with its commit's position (from 1). If several
-- accepted commits name the same partition of a group, or one does so twice, the last wins. Metadata may be left out if all are empty.
--
-- Returned per commit: 0 done, 1 not coordinator, 2 unknown member, 3 illegal generation, 4 stale member epoch.
-- `sequencer/committed_offsets.py` is its other end.
CREATE FUNCTION commit_offsets(
    group_ids text[],
    commit_groups integer[], commit_epochs bigint[], commit_generations integer[], commit_members text[], commit_member_epochs integer[],
    offset_commits integer[], offset_topics uuid[], offset_partitions integer[], offset_values bigint[],
    offset_leader_epochs integer[], offset_metadata bytea[])
RETURNS TABLE (verdicts integer[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM groups WHERE group_id = ANY (group_ids) ORDER BY group_id FOR NO KEY UPDATE;

    RETURN QUERY
    WITH held AS MATERIALIZED (
        SELECT given.number, given.group_id, stored.coordinator_epoch, stored.generation, stored.is_empty
        FROM unnest(group_ids) WITH ORDINALITY AS given (group_id, number)
        CROSS JOIN LATERAL (
            SELECT g.coordinator_epoch, g.generation, g.empty_since IS NOT NULL AS is_empty FROM groups AS g
            WHERE g.group_id = given.group_id OFFSET 0) AS stored
    ), verdict AS MATERIALIZED (
        SELECT given.number, held.number AS of_group, held.group_id, CASE
            WHEN held.coordinator_epoch IS DISTINCT FROM given.epoch THEN 1
            WHEN given.member_id <> '' AND member.epoch IS NULL THEN 2
            WHEN given.member_id = '' AND given.generation < 0 AND NOT held.is_empty THEN 2
            WHEN given.generation >= 0 AND given.generation <> held.generation THEN 3
            WHEN given.member_epoch >= 0 AND given.member_epoch <> member.epoch THEN 4
            ELSE 0 END AS kind
        FROM unnest(commit_groups, commit_epochs, commit_generations, commit_members, commit_member_epochs) WITH ORDINALITY
             AS given (of_group, epoch, generation, member_id, member_epoch, number)
        LEFT JOIN held ON held.number = given.of_group
        LEFT JOIN LATERAL (
            SELECT m.epoch FROM group_members AS m
            WHERE m.group_id = held.group_id AND m.member_id = given.member_id AND given.member_id <> '' OFFSET 0) AS member ON true
    ), accepted AS MATERIALIZED (
        SELECT DISTINCT ON (verdict.of_group, given.topic_id, given.partition)
               verdict.group_id, given.topic_id, given.partition, given.committed_offset, given.leader_epoch,
               coalesce(given.metadata, '') AS metadata
        FROM unnest(offset_commits, offset_topics, offset_partitions, offset_values, offset_leader_epochs, offset_metadata)
             WITH ORDINALITY AS given (of_commit, topic_id, partition, committed_offset, leader_epoch, metadata, number)
        JOIN verdict ON verdict.number = given.of_commit AND verdict.kind = 0
        ORDER BY verdict.of_group, given.topic_id, given.partition, given.number DESC
    ), written AS (
        INSERT INTO committed_offsets AS o (group_id, topic_id, partition, committed_offset, leader_epoch, metadata)
        SELECT group_id, topic_id, partition, committed_offset, leader_epoch, metadata FROM accepted
        ON CONFLICT (group_id, topic_id, partition) DO UPDATE
        SET committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,
            committed_at = excluded.committed_at
    )
    SELECT array_agg(kind ORDER BY number) FROM verdict;
END
$function$;

-- delete_offsets: some offsets of a group, if it is still its coordinator who asks; false if not.
CREATE FUNCTION delete_offsets(of_group text, held_epoch bigint, topic_ids uuid[], partition_numbers integer[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $function$
BEGIN
    PERFORM 1 FROM groups WHERE group_id = of_group AND coordinator_epoch = held_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM committed_offsets AS o USING unnest(topic_ids, partition_numbers) AS given (topic_id, partition)
    WHERE o.group_id = of_group AND o.topic_id = given.topic_id AND o.partition = given.partition;
    RETURN true;
END
$function$;
