"""Commits: offsets for the batches of uploaded segments, and the coordinates that readers ask for."""
