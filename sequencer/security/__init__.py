"""Who may do what: what Postgres stores of it."""
