-- initialize_transaction gives a producer the id and epoch for a transactional id (InitProducerId). Producers
-- that had the transactional id before are fenced: their epoch is lower.
--
-- | parameter | meaning |
-- |---|---|
-- | id | the transactional id |
-- | with_timeout_ms | after which an open transaction is aborted |
-- | of_producer, of_epoch | what the producer has already (KIP-360), or -1: it starts |
--
-- Returns one row:
-- | column | meaning |
-- |---|---|
-- | verdict | 0 done; 1 fenced; 2 no such producer of this id; 4 one is open: abort it, and ask again |
-- | producer_id, producer_epoch | the producer's from now on; with verdict 4, those of the open one |
CREATE FUNCTION initialize_transaction(id text, with_timeout_ms integer, of_producer bigint, of_epoch integer)
RETURNS TABLE (verdict integer, producer_id bigint, producer_epoch integer)
LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_column
DECLARE
    own transactions%ROWTYPE;
    starts CONSTANT boolean := of_producer < 0;
    is_current boolean;
    is_repeat boolean;
    is_used_up boolean;
BEGIN
    SELECT * INTO own FROM transactions AS t WHERE t.transactional_id = id FOR NO KEY UPDATE;
    IF own.producer_id IS NULL THEN
        -- An id that was forgotten, or that another request is making now.
        INSERT INTO transactions (transactional_id, producer_id, producer_epoch, timeout_ms)
        VALUES (id, new_producer_id(), 0, with_timeout_ms) ON CONFLICT (transactional_id) DO NOTHING;
        IF FOUND THEN
            RETURN QUERY SELECT 0, t.producer_id, t.producer_epoch FROM transactions AS t
                WHERE t.transactional_id = id;
            RETURN;
        END IF;
        SELECT * INTO own FROM transactions AS t WHERE t.transactional_id = id FOR NO KEY UPDATE;
    END IF;

    is_current := own.producer_id = of_producer AND own.producer_epoch = of_epoch;
    is_repeat := own.last_producer_id = of_producer AND own.last_producer_epoch = of_epoch;
    IF NOT (starts OR is_current OR is_repeat) THEN
        RETURN QUERY SELECT CASE WHEN own.producer_id = of_producer OR own.last_producer_id = of_producer
            THEN 1 ELSE 2 END, own.producer_id, own.producer_epoch;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM transaction_partitions AS p WHERE p.producer_id = own.producer_id)
        OR EXISTS (SELECT FROM transaction_groups AS g WHERE g.producer_id = own.producer_id) THEN
        RETURN QUERY SELECT 4, own.producer_id, own.producer_epoch;
        RETURN;
    END IF;
    is_used_up := own.producer_epoch >= 32766;  -- 32767, the last epoch, is only for fencing
    IF is_repeat AND NOT is_current AND NOT starts AND own.producer_epoch < 32767 THEN
        -- What the producer's last request did already.
        RETURN QUERY SELECT 0, own.producer_id, own.producer_epoch;
        RETURN;
    END IF;

    RETURN QUERY
    UPDATE transactions AS t SET
        producer_id = CASE WHEN is_used_up THEN new_producer_id() ELSE own.producer_id END,
        producer_epoch = CASE WHEN is_used_up THEN 0 ELSE own.producer_epoch + 1 END,
        last_producer_id = CASE WHEN starts THEN -1 ELSE of_producer END,
        last_producer_epoch = CASE WHEN starts THEN -1 ELSE of_epoch END,
        timeout_ms = with_timeout_ms, ended = NULL, changed_at = clock_timestamp()
    WHERE t.transactional_id = id
    RETURNING 0, t.producer_id, t.producer_epoch;
END
$function$;
