"""Batches whose records are encrypted, and the keys that encrypt the keys of topics."""
