"""The order: Postgres schema, SQL, and the one client of Postgres that all other parts use."""
