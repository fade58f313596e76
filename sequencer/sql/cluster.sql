-- name: cluster_id
SELECT cluster_id FROM cluster

-- name: durability
SELECT current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       (SELECT max(number) FROM migrations) AS migration
