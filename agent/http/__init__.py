"""The agent's HTTP side: health, metrics, administration, the read-only Iceberg catalog."""
