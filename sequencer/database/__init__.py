"""Connections to Postgres: lanes, the commit's own connection, retries, which server is the primary."""
