"""The commit journal and recovery from it."""
