"""What Postgres stores of users, and of what they may do."""
