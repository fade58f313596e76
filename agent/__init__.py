"""The server: Kafka protocol, batching writer, fetch, HTTP (DESIGN: the parts)."""
