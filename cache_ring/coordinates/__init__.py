"""Coordinates of new records: remembered, and pushed to agents that read them."""
