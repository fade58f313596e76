"""The order: Postgres schema, SQL, and the one client through which everybody talks to it."""
