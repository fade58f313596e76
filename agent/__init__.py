"""The server: Kafka protocol, batching writer, fetch, HTTP (docs/design/parts.md#folders)."""
