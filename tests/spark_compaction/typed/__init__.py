"""Fields of keys and values as columns."""
