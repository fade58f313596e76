"""Kafka clients against a running stack of two agents in zones a and b."""
