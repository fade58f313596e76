"""Which agent a client is sent to."""
