"""Topics, their configs, and what administrators ask about partitions."""
