"""Users in Postgres."""
