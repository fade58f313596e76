"""`tidelog demo`: the whole path on real data, every record checked."""
