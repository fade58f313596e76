"""Pages of objects: in memory, from peers, from the store."""
